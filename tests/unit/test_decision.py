"""The choice: the ground truth on measured data, then each clause of the rule, then what holds of every field."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.api.conditions import REASONS
from specmodel.api.model import SpeculativeModel
from specmodel.domain.assessment import Assessment, Verdict, assess
from specmodel.domain.candidate import Candidate
from specmodel.domain.decision import Decision, Sla, decide, decide_model
from specmodel.domain.measurement import Measurement
from specmodel.reconcile.summary import benchmarked, candidate_statuses, decision_status, within_sla
from tests.support.measured import (
    H200,
    H200_SAMPLES,
    candidate_of,
    candidates_of,
    cell,
    decide_h200,
    everywhere,
    h200,
    limit,
    measured,
    model_of,
    shape_of,
)

BOTH: dict[str, Any] = {"quantization": {"weights": ["None", "FP8"]}}


def at_12(percent: int = 100) -> dict[str, Any]:
    """Return a demand of 12 req/s."""
    return {"demand": {"requestsPerSecond": "12"}, "targetUtilizationPercent": percent}


def figures(decision: Decision, gpus: int, gamma: int, weights: str = "None") -> Assessment:
    """Return the assessment of one shape."""
    return next(one for one in decision.assessments if shape_of(one.candidate) == (gpus, gamma, weights))


# --- ground truth -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [H200, H200_SAMPLES], ids=["percentiles", "samples"])
def test_bf16_within_2600_ms_is_one_gpu_with_the_drafter(folder: Any) -> None:
    decision = decide_h200(model_of(limit(2600)), folder=folder)
    assert shape_of(decision.serve) == (1, 3, "None")
    assert decision.within_sla is Sla.WITHIN
    if folder == H200:
        chosen = figures(decision, 1, 3)
        assert (chosen.capacity, round(chosen.throughput or 0, 2)) == (32, 17.24)
        assert round(1 / (chosen.throughput or 1), 3) == 0.058
        assert round(2 / (figures(decision, 2, 3).throughput or 1), 3) == 0.078
        assert "0.058 GPU·s per request, capacity 32 at 17.24 req/s" in decision.message


@pytest.mark.parametrize("folder", [H200, H200_SAMPLES], ids=["percentiles", "samples"])
def test_bf16_within_1100_ms_is_two_gpus_with_the_drafter(folder: Any) -> None:
    decision = decide_h200(model_of(limit(1100)), folder=folder)
    assert shape_of(decision.serve) == (2, 3, "None")
    if folder == H200:
        chosen = figures(decision, 2, 3)
        assert (chosen.capacity, round(chosen.throughput or 0, 2)) == (16, 17.32)
        assert figures(decision, 1, 3).capacity == 4
        assert decision.message == (
            "2 GPUs γ=3 costs least: 0.115 GPU·s per request, capacity 16 at 17.32 req/s, "
            "against 0.231 GPU·s per request for 1 GPU γ=3."
        )


@pytest.mark.parametrize("folder", [H200, H200_SAMPLES], ids=["percentiles", "samples"])
def test_with_fp8_within_1600_and_2600_ms_is_one_gpu_fp8_with_the_drafter(folder: Any) -> None:
    decision = decide_h200(model_of(limit(1600, percent=50), limit(2600), **BOTH), folder=folder)
    assert shape_of(decision.serve) == (1, 3, "FP8")
    if folder == H200:
        chosen = figures(decision, 1, 3, "FP8")
        assert (chosen.capacity, round(chosen.throughput or 0, 2)) == (32, 22.32)


def test_bf16_within_1100_ms_for_12_requests_a_second_is_one_replica_of_two_gpus() -> None:
    decision = decide_h200(model_of(limit(1100), workload=at_12()))
    assert shape_of(decision.serve) == (2, 3, "None")
    assert decision.replicas == 1
    assert figures(decision, 2, 3).gpus == 2
    assert figures(decision, 1, 3).replicas == 3
    assert "2 GPUs (1 replica)" in decision.message
    assert "3 GPUs (3 replicas) for 1 GPU γ=3" in decision.message


def test_within_600_ms_nobody_is_eligible_and_the_nearest_miss_is_named() -> None:
    decision = decide_h200(model_of(limit(600)))
    assert decision.reason == "BaselineFallback"
    assert shape_of(decision.serve) == (1, 0, "None")
    assert decision.within_sla is Sla.OUTSIDE
    assert decision.nearest_miss is not None
    assert (round(decision.nearest_miss.measured_milliseconds, 2), decision.nearest_miss.concurrency) == (682.48, 1)
    assert "2 GPUs γ=3, E2E latency P99 682.48 ms at concurrency 1, limit 600 ms" in decision.message


@pytest.mark.parametrize(
    ("level", "weights", "halves_the_gpus"),
    [(8, "None", True), (16, "None", False), (32, "None", False), (32, "FP8", True)],
)
def test_where_one_gpu_with_the_drafter_does_the_work_of_two_without(
    level: int, weights: str, halves_the_gpus: bool
) -> None:
    model = model_of(**BOTH)
    table = h200(model)
    fast = table[candidate_of(model, 1, 3, weights).digest].cell(level, "0")
    two = table[candidate_of(model, 2, 0, "None").digest].cell(level, "0")
    assert fast is not None
    assert two is not None
    assert (float(fast.requests_per_second) > float(two.requests_per_second)) is halves_the_gpus


def test_a_shape_that_the_table_lacks_is_unmeasured_while_the_others_are_judged() -> None:
    decision = decide_h200(model_of(limit(2600), drafter={"uri": "hf://a/d", "speculativeTokens": [3, 5]}))
    assert shape_of(decision.serve) == (1, 3, "None")
    lacking = figures(decision, 2, 5)
    assert (lacking.verdict, lacking.reason) == (Verdict.UNMEASURED, "CellsMissing")
    assert "the results lack 5 of 5 cells" in lacking.message


# --- while measuring --------------------------------------------------------------------------------------------------


def test_on_first_install_nothing_serves_until_all_that_could_win_is_measured() -> None:
    model = model_of(limit(500))
    one, *_ = candidates_of(model)
    decision = decide_model(model, candidates_of(model), {one.digest: everywhere(one, 100, 10)}, None)
    assert (decision.serve, decision.reason, decision.within_sla) == (None, "Undetermined", Sla.UNKNOWN)
    assert [shape_of(next_.candidate) for next_ in decision.measure] == [(1, 3, "None"), (2, 0, "None"), (2, 3, "None")]
    assert "1 of 4 candidates are judged" in decision.message


def test_while_challengers_are_measured_the_incumbent_serves() -> None:
    model = model_of(limit(500))
    incumbent = candidate_of(model, 1, 3)
    decision = decide_model(model, candidates_of(model), {incumbent.digest: everywhere(incumbent, 100, 10)}, incumbent)
    assert decision.serve == incumbent
    assert decision.within_sla is Sla.WITHIN
    assert len(decision.measure) == 3


def test_a_candidate_that_cannot_be_measured_or_failed_holds_up_nothing() -> None:
    model = model_of(limit(500))
    table = {one.digest: measured(one, fault=("WaitingForGPUs", "none free")) for one in candidates_of(model)}
    one = candidate_of(model, 1, 0)
    broken = candidate_of(model, 1, 3)
    table[one.digest] = everywhere(one, 100, 10)
    table[broken.digest] = measured(broken, failure=("ServerFailed", "ValueError: no such drafter"))
    decision = decide_model(model, candidates_of(model), table, None)
    assert shape_of(decision.serve) == (1, 0, "None")
    assert (decision.reason, decision.measure) == ("OnlyEligible", ())
    assert benchmarked(decision).reason == "MeasurementBlocked"


def test_a_larger_topology_that_cannot_cost_less_is_not_measured() -> None:
    model = model_of(limit(500), workload=at_12())
    table = {c.digest: everywhere(c, 100, 20) for c in candidates_of(model) if c.gpus_per_replica == 1}
    decision = decide_model(model, candidates_of(model), table, None)
    assert shape_of(decision.serve) == (1, 0, "None")
    assert decision.measure == ()
    assert [figures(decision, 2, gamma).reason for gamma in (0, 3)] == ["CannotWin", "CannotWin"]
    assert "2 more cannot win" in benchmarked(decision).message


def test_one_that_could_still_cost_the_same_or_less_is_measured() -> None:
    model = model_of(limit(500), workload=at_12())
    table = {c.digest: everywhere(c, 100, 9) for c in candidates_of(model) if c.gpus_per_replica == 1}
    # Two replicas of one GPU are as dear as one replica of two GPUs, which may win by its latency.
    assert len(decide_model(model, candidates_of(model), table, None).measure) == 2


def test_without_a_demand_nothing_bounds_a_candidate_and_all_are_measured() -> None:
    model = model_of(limit(500))
    table = {c.digest: everywhere(c, 100, 1000) for c in candidates_of(model) if c.gpus_per_replica == 1}
    assert len(decide_model(model, candidates_of(model), table, None).measure) == 2


# --- the objectives and ties ------------------------------------------------------------------------------------------


def field(model: SpeculativeModel, **rates: tuple[float, float]) -> dict[str, Measurement]:
    """Return measurements of every candidate: `g1d3=(milliseconds, req/s)`; those not named fail the SLA."""
    table = {}
    for candidate in candidates_of(model):
        name = f"g{candidate.gpus_per_replica}d{candidate.speculative_tokens}"
        table[candidate.digest] = everywhere(candidate, *rates.get(name, (9999.0, 1.0)))
    return table


def choose(model: SpeculativeModel, incumbent: Candidate | None = None, **rates: tuple[float, float]) -> Decision:
    """Return the decision on a made-up field."""
    return decide_model(model, candidates_of(model), field(model, **rates), incumbent)


def test_equal_cost_goes_to_the_lower_median() -> None:
    decision = choose(model_of(limit(500)), g1d0=(200, 10), g1d3=(100, 10), g2d0=(50, 20))
    assert shape_of(decision.serve) == (2, 0, "None")
    assert "loses by its median E2E latency, 100.00 ms against 50.00 ms" in decision.message


def test_equal_cost_and_median_go_to_fewer_gpus_then_fewer_tokens() -> None:
    decision = choose(model_of(limit(500)), g1d0=(100, 10), g1d3=(100, 10), g2d0=(100, 20))
    assert shape_of(decision.serve) == (1, 0, "None")


def test_highest_throughput_counts_the_replicas_that_fit_the_budget() -> None:
    model = model_of(limit(500), selection={"objective": "HighestThroughput"}, hardware={"gpuBudget": 3})
    decision = choose(model, g1d3=(100, 10), g2d3=(100, 25))
    assert shape_of(decision.serve) == (1, 3, "None")
    assert "30.00 req/s (3 × 10.00)" in decision.message


def test_lowest_latency_compares_the_first_limit_where_one_replica_would_run() -> None:
    model = model_of(
        limit(500),
        selection={"objective": "LowestLatency"},
        workload={"concurrency": [1, 4, 8], "demand": {"concurrency": 4}},
    )
    slow_alone, fast_alone = candidate_of(model, 1, 0), candidate_of(model, 1, 3)
    table = field(model)
    table[slow_alone.digest] = measured(slow_alone, *(cell(c, (m,) * 60) for c, m in ((1, 300), (4, 310), (8, 320))))
    table[fast_alone.digest] = measured(
        fast_alone, *(cell(c, (m,) * 60, gamma=3) for c, m in ((1, 100), (4, 400), (8, 450)))
    )
    decision = decide_model(model, candidates_of(model), table, None)
    assert decision.serve == slow_alone
    assert "310.00 ms at concurrency 4" in decision.message


def test_replicas_are_never_fewer_than_the_specs_minimum() -> None:
    assert choose(model_of(limit(500), serving={"replicas": 3}), g1d3=(100, 10)).replicas == 3
    assert choose(model_of(limit(500), serving={"replicas": 0}), g1d3=(100, 10)).replicas == 0
    demanding = model_of(limit(500), serving={"replicas": 1}, workload=at_12())
    assert choose(demanding, g1d3=(100, 10)).replicas == 2


# --- the incumbent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gain", "rate", "winner", "reason"),
    [
        (5, 10.4, (1, 0, "None"), "IncumbentKept"),
        (5, 10.6, (1, 3, "None"), "LowestCost"),
        (0, 10.0, (1, 0, "None"), "IncumbentKept"),
        (0, 10.1, (1, 3, "None"), "LowestCost"),
        (100, 900.0, (1, 0, "None"), "IncumbentKept"),
    ],
)
def test_a_challenger_must_be_better_by_the_gain(
    gain: int, rate: float, winner: tuple[int, int, str], reason: str
) -> None:
    model = model_of(limit(500), selection={"minGainPercent": gain})
    decision = choose(model, candidate_of(model, 1, 0), g1d0=(100, 10), g1d3=(90, rate))
    assert (shape_of(decision.serve), decision.reason) == (winner, reason)


def test_the_best_incumbent_is_explained_as_it_was_when_it_was_chosen() -> None:
    model = model_of(limit(500))
    rates: dict[str, Any] = {"g1d0": (100.0, 10.0), "g1d3": (90.0, 20.0)}
    first = choose(model, **rates)
    again = choose(model, first.serve, **rates)
    assert again == first


def test_an_incumbent_that_violates_is_replaced_whatever_the_gain() -> None:
    model = model_of(limit(500))
    decision = choose(model, candidate_of(model, 1, 3), g1d3=(900, 100), g2d0=(100, 10))
    assert shape_of(decision.serve) == (2, 0, "None")


def test_nobody_eligible_leaves_the_incumbent() -> None:
    model = model_of(limit(500))
    decision = choose(model, candidate_of(model, 2, 3))
    assert shape_of(decision.serve) == (2, 3, "None")
    assert (decision.reason, decision.within_sla) == ("IncumbentFallback", Sla.OUTSIDE)


def test_the_fallback_stays_the_fallback_once_it_serves() -> None:
    model = model_of(limit(500))
    first = choose(model)
    assert first.reason == "BaselineFallback"
    assert choose(model, first.serve) == first


def old(model: SpeculativeModel, gpus: int = 1, gamma: int = 3, **changes: Any) -> Candidate:
    """Return an incumbent that differs from the spec's candidate."""
    return replace(candidate_of(model, gpus, gamma), **changes)


