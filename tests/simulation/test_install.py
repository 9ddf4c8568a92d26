"""A model is applied for the first time: candidates are measured one after another, then the winner serves."""

from __future__ import annotations

from typing import Any

import pytest

from specmodel.api.conditions import ConditionStatus, ConditionType
from tests.support.rehearsal import Rehearsal, in_any_order, model_of, rehearse, within
from tests.support.scripted_cluster import Engine


def limits(p50: int, p99: int) -> dict[str, Any]:
    lines = [
        {"metric": "E2ELatency", "percentile": 50, "maxMilliseconds": p50},
        {"metric": "E2ELatency", "percentile": 99, "maxMilliseconds": p99},
    ]
    return {"sla": {"limits": lines}}


def settled(rehearsal: Rehearsal) -> Rehearsal:
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    return rehearsal


@in_any_order
def test_a_loose_sla_ends_with_one_gpu_and_the_drafter(seed: int | None) -> Rehearsal:
    rehearsal = settled(rehearse(model_of({}), seed=seed))
    assert rehearsal.serving() == (1, 3, "None")
    assert len(rehearsal.cluster.servers()) == 1
    return rehearsal


@in_any_order
def test_a_tight_sla_ends_with_two_gpus_and_the_drafter(seed: int | None) -> Rehearsal:
    rehearsal = settled(rehearse(model_of(within(1000)), seed=seed))
    assert rehearsal.serving() == (2, 3, "None")
    return rehearsal


@in_any_order
def test_fp8_wins_where_it_is_allowed(seed: int | None) -> Rehearsal:
    spec = {"quantization": {"weights": ["None", "FP8"]}, "hardware": {"gpusPerReplica": [1]}} | limits(1600, 2600)
    rehearsal = settled(rehearse(model_of(spec), seed=seed))
    assert rehearsal.serving() == (1, 3, "FP8")
    return rehearsal


@in_any_order
def test_a_demand_brings_the_replicas_that_it_needs(seed: int | None) -> Rehearsal:
    spec = {"hardware": {"gpusPerReplica": [1]}, "workload": {"demand": {"requestsPerSecond": "20"}}}
    rehearsal = settled(rehearse(model_of(spec), seed=seed))
    assert rehearsal.serving() == (1, 3, "None")
    assert len(rehearsal.cluster.endpoints("agent")) == 2
    return rehearsal


@in_any_order
def test_nobody_within_the_sla_leaves_the_baseline_serving_and_says_so(seed: int | None) -> Rehearsal:
    rehearsal = settled(rehearse(model_of(within(100)), seed=seed))
    assert rehearsal.serving() == (1, 0, "None")
    sla = rehearsal.condition(ConditionType.WITHIN_SLA)
    assert (sla.status, sla.reason) == (ConditionStatus.FALSE, "LimitExceeded")
    assert "682" in sla.message
    return rehearsal


@in_any_order
def test_a_candidate_whose_engine_ends_at_start_is_failed_with_its_last_words(seed: int | None) -> Rehearsal:
    def engine(arguments: list[str]) -> Engine:
        is_broken = "--speculative-config" in arguments
        return Engine(dies_at_start="KeyError: 'model.layers.0.weight_scale'" if is_broken else "")

    rehearsal = settled(rehearse(model_of({}), seed=seed, engine=engine))
    assert rehearsal.serving() == (2, 0, "None")
    assert rehearsal.cluster.model is not None
    failed = [c for c in rehearsal.cluster.model.status.candidates if c.verdict == "Failed"]
    assert len(failed) == 2
    assert all("weight_scale" in candidate.message for candidate in failed)
    return rehearsal


@in_any_order
def test_an_engine_that_is_never_ready_fails_by_its_startup_timeout(seed: int | None) -> Rehearsal:
    def engine(arguments: list[str]) -> Engine:
        return Engine(never_ready="--speculative-config" in arguments)

    rehearsal = settled(rehearse(model_of({}), seed=seed, engine=engine))
    assert rehearsal.cluster.model is not None
    reasons = {c.reason for c in rehearsal.cluster.model.status.candidates if c.verdict == "Failed"}
    assert reasons == {"StartupTimeout"}
    return rehearsal


@in_any_order
def test_an_engine_that_dies_under_load_is_failed_and_another_serves(seed: int | None) -> Rehearsal:
    def engine(arguments: list[str]) -> Engine:
        is_fragile = "--speculative-config" in arguments
        return Engine(dies_under_load="CUDA error: an illegal memory access" if is_fragile else "")

    rehearsal = settled(rehearse(model_of({}), seed=seed, engine=engine))
    assert rehearsal.serving() == (2, 0, "None")
    assert rehearsal.cluster.model is not None
    assert [c.verdict for c in rehearsal.cluster.model.status.candidates].count("Failed") == 2
    return rehearsal


@in_any_order
def test_an_image_that_cannot_be_pulled_is_held_against_nobody(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, engine=lambda _: Engine(image_missing=True))
    rehearsal.run()
    assert not rehearsal.is_ready()
    assert rehearsal.cluster.model is not None
    assert {c.verdict for c in rehearsal.cluster.model.status.candidates} == {"Unmeasured"}
    assert "ImagePullBackOff" in rehearsal.text()
    return rehearsal


@in_any_order
def test_a_job_that_fails_twice_is_tried_again(seed: int | None) -> Rehearsal:
    rehearsal = settled(rehearse(model_of({}), seed=seed, jobs_fail=2))
    assert rehearsal.serving() == (1, 3, "None")
    assert "attempt 3" in rehearsal.text()
    return rehearsal


@in_any_order
def test_a_job_that_always_fails_blocks_its_candidate_alone(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({"hardware": {"gpusPerReplica": [1]}}), seed=seed, jobs_fail=3)
    rehearsal.run()
    benchmarked = rehearsal.condition(ConditionType.BENCHMARKED)
    assert (benchmarked.status, benchmarked.reason) == (ConditionStatus.FALSE, "MeasurementBlocked")
    assert rehearsal.serving() == (1, 3, "None")
    return rehearsal


@in_any_order
def test_a_recommendation_measures_proposes_and_serves_nothing(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({"selection": {"mode": "Recommend"}}), seed=seed)
    rehearsal.run()
    assert rehearsal.cluster.model is not None
    assert rehearsal.condition(ConditionType.READY).reason == "Recommended"
    assert rehearsal.cluster.model.status.decision is not None
    assert rehearsal.cluster.model.status.decision.candidate
    assert rehearsal.cluster.servers() == []
    return rehearsal


@in_any_order
def test_a_suspended_model_is_left_alone(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({"suspend": True}), seed=seed)
    rehearsal.run()
    assert rehearsal.condition(ConditionType.READY).reason == "Suspended"
    assert rehearsal.cluster.written == []
    return rehearsal


@pytest.mark.parametrize("flag", ["--tensor-parallel-size=4", "--speculative-config={}"])
def test_a_flag_that_the_operator_owns_stalls_the_model(flag: str) -> None:
    rehearsal = rehearse(model_of({"engine": {"extraArgs": [flag]}}))
    rehearsal.run()
    stalled = rehearsal.condition(ConditionType.STALLED)
    assert (stalled.status, stalled.reason) == (ConditionStatus.TRUE, "ReservedFlag")
    assert rehearsal.cluster.written == []
