"""A BenchmarkRun that a person makes by hand against an endpoint of their own."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from specmodel.domain.settings import Settings
from specmodel.reconcile.action import Key
from specmodel.reconcile.run import reconcile_run
from tests.support.rehearsal import model_of
from tests.support.scripted_cluster import NAMESPACE, ScriptedCluster

KEY = Key(namespace=NAMESPACE, name="nightly")


def by_hand(cluster: ScriptedCluster, **spec: Any) -> dict[str, Any]:
    """Store a run whose target is a server that is there already."""
    cells = [{"concurrency": 1, "temperature": "0", "minRequests": 24, "maxRequests": 24}]
    target = {"url": "http://elsewhere.default:8000", "model": "theirs"}
    run = {
        "kind": "BenchmarkRun",
        "metadata": {"name": KEY.name, "uid": "uid-run", "creationTimestamp": "2026-11-30T12:00:00Z"},
        "spec": {"target": target, "cells": cells, **spec},
    }
    cluster.objects[("BenchmarkRun", KEY.name)] = run
    return run


def conditions(run: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in run["status"]["conditions"]}


def carry_on(cluster: ScriptedCluster, seconds: int) -> None:
    async def go() -> None:
        until = cluster.now + timedelta(seconds=seconds)
        while cluster.now < until:
            await reconcile_run(cluster, KEY, Settings(), now=cluster.now)
            cluster.tick()

    asyncio.run(go())


def serve_elsewhere(cluster: ScriptedCluster) -> None:
    """Let a pod of somebody answer for the run's target."""
    arguments = ["m", "--tensor-parallel-size", "1"]
    cluster.objects[("Service", "elsewhere")] = {"kind": "Service", "metadata": {}, "spec": {"selector": {"app": "x"}}}
    cluster.objects[("Pod", "their-pod")] = {
        "kind": "Pod",
        "metadata": {"name": "their-pod", "labels": {"app": "x"}, "uid": "uid-1"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "engine", "args": arguments}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        "simulated": {"owner": "", "exit_seconds": 1},
    }


def test_it_is_measured_and_only_its_job_and_account_go() -> None:
    cluster = ScriptedCluster(model=model_of({}))
    run = by_hand(cluster)
    serve_elsewhere(cluster)
    carry_on(cluster, 60)
    assert conditions(run)["Complete"] == ("True", "CellsComplete")
    assert len(run["status"]["cells"]) == 1
    kinds = {kind for kind, _ in cluster.objects}
    assert kinds <= {"BenchmarkRun", "Pod", "Service", "EndpointSlice"}


def test_a_target_that_never_answers_fails_after_three_attempts() -> None:
    cluster = ScriptedCluster(model=model_of({}))
    run = by_hand(cluster)
    carry_on(cluster, 200)
    assert conditions(run)["Failed"] == ("True", "TargetUnreachable")
    assert run["status"]["attempts"] == 3
    assert ("Job", "nightly") not in cluster.objects


def test_at_rest_a_finished_run_is_left_alone() -> None:
    cluster = ScriptedCluster(model=model_of({}))
    by_hand(cluster)
    serve_elsewhere(cluster)
    carry_on(cluster, 60)
    written = len(cluster.written)
    carry_on(cluster, 30)
    assert len(cluster.written) == written
