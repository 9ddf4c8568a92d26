"""`specmodel decide` as a person runs it: files in, a status or one clear line for each problem out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specmodel.api.benchmark import Cell
from specmodel.cli.main import COMMANDS, main
from tests.support.measured import H200, H200_SAMPLES, Json, cell, limit, raw_result

Run = Callable[..., tuple[int, str, str]]


def manifest(*limits: Json, confidence: int = 0, **changes: Any) -> Json:
    """Return a model as a person writes it."""
    return {
        "apiVersion": "specmodel.dev/v1alpha1",
        "kind": "SpeculativeModel",
        "metadata": {"name": "agent"},
        "spec": {
            "model": {"uri": "hf://example/target"},
            "drafter": {"uri": "hf://example/drafter"},
            "sla": {"limits": list(limits), "confidencePercent": confidence},
            **changes,
        },
    }


def saved_run(name: str, *cells: Cell, gamma: int = 0, gpus: int = 1, **changes: Any) -> Json:
    """Return a BenchmarkRun as `kubectl get bench -o yaml` prints it."""
    requests = [
        {"concurrency": one.concurrency, "temperature": "0", "minRequests": 24, "maxRequests": 600} for one in cells
    ]
    spec = {
        "target": {"url": "http://x:8000", "model": "agent"},
        "candidate": {"digest": "abc", "gpusPerReplica": gpus, "speculativeTokens": gamma, "weights": "None"},
        "cells": requests or [{"concurrency": 1, "temperature": "0", "minRequests": 24, "maxRequests": 600}],
        **changes,
    }
    status = {
        "cells": [one.to_wire() for one in cells],
        "provenance": {"engine": "replay"},
        "conditions": [
            {
                "type": "Complete",
                "status": "True",
                "reason": "CellsComplete",
                "message": "all",
                "lastTransitionTime": "2026-11-30T06:00:00Z",
            }
        ],
    }
    return {
        "apiVersion": "specmodel.dev/v1alpha1",
        "kind": "BenchmarkRun",
        "metadata": {"name": name, "namespace": "shop", "labels": {"a": "b"}},
        "spec": spec,
        "status": status,
    }


@pytest.fixture
def decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command and returns exit code, stdout and stderr."""

    def run(model: Json | str, results: Path, output: str = "json") -> tuple[int, str, str]:
        file = tmp_path / "model.yaml"
        file.write_text(model if isinstance(model, str) else yaml.safe_dump(model))
        code = main(["decide", "-f", str(file), "--results", str(results), "--output", output])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder for results."""
    made = tmp_path / "results"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("model", "shape", "capacity", "rate"),
    [
        (manifest(limit(2600)), (1, 3, "None"), 32, "17.24"),
        (manifest(limit(1100)), (2, 3, "None"), 16, "17.32"),
        (
            manifest(limit(1600, percent=50), limit(2600), quantization={"weights": ["None", "FP8"]}),
            (1, 3, "FP8"),
            32,
            "22.32",
        ),
        (
            manifest(
                limit(1100),
                workload={"demand": {"requestsPerSecond": "12"}, "targetUtilizationPercent": 100},
            ),
            (2, 3, "None"),
            16,
            "17.32",
        ),
    ],
)
def test_the_measured_files_as_they_are_give_the_ground_truth(
    decide: Run, model: Json, shape: tuple[int, int, str], capacity: int, rate: str
) -> None:
    code, out, err = decide(model, H200)
    assert (code, err) == (0, "")
    status = json.loads(out)
    serving = status["serving"]
    assert (serving["gpusPerReplica"], serving["speculativeTokens"], serving["weights"]) == shape
    assert (serving["replicas"], serving["capacity"], serving["requestsPerSecond"]) == (1, capacity, rate)
    assert serving["engine"] == "vllm"
    assert {"reason", "message", "runnerUp"} <= set(status["decision"])
    assert {one["type"]: one["status"] for one in status["conditions"]} == {"Benchmarked": "True", "WithinSla": "True"}


@pytest.mark.parametrize("generation", [-1, True, "x", [], 1.5])
def test_a_generation_that_is_none_is_not_shown(decide: Run, generation: Any) -> None:
    model = {**manifest(limit(2600)), "metadata": {"name": "agent", "generation": generation}}
    code, out, _ = decide(model, H200)
    assert code == 0
    assert {one["observedGeneration"] for one in json.loads(out)["conditions"]} == {0}


def test_nobody_eligible_is_exit_3_with_the_nearest_miss(decide: Run) -> None:
    code, out, err = decide(manifest(limit(600)), H200)
    assert code == 3
    assert "nearest miss: 2 GPUs γ=3, E2E latency P99 682.48 ms at concurrency 1, limit 600 ms" in err
    conditions = {one["type"]: one for one in json.loads(out)["conditions"]}
    assert conditions["WithinSla"]["status"] == "False"
    assert "682.48" in conditions["WithinSla"]["message"]


@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_the_same_files_give_the_same_words(decide: Run, output: str) -> None:
    first = decide(manifest(limit(2600)), H200, output)
    assert decide(manifest(limit(2600)), H200, output) == first
    assert first[0] == 0
    if output == "yaml":
        assert yaml.safe_load(first[1]) == json.loads(decide(manifest(limit(2600)), H200)[1])
    if output == "table":
        assert max(len(line) for line in first[1].splitlines()) <= 100
        assert "*  1 GPU γ=3" in first[1]


def test_percentiles_at_a_confidence_are_inconclusive(decide: Run) -> None:
    code, out, _ = decide(manifest(limit(2600), confidence=90), H200)
    assert code == 3
    status = json.loads(out)
    assert {(one["verdict"], one["reason"]) for one in status["candidates"]} == {("Inconclusive", "SamplesMissing")}
    assert {one["type"]: one["status"] for one in status["conditions"]}["WithinSla"] == "Unknown"


def test_samples_at_a_confidence_are_judged(decide: Run) -> None:
    code, out, _ = decide(manifest(limit(2600, percent=50), confidence=90), H200_SAMPLES)
    assert code == 0
    assert json.loads(out)["serving"]["capacity"] == 32


def test_cells_that_are_lacking_leave_that_candidate_unmeasured(decide: Run, folder: Path) -> None:
    for path in H200.glob("bf16-*.json"):
        shutil.copy(path, folder)
    results = json.loads((folder / "bf16-tp2.json").read_text())
    (folder / "bf16-tp2.json").write_text(json.dumps(results[:2]))
    code, out, _ = decide(manifest(limit(2600)), folder)
    assert code == 0
    verdicts = {(one["gpusPerReplica"], one["speculativeTokens"]): one for one in json.loads(out)["candidates"]}
    assert verdicts[2, 0]["verdict"] == "Unmeasured"
    assert "the results lack 3 of 5 cells: concurrency 8" in verdicts[2, 0]["message"]
    assert verdicts[1, 3]["verdict"] == "Eligible"


def test_one_result_a_file_lines_of_results_and_other_files_are_read_alike(decide: Run, folder: Path) -> None:
    (folder / "README.md").write_text("no result")
    (folder / "server.metrics.txt").write_text("vllm:x 1")
    results = json.loads((H200 / "bf16-tp1-g3.json").read_text())
    (folder / "one.json").write_text(json.dumps(results[0]))
    (folder / "appended.json").write_text("\n".join(json.dumps(one) for one in results[1:]))
    code, out, _ = decide(manifest(limit(2600)), folder)
    assert code == 0
    assert json.loads(out)["serving"]["capacity"] == 32


def test_the_shape_may_come_from_metadata(decide: Run, folder: Path) -> None:
    results = json.loads((H200 / "fp8-tp1-g3.json").read_text())
    for one in results:
        del one["config"]
        one.update(gpus_per_replica="1", speculative_tokens="3", weights="FP8")
    (folder / "x.json").write_text(json.dumps(results))
    code, out, _ = decide(manifest(limit(2600), quantization={"weights": ["FP8"]}), folder)
    assert code == 0
    assert json.loads(out)["serving"]["weights"] == "FP8"


def test_saved_runs_are_read_from_documents_lists_and_json_and_say_that_they_were_replayed(
    decide: Run, folder: Path
) -> None:
    cells = [cell(level, (100.0,) * 192, rate=level) for level in (1, 4, 8, 16, 32)]
    fast = [cell(level, (100.0,) * 192, rate=2 * level, gamma=3) for level in (1, 4, 8, 16, 32)]
    runs = [saved_run("a", *cells[:2]), saved_run("b", *cells[2:])]
    (folder / "docs.yaml").write_text(yaml.safe_dump_all(runs))
    listed = {"apiVersion": "v1", "kind": "List", "items": [saved_run("c", *fast[:3], gamma=3)]}
    (folder / "list.yml").write_text(yaml.safe_dump(listed))
    (folder / "run.json").write_text(json.dumps(saved_run("d", *fast[3:], gamma=3)))
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest()))
    code, out, _ = decide(manifest(limit(500), hardware={"gpusPerReplica": [1]}), folder)
    assert code == 0
    status = json.loads(out)
    assert (status["serving"]["speculativeTokens"], status["serving"]["engine"]) == (3, "replay")
    assert status["decision"]["message"].endswith("(replayed, not a GPU)")
    assert status["candidates"][1]["runs"] == ["c", "d"]


def test_a_run_of_another_workload_is_left_out_and_told(decide: Run, folder: Path) -> None:
    run = saved_run("a", cell(1), dataset={"synthetic": {"inputTokens": 9, "outputTokens": 256}})
    (folder / "a.yaml").write_text(yaml.safe_dump(run))
    code, _, err = decide(manifest(limit(500)), folder)
    assert code == 2
    assert "a.yaml: left out: spec.dataset is another" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a: [", "is no YAML"),
        ("just words", "kind: must be SpeculativeModel"),
        ("kind: Deployment", "found Deployment"),
        (yaml.safe_dump({**manifest(), "apiVersion": "v1"}), "apiVersion: must be specmodel.dev/v1alpha1"),
        (yaml.safe_dump({**manifest(), "specs": {}}), "specs: there is no such field"),
        (yaml.safe_dump({**manifest(), "metadata": {"name": "Agent"}}), "metadata.name"),
        (yaml.safe_dump({**manifest(), "metadata": {"name": float("nan")}}), "metadata.name"),
        (
            yaml.safe_dump({**manifest(), "apiVersion": [["v1"]]}),
            "apiVersion: must be specmodel.dev/v1alpha1, not a list",
        ),
        (yaml.safe_dump(manifest(workload={"concurrency": [0]})), "spec.workload.concurrency[0]: "),
        (yaml.safe_dump(manifest(workload={"concurency": [1]})), "spec.workload.concurency: there is no such field"),
        (yaml.safe_dump(manifest(workload={"concurency": [1]})), "did you mean concurrency?"),
        (yaml.safe_dump(manifest(workload={"temperature": [0]})), 'write it in quotes, for example "0.5"'),
        (yaml.safe_dump({**manifest(), "spec": {}}), "spec.model: is required"),
        (yaml.safe_dump(manifest()) + "kind: SpeculativeModel\n", "'kind' is written twice"),
        (yaml.safe_dump_all([manifest(), manifest()]), "holds 2 models"),
        (yaml.safe_dump(manifest(engine={"extraArgs": ["--port=1"]})), "ReservedFlag: spec.engine.extraArgs[0]"),
        (yaml.safe_dump(manifest(engine={"image": "vllm:nightly"})), "EngineVersionUnknown"),
    ],
)
def test_a_model_that_cannot_be_used_is_exit_2_with_the_path(decide: Run, text: str, words: str) -> None:
    code, out, err = decide(text, H200)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def raw_text(**changes: Any) -> str:
    """Return a raw result in which keys are changed, or removed where the value is `...`."""
    return json.dumps({key: value for key, value in raw_result(**changes).items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("{", "is no JSON"),
        ("[]", "is an empty list"),
        ("3", "must be an object"),
        (raw_text(p99_e2el_ms=...), "p99_e2el_ms: is missing, and the SLA limits it"),
        (raw_text(p99_e2el_ms=float("nan")), "NaN is no number (key p99_e2el_ms)"),
        (raw_text(p99_e2el_ms=-1), "p99_e2el_ms: must be at least 0"),
        (raw_text(p99_e2el_ms="fast"), "p99_e2el_ms: must be a number, not 'fast'"),
        (raw_text(duration=None), "duration: must be a number"),
        (raw_text(request_throughput=...), "request_throughput: is missing"),
        (raw_text(max_concurrency=...), "max_concurrency: is missing"),
        (raw_text(max_concurrency=1.5), "max_concurrency: must be a whole number"),
        (raw_text(completed=-3), "completed: must be at least 0"),
        (raw_text(completed=True), "completed: must be a number"),
        (raw_text(completed=10**400), "completed: must be at least 0 and below 1e+09, not 1000"),
        (raw_text(temperature="hot"), "temperature: must be a number"),
        (raw_text(temperature="1e999999999"), "temperature: must be a number"),
        (raw_text(config=f"bf16-tp{'9' * 5000}"), "config: is 'bf16-tp999"),
        (raw_text(request_rate=1.0), "request_rate: must be inf, not 1.0"),
        (raw_text(p99_e2el_ms=1.3, p50_e2el_ms=1.2), "p99_e2el_ms: 1.3 ms cannot be at"),
        (raw_text(p99_e2el_ms=1.3e6, p50_e2el_ms=1.2e6), "p50_e2el_ms: 1.2e+06 ms cannot be at"),
        (raw_text().replace('"duration"', '"duration": 1, "duration"'), "'duration' is written twice"),
        (raw_text(config="bf16-x2"), "config: is 'bf16-x2'"),
        (raw_text(config=...), "config: is missing"),
        (raw_text(config=..., gpus_per_replica=1), "speculative_tokens: is missing"),
        (raw_text(config=..., gpus_per_replica=0, speculative_tokens=3, weights="FP8"), "gpus_per_replica: must be"),
        (raw_text(config=..., gpus_per_replica=1, speculative_tokens=3, weights="int4"), "weights: must be one of"),
        (raw_text(samples_us={"e2el": [1, -1]}), "samples_us.e2el[1]: must be at least 0"),
        (raw_text() + raw_text(), "stands twice, first in"),
    ],
)
def test_a_result_that_cannot_be_used_is_exit_2_with_file_and_key(
    decide: Run, folder: Path, text: str, words: str
) -> None:
    (folder / "broken.json").write_text(text)
    code, out, err = decide(manifest(limit(2600)), folder)
    assert (code, out) == (2, "")
    assert "broken.json" in err
    assert words in err


def test_every_broken_file_is_told_at_once(decide: Run, folder: Path) -> None:
    (folder / "a.json").write_text(raw_text(duration="x"))
    (folder / "b.json").write_text(raw_text(completed="x"))
    _, _, err = decide(manifest(limit(2600)), folder)
    assert "a.json: duration" in err
    assert "b.json: completed" in err


def test_a_percentile_beside_the_usual_ones_is_judged_where_it_is_there(decide: Run, folder: Path) -> None:
    for path in H200.glob("bf16-*.json"):
        results = [{**one, "p98_e2el_ms": 1000.0} for one in json.loads(path.read_text())]
        (folder / path.name).write_text(json.dumps(results))
    assert decide(manifest(limit(1000, percent=98)), folder)[0] == 0
    assert decide(manifest(limit(999, percent=98)), folder)[0] == 3
    code, _, err = decide(manifest(limit(999, percent=97)), folder)
    assert code == 2
    assert "p97_e2el_ms: is missing" in err


def broken_run(**status: Any) -> Json:
    """Return a saved run whose first cell or status is changed."""
    run = saved_run("a", cell(1))
    run["status"]["cells"][0].update(status)
    return run


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is no YAML"),
        ("- 1", "must be an object"),
        ("a: 1", "kind: is missing"),
        ("!!bool x", "is no YAML"),
        ("!!int ''", "is no YAML"),
        ("&a\nkind: List\nitems: [*a]", "items[0]: kind: must be BenchmarkRun, not a list in a list"),
        ("kind: List", "items: must be a list"),
        (yaml.safe_dump({**saved_run("a"), "apiVersion": "v2"}), "apiVersion: must be specmodel.dev/v1alpha1"),
        (yaml.safe_dump(broken_run(completed=-1)), "status.cells[0].completed: "),
        (yaml.safe_dump(broken_run(requestsPerSecond=".nan")), "status.cells[0].requestsPerSecond: "),
        (yaml.safe_dump(saved_run("a", cells=[])), "spec.cells: "),
        (yaml.safe_dump(saved_run("a", candidate=None)), "spec.candidate: is missing"),
        (yaml.safe_dump_all([saved_run("a", cell(1)), saved_run("a", cell(4))]), "metadata.name: a stands twice"),
    ],
)
def test_a_saved_run_that_cannot_be_used_is_exit_2_with_file_and_path(
    decide: Run, folder: Path, text: str, words: str
) -> None:
    (folder / "broken.yaml").write_text(text)
    code, out, err = decide(manifest(limit(500)), folder)
    assert (code, out) == (2, "")
    assert "broken.yaml" in err
    assert words in err


def test_results_that_are_not_there_are_exit_2(decide: Run, folder: Path, tmp_path: Path) -> None:
    assert decide(manifest(), folder)[0] == 2
    assert "holds no results" in decide(manifest(), folder)[2]
    assert "there is no such folder" in decide(manifest(), tmp_path / "nowhere")[2]
    assert "is no folder" in decide(manifest(), H200 / "README.md")[2]
    shutil.copy(H200 / "fp8-tp1.json", folder)
    code, _, err = decide(manifest(), folder)
    assert code == 2
    assert "no result is for a candidate of the model" in err
    assert "found 1 GPU FP8 no drafter" in err


def test_a_file_that_cannot_be_read_is_exit_2(decide: Run, folder: Path) -> None:
    (folder / "x.json").mkdir()
    assert "x.json: cannot be read" in decide(manifest(), folder)[2]
    (folder / "x.json").rmdir()
    (folder / "x.json").write_bytes(b"\xff\xfe\x00")
    assert "is no UTF-8 text" in decide(manifest(), folder)[2]


def test_what_is_no_plain_file_or_folder_is_exit_2_and_not_waited_for(decide: Run, folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")
    (folder / "endless.json").symlink_to("/dev/zero")
    code, _, err = decide(manifest(), folder)
    assert code == 2
    assert "pipe.json: is no file that can be read" in err
    assert "endless.json: is no file that can be read" in err
    code, _, err = decide(manifest(), Path("a" * 300))
    assert code == 2
    assert "cannot be read: File name too long" in err


def test_a_byte_order_mark_is_no_part_of_a_result(decide: Run, folder: Path) -> None:
    (folder / "x.json").write_text((H200 / "bf16-tp1.json").read_text(), encoding="utf-8-sig")
    assert decide(manifest(limit(2600)), folder)[0] == 0


def test_it_prints_in_the_terminals_encoding_and_says_when_nobody_reads() -> None:
    program = [sys.executable, "-c", "from specmodel.cli.main import main; raise SystemExit(main())", "decide"]
    model = str(Path(__file__).parents[2] / "examples" / "commerce-agent.yaml")
    program += ["-f", model, "--results", str(H200)]
    narrow = subprocess.run(
        program, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )
    assert (narrow.returncode, narrow.stderr) == (0, "")
    assert "1 GPU \\u03b3=3" in narrow.stdout
    with Path("/dev/full").open("w") as full:
        lost = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert lost.returncode == 2
    assert lost.stderr == "specmodel decide: stdout: cannot be written: No space left on device\n"


def test_detailed_results_give_samples(decide: Run, folder: Path) -> None:
    one = raw_result(config="bf16-tp1")
    one = {key: value for key, value in one.items() if not key.startswith(("p50", "p9", "spec_decode"))}
    n = 300
    one.update(ttfts=[0.1] * n, itls=[[0.01] * 90] * n, errors=[""] * n, output_lens=[91] * n, completed=n)
    one.update(duration=n / 1.25, request_throughput=1.25, total_output_tokens=91 * n)
    (folder / "x.json").write_text(json.dumps(one))
    workload = {"concurrency": [1]}
    code, out, err = decide(manifest(limit(1001), confidence=90, workload=workload), folder)
    assert (code, err) == (0, "")
    assert json.loads(out)["serving"]["p99Milliseconds"] == 1000


def test_every_command_of_the_table_answers_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(one.name in printed for one in COMMANDS)
    with pytest.raises(SystemExit) as ended:
        main(["decide", "--help"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
