"""Metrics: one table, and series that come and go with their model."""

from __future__ import annotations

import re

from prometheus_client.exposition import generate_latest

from specmodel.api.conditions import Condition, ConditionStatus
from specmodel.api.model import CandidateStatus, ServingStatus, SpeculativeModelStatus
from specmodel.app.metrics import METRICS, Metrics
from specmodel.reconcile.action import Key

KEY = Key(namespace="shop", name="m")


def status(ready: str = "True", verdict: str = "Eligible") -> SpeculativeModelStatus:
    return SpeculativeModelStatus(
        conditions=[
            Condition(
                type="Ready",
                status=ConditionStatus(ready),
                reason="Serving",
                message="",
                last_transition_time="2026-11-30T06:00:00Z",
            )
        ],
        serving=ServingStatus(
            revision="r",
            gpus_per_replica=1,
            speculative_tokens=3,
            weights="None",
            replicas=1,
            capacity=16,
            acceptance_rate_percent=45,
            requests_per_second="7.5",
            p99_milliseconds=2_400,
            engine="vllm",
        ),
        candidates=[
            CandidateStatus(
                candidate="c",
                gpus_per_replica=1,
                speculative_tokens=3,
                weights="None",
                verdict=verdict,
                reason="Passed",
            )
        ],
        replicas=1,
        ready_replicas=1,
    )


def shown(metrics: Metrics) -> list[str]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return [line for line in lines if line.startswith("specmodel_") and 'name="m"' in line]


def test_names_follow_the_convention() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"specmodel_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.type == "counter")
        assert metric.help.endswith(".")


def test_a_status_is_shown_in_base_units() -> None:
    metrics = Metrics()
    metrics.show(KEY, status())
    lines = shown(metrics)
    assert 'specmodel_model_acceptance_ratio{name="m",namespace="shop"} 0.45' in lines
    assert 'specmodel_model_p99_seconds{name="m",namespace="shop"} 2.4' in lines
    assert 'specmodel_model_condition{name="m",namespace="shop",status="True",type="Ready"} 1.0' in lines


def test_a_change_replaces_the_series_that_it_ends() -> None:
    metrics = Metrics()
    metrics.show(KEY, status("True", "Eligible"))
    metrics.show(KEY, status("False", "Rejected"))
    lines = "\n".join(shown(metrics))
    assert 'status="True"' not in lines
    assert "Eligible" not in lines
    assert 'verdict="Rejected"' in lines


def test_a_deleted_model_leaves_no_series_behind() -> None:
    metrics = Metrics()
    metrics.show(KEY, status())
    metrics.forget_all_but([Key(namespace="shop", name="another")])
    assert shown(metrics) == []