def with_old(
    model: SpeculativeModel, incumbent: Candidate, now: tuple[float, float], **rates: tuple[float, float]
) -> Decision:
    """Return the decision with an incumbent that the spec no longer enumerates."""
    table = {**field(model, **rates), incumbent.digest: everywhere(incumbent, *now)}
    return decide_model(model, candidates_of(model), table, incumbent)


def test_the_old_drafter_competes_with_the_new_one() -> None:
    model = model_of(limit(500))
    incumbent = old(model, drafter_uri="hf://example/old")
    kept = with_old(model, incumbent, (100, 20), g1d3=(100, 10))
    assert (kept.serve, kept.reason) == (incumbent, "IncumbentKept")
    assert "hf://example/old" in kept.message
    promoted = with_old(model, incumbent, (100, 10), g1d3=(100, 20))
    assert promoted.serve == candidate_of(model, 1, 3)


def test_the_old_drafter_is_measured_again_when_its_measurement_is_gone() -> None:
    model = model_of(limit(500))
    incumbent = old(model, drafter_revision="v0")
    decision = decide_model(model, candidates_of(model), field(model, g1d3=(100, 10)), incumbent)
    assert decision.serve == incumbent
    assert [next_.candidate for next_ in decision.measure] == [incumbent]


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_image": "vllm/vllm-openai:v0.24.0"},
        {"model_uri": "hf://example/older"},
        {"env": (("A", "1"),)},
        {"speculative_tokens": 7},
        {"weights": "FP8"},
    ],
    ids=["image", "model", "env", "tokens", "weights"],
)
def test_what_the_spec_has_given_up_serves_until_somebody_is_eligible(changes: dict[str, Any]) -> None:
    model = model_of(limit(500))
    incumbent = old(model, **changes)
    waits = decide_model(model, candidates_of(model), {}, incumbent)
    assert waits.serve == incumbent
    assert incumbent not in [next_.candidate for next_ in waits.measure]
    stays = with_old(model, incumbent, (100, 99))
    assert (stays.serve, stays.reason) == (incumbent, "IncumbentFallback")
    replaced = with_old(model, incumbent, (100, 99), g1d3=(100, 1))
    assert replaced.serve == candidate_of(model, 1, 3)


