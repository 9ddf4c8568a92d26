"""One candidate, judged: the gates, capacity, replicas and cost, and which cells are still missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.api.benchmark import AcceptanceCounters, Cell, CellRequest, Limit, StopRule
from specmodel.api.model import SpeculativeModel
from specmodel.domain.assessment import Assessment, Verdict, assess, judge_cell
from specmodel.domain.measurement import Asked
from tests.support.measured import (
    H200_SAMPLES,
    candidate_of,
    cell,
    everywhere,
    failed_cell,
    h200,
    latency,
    limit,
    measured,
    model_of,
)

LEVELS = [1, 4, 8, 16, 32]
LIMITS = [Limit.model_validate(limit(500))]


def judge(model: SpeculativeModel, *cells: Cell, gpus: int = 1, gamma: int = 0, **changes: Any) -> Assessment:
    """Return the assessment of a candidate that has these cells."""
    candidate = candidate_of(model, gpus, gamma)
    return assess(candidate, measured(candidate, *cells, **changes), model.spec)


def small(*limits: Any, levels: tuple[int, ...] = (1, 4), **changes: Any) -> SpeculativeModel:
    """Return a model with few levels and cells of 24 requests."""
    workload = {"concurrency": list(levels), "requestsPerCell": {"min": 24}, **changes.pop("workload", {})}
    return model_of(*limits, workload=workload, **changes)


def keys(one: Assessment) -> list[tuple[int, str]]:
    """Return the missing cells."""
    return [(request.concurrency, request.temperature) for request in one.missing]


def test_without_a_measurement_every_cell_is_missing_with_its_size() -> None:
    model = model_of(limit(2600))
    one = assess(candidate_of(model, 1, 3), None, model.spec)
    assert one.verdict is Verdict.UNMEASURED
    assert keys(one) == [(level, "0") for level in LEVELS]
    assert [request.min_requests for request in one.missing] == [50, 50, 50, 96, 192]
    assert {request.max_requests for request in one.missing} == {600}


def test_a_level_above_the_largest_maximum_still_runs_six_requests_a_stream() -> None:
    model = model_of(workload={"concurrency": [256]})
    request = assess(candidate_of(model, 1, 0), None, model.spec).missing[0]
    assert request.min_requests == request.max_requests == 1536


def test_capacity_is_the_highest_level_below_the_first_that_fails() -> None:
    model = small(limit(500), levels=(1, 4, 8))
    one = judge(model, cell(1, (100,) * 50), cell(4, (600,) * 50), cell(8, (100,) * 50))
    assert (one.verdict, one.capacity) == (Verdict.ELIGIBLE, 1)
    assert "600.00 ms at concurrency 4" in one.message


def test_above_a_level_that_fails_nothing_is_missing() -> None:
    one = judge(small(limit(500), levels=(1, 4, 8, 16)), cell(1, (100,) * 50), cell(4, (600,) * 50))
    assert one.verdict is Verdict.ELIGIBLE
    assert one.missing == ()


def test_below_a_level_that_fails_cells_are_still_missing() -> None:
    one = judge(small(limit(500), levels=(1, 4, 8)), cell(8, (600,) * 50))
    assert one.verdict is Verdict.UNMEASURED
    assert keys(one) == [(1, "0"), (4, "0")]


def test_a_failure_at_the_lowest_level_is_a_violation_with_the_number() -> None:
    one = judge(small(limit(500)), cell(1, (600,) * 50))
    assert one.verdict is Verdict.VIOLATES
    assert one.miss is not None
    assert one.miss.measured_milliseconds == 600
    assert "600.00 ms at concurrency 1, limit 500 ms" in one.message


def test_of_several_missed_limits_the_worst_is_told() -> None:
    model = small(limit(500), limit(10, metric="TTFT"))
    one = judge(model, cell(1, (600,) * 50))
    assert one.miss is not None
    assert one.miss.limit.metric.value == "TTFT"


def test_every_temperature_must_pass_and_the_slowest_counts() -> None:
    model = small(limit(500), workload={"temperature": ["0.0", "0.5"]})
    cells = [cell(c, (100,) * 50, rate=r, temperature=t) for c, t, r in ((1, "0", 9), (1, "0.5", 8), (4, "0", 30))]
    assert keys(judge(model, *cells)) == [(4, "0.5")]
    passed = judge(model, *cells, cell(4, (100,) * 50, rate=20, temperature="0.5"))
    assert (passed.capacity, passed.throughput) == (4, 20)
    missed = judge(model, *cells, cell(4, (600,) * 50, rate=20, temperature="0.5"))
    assert (missed.capacity, missed.throughput) == (1, 8)


def test_a_small_cell_is_measured_again_and_a_final_one_is_judged_as_it_is() -> None:
    model = small(limit(500), levels=(1,))
    assert keys(judge(model, cell(1, (100,) * 12))) == [(1, "0")]
    assert judge(model, cell(1, (100,) * 12), is_final=True).verdict is Verdict.ELIGIBLE


def test_a_small_cell_that_a_complete_run_was_asked_for_in_the_same_way_is_judged_as_it_is() -> None:
    model = small(limit(500), levels=(1,))
    asked = Asked(
        cell=CellRequest(concurrency=1, temperature="0", min_requests=24, max_requests=600),
        stop=StopRule(limits=list(model.spec.sla.limits)),
    )
    assert judge(model, cell(1, (100,) * 12), asked=(asked,)).verdict is Verdict.ELIGIBLE


def test_adding_a_level_keeps_what_is_measured() -> None:
    cells = [cell(1), cell(4)]
    assert judge(small(limit(500)), *cells).missing == ()
    assert keys(judge(small(limit(500), levels=(1, 4, 8)), *cells)) == [(8, "0")]


def test_too_many_failed_requests_violate() -> None:
    one = judge(small(levels=(1,)), cell(1, (100,) * 99, failed=1))
    assert (one.verdict, one.reason) == (Verdict.VIOLATES, "ErrorRateExceeded")
    assert "1 of 100 requests failed (1.00 %), allowed 0.5 %" in one.message


def test_a_failed_request_is_above_every_limit() -> None:
    sla = {"confidencePercent": 0, "maxErrorRatePercent": "5", "limits": [limit(500)]}
    model = small(levels=(1,), sla=sla)
    assert judge(model, cell(1, (100,) * 97, failed=3)).verdict is Verdict.VIOLATES
    assert "too many requests failed" in judge(model, cell(1, (100,) * 97, failed=3)).message
    assert judge(model, cell(1, (100,) * 597, failed=3)).verdict is Verdict.ELIGIBLE


def test_thinned_samples_weigh_failed_requests_as_all_samples_would() -> None:
    thinned = cell(1, (100,) * 600, failed=7, completed=1500, duration_milliseconds=150_000, output_tokens=1500 * 256)
    assert judge(small(limit(500), levels=(1,)), thinned).verdict is Verdict.ELIGIBLE


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (cell(1, output_tokens=0), "NoOutput"),
        (cell(1, completed=0, failed=50), "NoOutput"),
        (cell(1, ttft=latency([200.0] * 50)), "ImplausibleCell"),
        (cell(1, ttft=latency([0.0] * 50)), "ImplausibleCell"),
        (cell(1, output_tokens=50 * 256 + 1), "ImplausibleCell"),
        (cell(1, requests_per_second="100"), "ImplausibleCell"),
        (cell(1, requests_per_second="0"), "ImplausibleCell"),
        (cell(1, duration_milliseconds=0), "ImplausibleCell"),
        (cell(1, completed=20, duration_milliseconds=2000), "ImplausibleCell"),
        (
            cell(1, acceptance=AcceptanceCounters(drafts=1, draft_tokens=3, accepted_tokens=4)),
            "ImplausibleCell",
        ),
        (failed_cell(1, "EngineChanged"), "EngineFailed"),
    ],
)
def test_a_cell_that_cannot_be_true_fails_the_candidate(broken: Cell, reason: str) -> None:
    one = judge(small(limit(500)), broken)
    assert (one.verdict, one.reason) == (Verdict.FAILED, reason)
    assert "at concurrency 1" in one.message


def test_samples_out_of_order_are_not_believed() -> None:
    good = latency([100.0, 200.0])
    bad = good.model_copy(update={"samples": [200_000, 100_000]})
    assert judge(small(limit(500)), cell(1, (100.0, 200.0), e2e_latency=bad)).reason == "ImplausibleCell"


def test_an_infrastructure_fault_leaves_a_candidate_unmeasured() -> None:
    one = judge(small(limit(500)), failed_cell(1, "TargetUnreachable"))
    assert one.verdict is Verdict.UNMEASURED
    assert keys(one) == [(1, "0"), (4, "0")]
    blocked = judge(small(limit(500)), fault=("WaitingForGPUs", "2 wanted, 0 free"))
    assert (blocked.verdict, blocked.missing) == (Verdict.UNMEASURED, ())
    assert "2 wanted" in blocked.message


def test_a_server_that_could_not_run_has_failed_whatever_was_measured() -> None:
    one = judge(small(limit(500)), cell(1), cell(4), failure=("ServerFailed", "CUDA out of memory"))
    assert (one.verdict, one.reason) == (Verdict.FAILED, "EngineFailed")
    assert one.message == "ServerFailed: CUDA out of memory"


def test_speculation_that_drafts_nothing_has_failed() -> None:
    still = AcceptanceCounters(drafts=0, draft_tokens=0, accepted_tokens=0)
    model = small(limit(500), levels=(1,))
    assert judge(model, cell(1, acceptance=still), gamma=3).reason == "SpeculationInactive"
    assert judge(model, cell(1), gamma=3).reason == "SpeculationInactive"
    # As vLLM counts what a drafter drafts beyond its own positions.
    useless = judge(
        model, cell(1, acceptance=AcceptanceCounters(drafts=7, draft_tokens=21, accepted_tokens=0)), gamma=3
    )
    assert (useless.verdict, useless.reason) == (Verdict.FAILED, "SpeculationInactive")
    assert "none of 21 drafted tokens" in useless.message
    assert judge(model, cell(1), gamma=3, has_counters=False).verdict is Verdict.ELIGIBLE
    assert judge(model, cell(1, gamma=3), gamma=3).verdict is Verdict.ELIGIBLE
    assert judge(model, cell(1), gamma=0).verdict is Verdict.ELIGIBLE


def test_the_acceptance_gate_is_judged_only_where_it_is_set() -> None:
    drafter = {"uri": "hf://a/d", "speculativeTokens": [3], "minAcceptanceRatePercent": 50}
    low = judge(small(limit(500), levels=(1,), drafter=drafter), cell(1, gamma=3), gamma=3)
    assert (low.verdict, low.reason) == (Verdict.VIOLATES, "AcceptanceTooLow")
    assert "33.3 %" in low.message
    assert judge(small(limit(500), levels=(1,)), cell(1, gamma=3), gamma=3).acceptance_rate == pytest.approx(1 / 3)


def test_at_a_confidence_an_undecided_cell_is_extended_and_then_inconclusive() -> None:
    model = small(limit(500), levels=(1,), confidence=90)
    assert judge(model, cell(1, (100,) * 50)).missing[0].max_requests == 600
    assert judge(model, cell(1, (100,) * 229)).verdict is Verdict.UNMEASURED
    assert judge(model, cell(1, (100,) * 230)).verdict is Verdict.ELIGIBLE
    assert judge(model, cell(1, (100,) * 300 + (600,) * 30)).verdict is Verdict.VIOLATES
    undecided = judge(model, cell(1, (100,) * 594 + (600,) * 6))
    assert (undecided.verdict, undecided.reason) == (Verdict.INCONCLUSIVE, "SamplesTooFew")
    assert "6 of 600 requests above it" in undecided.message


def test_percentiles_alone_cannot_carry_a_confidence() -> None:
    bare = latency([100.0] * 50).model_copy(update={"samples": []})
    one = judge(small(limit(500), levels=(1,), confidence=90), cell(1, e2e_latency=bare), is_final=True)
    assert (one.verdict, one.reason) == (Verdict.INCONCLUSIVE, "SamplesMissing")
    assert one.capacity is None
    assert one.possible_capacity == 1


@pytest.mark.parametrize(
    ("rate", "utilization", "replicas"), [("12", 100, 2), ("12", 60, 2), ("12", 59, 3), ("10", 100, 1)]
)
def test_replicas_carry_the_demand_at_the_utilization(rate: str, utilization: int, replicas: int) -> None:
    workload = {"demand": {"requestsPerSecond": rate}, "targetUtilizationPercent": utilization}
    model = small(limit(500), levels=(1,), workload=workload, hardware={"gpuBudget": 8, "gpuHourPrice": "2.5"})
    one = judge(model, cell(1, rate=10), gpus=2)
    assert (one.replicas, one.gpus) == (replicas, 2 * replicas)
    assert one.cost == 5.0 * replicas


def test_a_demand_in_streams_is_divided_by_the_capacity() -> None:
    model = small(limit(500), levels=(1, 4), workload={"demand": {"concurrency": 9}})
    assert judge(model, cell(1), cell(4)).replicas == 3


def test_more_gpus_than_the_budget_cannot_be_chosen() -> None:
    model = small(limit(500), levels=(1, 4), workload={"demand": {"concurrency": 9}}, hardware={"gpuBudget": 4})
    one = judge(model, cell(1), cell(4), gpus=2)
    assert (one.verdict, one.reason) == (Verdict.VIOLATES, "OverBudget")
    assert "3 replicas (6 GPUs)" in one.message
    assert "gpuBudget is 4" in one.message


def test_a_demand_that_no_measurement_could_fit_into_the_budget_is_not_measured() -> None:
    model = small(limit(500), levels=(1, 4), workload={"demand": {"concurrency": 40}}, hardware={"gpuBudget": 4})
    assert judge(model).reason == "OverBudget"


def test_cost_is_reported_per_million_output_tokens() -> None:
    one = judge(small(limit(500), levels=(1,), hardware={"gpuHourPrice": "3.6"}), cell(1, rate=10), gpus=2)
    assert one.cost_per_million_tokens == pytest.approx(2 * 3.6 / 3600 / 2560 * 1e6)
    assert one.cost == pytest.approx(2 / 10 * 3.6)


def test_real_samples_at_90_percent_are_judged_or_called_undecided() -> None:
    model = model_of(limit(2600), confidence=90)
    folder = h200(model, H200_SAMPLES)
    one = assess(candidate_of(model, 1, 3), folder[candidate_of(model, 1, 3).digest], model.spec)
    # 40 requests cannot show a P99 at 90 %: 230 are needed.
    assert (one.verdict, one.reason) == (Verdict.INCONCLUSIVE, "SamplesTooFew")
    median = model_of(limit(2600, percent=50), confidence=90)
    assert (
        assess(candidate_of(median, 1, 3), h200(median, H200_SAMPLES)[one.candidate.digest], median.spec).capacity == 32
    )


def test_samples_and_stated_percentiles_agree_on_real_data() -> None:
    model = model_of(limit(2600))
    for digest, measurement in h200(model, H200_SAMPLES).items():
        rule = StopRule(limits=[Limit.model_validate(limit(1500))])
        for one in measurement.cells:
            by_samples = judge_cell(one, rule).verdict
            assert judge_cell(one, rule, known=measurement.percentiles).verdict is by_samples, (digest, one.concurrency)


sizes = st.integers(1, 400)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(good=sizes, bad=st.integers(0, 40), more=st.integers(1, 200), confidence=st.sampled_from([50, 90, 99]))
def test_more_good_samples_never_turn_a_pass_into_less(good: int, bad: int, more: int, confidence: int) -> None:
    rule = StopRule(limits=LIMITS, confidence_percent=confidence)
    good = min(good, 600 - bad - more)
    if good < 1:
        return
    order = [Verdict.VIOLATES, Verdict.INCONCLUSIVE, Verdict.ELIGIBLE]
    before = judge_cell(cell(1, (100.0,) * good + (600.0,) * bad), rule).verdict
    after = judge_cell(cell(1, (100.0,) * (good + more) + (600.0,) * bad), rule).verdict
    assert order.index(after) >= order.index(before)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(samples=st.lists(st.integers(1, 1000), min_size=1, max_size=80), failed=st.integers(0, 3))
def test_what_passes_at_a_confidence_passes_as_observed(samples: list[int], failed: int) -> None:
    loose = {"limits": [Limit.model_validate(limit(500, percent=80))], "max_error_rate_percent": "100"}
    strict = judge_cell(cell(1, samples, failed=failed), StopRule(**loose, confidence_percent=90)).verdict
    seen = judge_cell(cell(1, samples, failed=failed), StopRule(**loose)).verdict
    assert strict is not Verdict.ELIGIBLE or seen is Verdict.ELIGIBLE


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    level=st.sampled_from([1, 4]),
    completed=st.integers(0, 100),
    failed=st.integers(0, 100),
    duration=st.integers(0, 10_000),
    tokens=st.integers(0, 100_000),
    rate=st.sampled_from(["0", "0.000001", "10", "999999999"]),
    samples=st.lists(st.integers(0, 10**9), max_size=20),
)
def test_hostile_cells_end_in_a_verdict(  # noqa: PLR0913, PLR0917 — the parts of a cell
    level: int, completed: int, failed: int, duration: int, tokens: int, rate: str, samples: list[int]
) -> None:
    seen = latency([1.0]).model_copy(update={"samples": samples})
    hostile = cell(
        level,
        completed=completed,
        failed=failed,
        duration_milliseconds=duration,
        output_tokens=tokens,
        requests_per_second=rate,
        e2e_latency=seen,
    )
    one = judge(small(limit(500), workload={"demand": {"requestsPerSecond": "1"}}), hostile, cell(1, (100,) * 24))
    assert one.verdict in set(Verdict)
    assert one.message or one.verdict is Verdict.ELIGIBLE


def test_a_candidate_is_as_good_at_every_level_it_was_measured_at() -> None:
    model = model_of(limit(500))
    one = assess(candidate_of(model, 1, 3), everywhere(candidate_of(model, 1, 3), 100, 10), model.spec)
    assert (one.verdict, one.capacity, one.throughput) == (Verdict.ELIGIBLE, 32, 10)
    assert one.p99_milliseconds == 100
    assert one.mean_acceptance_length == 2
