"""Order, size, stop rule and estimate of a run's cells; the counters' differences; the prompts' seeds."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from specmodel.api.benchmark import SAMPLES_MAXIMUM, Cell, CellRequest, Limit, Metric, StopRule
from specmodel.bench import course
from specmodel.bench.counters import EngineChangedError, acceptance, check_same_engine, read_counters
from specmodel.bench.figures import Measured, cell_of, thinned
from specmodel.bench.load import RequestRecord
from specmodel.bench.prompts import FilePrompts, PromptsError, SyntheticPrompts, TokenIds, cell_seed, read_prompts
from specmodel.domain.assessment import Verdict, judge_cell


def asked(concurrency: int, temperature: str = "0", least: int = 24, most: int = 600) -> CellRequest:
    return CellRequest(concurrency=concurrency, temperature=temperature, min_requests=least, max_requests=most)


def seen(request: CellRequest, milliseconds: list[float], failed: int = 0) -> Cell:
    records = [RequestRecord(ttft=ms / 2000, e2e=ms / 1000, output_tokens=5) for ms in milliseconds]
    records += [RequestRecord(error="HTTP 500")] * failed
    stamp = "2026-11-30T06:00:00Z"
    return cell_of(
        request,
        Measured(
            records=records, seconds=sum(milliseconds) / 1000, acceptance=None, started_at=stamp, finished_at=stamp
        ),
    )


def test_cells_go_temperature_by_temperature_and_upwards() -> None:
    cells = [asked(8, "0.5"), asked(1, "0"), asked(1, "0.5"), asked(8, "0.0"), asked(8, "0")]
    assert [course.key_of(c) for c in course.in_order(cells)] == [(1, "0.5"), (8, "0.5"), (1, "0"), (8, "0")]


@pytest.mark.parametrize(("cell", "size"), [(asked(1), 24), (asked(32), 192), (asked(32, least=1, most=100), 100)])
def test_a_cell_begins_with_six_requests_a_stream_within_its_bounds(cell: CellRequest, size: int) -> None:
    assert course.first_size(cell) == size


def test_an_undecided_cell_is_doubled_up_to_its_maximum_and_a_decided_one_is_left() -> None:
    request = asked(1, least=24, most=100)
    stop = StopRule(
        limits=[Limit(metric=Metric.E2E_LATENCY, percentile=99, max_milliseconds=100)], confidence_percent=90
    )
    assert course.extension(request, seen(request, [50.0] * 24), stop) == 24
    assert course.extension(request, seen(request, [50.0] * 96), stop) == 4
    assert course.extension(request, seen(request, [50.0] * 100), stop) == 0
    assert course.extension(request, seen(request, [150.0] * 24), stop) == 0
    assert course.extension(request, seen(request, [50.0] * 24), stop.model_copy(update={"confidence_percent": 0})) == 0


def test_levels_above_a_failed_one_are_needless_at_its_temperature_only() -> None:
    cells = [asked(c, t) for t in ("0", "0.5") for c in (1, 8, 16)]
    stop = StopRule(limits=[Limit(metric=Metric.E2E_LATENCY, percentile=50, max_milliseconds=100)])
    done = {(1, "0"): seen(cells[0], [50.0]), (8, "0"): seen(cells[1], [150.0])}
    assert course.needless(cells, done, stop) == {(16, "0"): (8, "0")}
    broken = {(1, "0.5"): seen(cells[3], [], failed=3)}
    assert set(course.needless(cells, broken, stop)) == {(8, "0.5"), (16, "0.5")}


def test_the_estimate_is_unknown_at_first_and_then_counts_requests_of_a_stream() -> None:
    assert course.remaining_seconds([asked(1)], {}, 2) is None
    assert course.remaining_seconds([], {}, 2) == 0
    assert course.remaining_seconds([asked(1), asked(8)], {(1, "0"): 1.0, (8, "0"): 2.0}, 2) == 2 + 24 + 2 + 12


def test_what_the_job_writes_is_never_implausible_to_the_operator() -> None:
    for milliseconds in ([0.01], [10.0] * 3, [float(at) for at in range(1, 1500)]):
        for failed in (0, 3):
            cell = seen(asked(1), milliseconds, failed)
            assert judge_cell(cell, StopRule(max_error_rate_percent="100")).verdict is Verdict.ELIGIBLE
            assert Cell.model_validate(cell.to_wire()) == cell


def test_more_samples_than_are_kept_are_thinned_by_rank_with_both_ends() -> None:
    values = list(range(1, 2001))
    kept = thinned(values)
    assert (len(kept), kept[0], kept[-1]) == (SAMPLES_MAXIMUM, 1, 2000)
    assert kept == sorted(set(kept))


BEFORE = """
# TYPE vllm:spec_decode_num_drafts counter
process_start_time_seconds 1.79600151047e+09
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.0
"""
AFTER = (
    BEFORE.replace(" 10.0", " 110.0")
    .replace(" 5.0", " 25.0")
    .replace(" 30.0", " 390.0")
    .replace(" 12.0", " 112.0")
    .replace(" 9.0", " 89.0")
    .replace(" 3.0", " 23.0")
)


def test_acceptance_is_the_difference_of_the_counters_summed_over_engines() -> None:
    counted = acceptance(read_counters(BEFORE), read_counters(AFTER))
    assert counted is not None
    assert (counted.drafts, counted.draft_tokens, counted.accepted_tokens) == (120, 360, 100)
    assert counted.accepted_per_position == [80, 20]


def test_an_engine_without_speculation_has_no_acceptance() -> None:
    text = 'vllm:generation_tokens_total{engine="0"} 5\n'
    assert acceptance(read_counters(text), read_counters(text)) is None
    assert acceptance(read_counters(""), read_counters("")) is None


@pytest.mark.parametrize(
    "later",
    [
        AFTER.replace(" 110.0", " 9.0"),
        AFTER.replace("1.79600151047e+09", "1.79600161047e+09"),
        "\n".join(line for line in AFTER.split("\n") if 'engine="1"' not in line),
        "",
    ],
)
def test_a_counter_that_goes_back_vanishes_or_is_born_anew_is_another_engine(later: str) -> None:
    with pytest.raises(EngineChangedError):
        check_same_engine(read_counters(BEFORE), read_counters(later))


def test_each_part_of_each_cell_has_prompts_of_its_own() -> None:
    prompts = SyntheticPrompts(vocabulary=TokenIds(first=1000, last=30_000), input_tokens=16)
    parts = [("0", "warm-up"), ("0", "load 0"), ("0", "load 1"), ("0.5", "load 0")]
    seeds = [cell_seed(0, c, t, part) for c in (1, 8) for t, part in parts] + [cell_seed(1, 1, "0", "load 0")]
    firsts = {str(next(prompts.stream(seed)).body) for seed in seeds}
    assert len(firsts) == len(seeds)
    assert next(prompts.stream(seeds[0])) == next(prompts.stream(seeds[0]))


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '"text"', "{}", '{"prompt": 5}', '{"prompt": ""}', '{"messages": []}', '{"messages": ["hi"]}',
     '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "[" * 100_000],
)  # fmt: skip
def test_a_line_that_is_no_prompt_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(PromptsError, match=r"prompts\.jsonl line 2"):
        read_prompts(file)


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptsError, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(PromptsError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.jsonl")


def test_a_file_is_used_evenly(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt": "{at}"}}\n' for at in range(5)), encoding="utf-8")
    prompts: FilePrompts = read_prompts(file)
    taken = [str(prompt.body["prompt"]) for prompt in islice(prompts.stream(7), 10)]
    assert sorted(taken) == sorted("0123401234")