def test_another_placement_is_the_same_candidate() -> None:
    model = model_of(limit(500))
    mine = candidate_of(model, 1, 3)
    incumbent = replace(mine, placement=replace(mine.placement, node_selector=(("zone", "a"),)))
    decision = choose(model, incumbent, g1d3=(100, 10))
    assert decision.serve == mine
    assert len(decision.assessments) == 4


# --- nobody is eligible -----------------------------------------------------------------------------------------------


def test_an_undecided_candidate_may_serve_without_a_promise() -> None:
    model = model_of(limit(500), confidence=90)
    table = field(model)
    maybe = candidate_of(model, 2, 0)
    table[maybe.digest] = measured(maybe, cell(1, (100,) * 594 + (600,) * 6))
    decision = decide_model(model, candidates_of(model), table, None)
    assert (decision.serve, decision.reason, decision.within_sla) == (maybe, "InconclusiveServes", Sla.UNKNOWN)
    assert within_sla(decision, None, model.spec).reason == "Undecided"


def test_a_baseline_that_cannot_run_leaves_the_next_topology_to_serve() -> None:
    model = model_of(limit(500))
    table = field(model)
    small = candidate_of(model, 1, 0)
    table[small.digest] = measured(small, failure=("ServerFailed", "CUDA out of memory"))
    assert shape_of(decide_model(model, candidates_of(model), table, None).serve) == (2, 0, "None")


def test_when_not_even_a_baseline_runs_nothing_serves() -> None:
    model = model_of(limit(500))
    table = {c.digest: measured(c, failure=("ServerFailed", "No such model.")) for c in candidates_of(model)}
    decision = decide_model(model, candidates_of(model), table, None)
    assert (decision.serve, decision.reason) == (None, "NobodyEligible")
    assert decision.message.endswith(": No such model. Not even a baseline without drafter can run.")
    assert within_sla(decision, None, model.spec).status.value == "Unknown"


def test_percentiles_alone_at_a_confidence_are_undecided_and_the_best_of_them_serves() -> None:
    decision = decide_h200(model_of(limit(1100), confidence=90))
    assert shape_of(decision.serve) == (2, 3, "None") or decision.reason == "InconclusiveServes"
    assert {one.reason for one in decision.assessments} == {"SamplesMissing"}


# --- words ------------------------------------------------------------------------------------------------------------


def test_replayed_figures_say_so_wherever_they_are_told() -> None:
    model = model_of(limit(500))
    table = {key: replace(one, engine="replay") for key, one in field(model, g1d3=(100, 10)).items()}
    decision = decide_model(model, candidates_of(model), table, None)
    assert decision.message.endswith("(replayed, not a GPU)")
    assert "(replayed, not a GPU)" in within_sla(decision, None, model.spec).message
    assert {one.engine for one in candidate_statuses(decision)} == {"replay"}
    assert "replayed" not in choose(model, g1d3=(100, 10)).message


def test_the_runner_up_is_named_with_the_number_that_lost() -> None:
    decision = decide_h200(model_of(limit(1100)))
    assert decision.runner_up == "1 GPU γ=3: 0.231 GPU·s per request against 0.115 GPU·s per request"


def test_costs_of_a_fast_model_are_told_apart() -> None:
    message = choose(model_of(limit(500)), g1d0=(200, 157.9), g1d3=(100, 169.4)).message
    assert "0.0059 GPU·s per request" in message
    assert "against 0.00633 GPU·s per request" in message


# --- what holds of every field ----------------------------------------------------------------------------------------

MODELS = [
    model_of(limit(500), workload={"concurrency": [1, 4, 8], **demand}, selection=selection)
    for demand, selection in (
        ({}, {}),
        (at_12(80), {}),
        ({"demand": {"concurrency": 12}}, {}),
        ({}, {"objective": "HighestThroughput"}),
        ({}, {"objective": "LowestLatency", "minGainPercent": 20}),
    )
]

outcomes = st.tuples(
    st.sampled_from(["measured", "partial", "failed", "fault", "nothing", "undecided"]),
    st.sampled_from([50.0, 100.0, 499.0, 501.0, 900.0]),
    st.sampled_from([1.0, 5.0, 10.0, 10.2, 20.0]),
)


def measure_as(candidate: Candidate, outcome: tuple[str, float, float]) -> Measurement | None:
    """Return a measurement that came out in some way."""
    kind, milliseconds, rate = outcome
    if kind == "nothing":
        return None
    if kind == "failed":
        return measured(candidate, failure=("ServerFailed", "it died"))
    if kind == "fault":
        return measured(candidate, fault=("WaitingForGPUs", "none free"))
    whole = everywhere(candidate, milliseconds, rate, (1, 4, 8), n=50)
    if kind == "partial":
        return replace(whole, cells=whole.cells[:2])
    if kind == "undecided":
        bare = [one.model_copy(update={"e2e_latency": None}) for one in whole.cells]
        return replace(whole, cells=tuple(bare))
    return whole


def assess_all(model: SpeculativeModel, drawn: Sequence[tuple[str, float, float]]) -> list[Assessment]:
    """Return the assessments of every candidate for drawn outcomes."""
    pairs = zip(candidates_of(model), drawn, strict=True)
    return [assess(candidate, measure_as(candidate, outcome), model.spec) for candidate, outcome in pairs]


drawn_fields = st.lists(outcomes, min_size=4, max_size=4)
incumbents = st.sampled_from([None, 0, 1, 2, 3, "old drafter", "old image"])


def incumbent_of(model: SpeculativeModel, which: object, assessments: Sequence[Assessment]) -> Assessment | None:
    """Return the assessment of one incumbent."""
    if which is None:
        return None
    if isinstance(which, int):
        return assessments[which]
    changes: dict[str, Any] = (
        {"drafter_uri": "hf://a/old"} if which == "old drafter" else {"engine_image": "vllm/vllm-openai:v0.24.0"}
    )
    candidate = old(model, **changes)
    return assess(candidate, everywhere(candidate, 100, 10, (1, 4, 8), n=50), model.spec)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(model=st.sampled_from(MODELS), drawn=drawn_fields, which=incumbents, seed=st.integers(0, 99))
def test_every_field_ends_in_the_same_sound_decision_whatever_its_order(
    model: SpeculativeModel, drawn: list[tuple[str, float, float]], which: object, seed: int
) -> None:
    assessments = assess_all(model, drawn)
    incumbent = incumbent_of(model, which, assessments)
    decision = decide(model.spec, assessments, incumbent)
    shuffled = list(assessments)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 — a shuffle, no secret
    assert decide(model.spec, shuffled, incumbent) == decision

    assert decision.reason in REASONS
    assert all(one.reason in REASONS for one in decision.assessments)
    assert decision.message
    assert incumbent is None or decision.serve is not None
    chosen = decision.assessment_of(decision.serve) if decision.serve is not None else None
    if decision.reason == "Undetermined":
        assert decision.measure
        assert all(next_.cells for next_ in decision.measure)
        assert (decision.serve is None) == (incumbent is None)
    elif any(one.verdict is Verdict.ELIGIBLE for one in assessments):
        assert chosen is not None
        assert chosen.verdict is Verdict.ELIGIBLE
        assert decision.within_sla is Sla.WITHIN
    if decision.reason != "Undetermined":
        assert decision.measure == ()
    # A status can be made of all of it.
    candidate_statuses(decision)
    decision_status(decision)
    assert benchmarked(decision).reason in REASONS
    assert within_sla(decision, None, model.spec).reason in REASONS


@settings(derandomize=True, max_examples=100, deadline=None)
@given(model=st.sampled_from(MODELS), drawn=drawn_fields)
def test_what_was_decided_is_decided_again_once_it_serves(
    model: SpeculativeModel, drawn: list[tuple[str, float, float]]
) -> None:
    assessments = assess_all(model, drawn)
    first = decide(model.spec, assessments, None)
    if first.serve is None:
        return
    again = decide(model.spec, assessments, first.assessment_of(first.serve))
    assert again.serve == first.serve
    assert (again.reason, again.message) == (first.reason, first.message)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(model=st.sampled_from(MODELS), drawn=drawn_fields, which=st.integers(0, 3), hidden=st.integers(0, 3))
def test_a_candidate_that_is_skipped_could_not_have_won(
    model: SpeculativeModel, drawn: list[tuple[str, float, float]], which: int, hidden: int
) -> None:
    whole = [("measured", milliseconds, rate) for _, milliseconds, rate in drawn]
    known = assess_all(model, whole)
    incumbent = known[which] if which != hidden else None
    partial = list(known)
    partial[hidden] = assess(candidates_of(model)[hidden], None, model.spec)
    spared = decide(model.spec, partial, incumbent)
    if spared.measure:
        return
    assert decide(model.spec, known, incumbent).serve == spared.serve
