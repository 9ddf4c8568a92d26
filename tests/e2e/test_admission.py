"""The API server refuses what cannot work, in words that say what to write instead, and takes every example."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import EXAMPLES, REPOSITORY, Json, World

ADMISSION = REPOSITORY / "tests" / "admission"
BAD = sorted((ADMISSION / "bad").glob("*.yaml"))
GOOD = [*sorted((ADMISSION / "good").glob("*.yaml")), *sorted(EXAMPLES.glob("*.yaml"))]
DRY_RUN = ("create", "--dry-run=server", "--validate=strict", "-f")
NAMESPACE = f"admission-{os.getpid()}"


@pytest.fixture(scope="module")
def api(cluster: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """Return a namespace on a cluster that has the CRDs, which the chart brings along with the operator."""
    if cluster.try_kubectl("get", "crd", "speculativemodels.specmodel.dev", "benchmarkruns.specmodel.dev").returncode:
        request.getfixturevalue("operator")
    cluster.kubectl("create", "namespace", NAMESPACE)
    yield cluster.within(NAMESPACE)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_wrong_manifest_is_refused_with_what_to_write_instead(api: World, path: Path) -> None:
    done = api.try_kubectl(*DRY_RUN, str(path))
    assert done.returncode != 0, f"{path.name} was accepted"
    assert refusal_of(path) in done.stderr


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_right_manifest_is_accepted(api: World, path: Path) -> None:
    done = api.try_kubectl(*DRY_RUN, str(path))
    assert done.returncode == 0, done.stderr


def test_the_spec_of_a_run_cannot_change(api: World) -> None:
    manifest = (ADMISSION / "good" / "run-least.yaml").read_text(encoding="utf-8")
    api.kubectl("apply", "-f", "-", input=manifest)
    changed = api.try_kubectl("patch", "bench", "by-hand", "--type=merge", "-p", '{"spec":{"seed":1}}')
    assert changed.returncode != 0
    assert "create another run under a new name" in changed.stderr
    api.kubectl("label", "bench", "by-hand", "team=commerce")


def test_scaling_writes_the_replicas_of_the_model(api: World) -> None:
    api.apply(suspended_model("scaled"))
    api.kubectl("scale", "specm", "scaled", "--replicas=3")
    assert api.get("specm", "scaled")["spec"]["serving"]["replicas"] == 3


def test_prompts_may_replace_the_default_dataset(api: World) -> None:
    model = suspended_model("with-prompts")
    api.apply(model)
    model["spec"]["workload"] = {"dataset": {"prompts": {"configMapRef": {"name": "queries", "key": "prompts.jsonl"}}}}
    api.apply(model)
    assert "synthetic" not in api.get("specm", "with-prompts")["spec"]["workload"]["dataset"]


def test_a_model_applied_again_has_no_difference(api: World) -> None:
    path = str(ADMISSION / "good" / "as-much-as-there-is.yaml")
    api.kubectl("apply", "-f", path)
    assert api.try_kubectl("diff", "-f", path).returncode == 0


def test_the_table_of_models_reads_well_at_120_columns(api: World) -> None:
    api.apply(suspended_model("commerce-agent-fp8"))
    now = "2026-01-01T00:00:00Z"
    conditions = [("Ready", "False", "RolloutDeadlineExceeded"), ("WithinSla", "Unknown", "Undecided")]
    status = {
        "conditions": [
            {"type": kind, "status": state, "reason": reason, "message": "", "lastTransitionTime": now}
            for kind, state, reason in conditions
        ],
        "serving": {
            "gpusPerReplica": 2, "speculativeTokens": 3, "weights": "None", "replicas": 1, "acceptanceRatePercent": 36,
        },
    }  # fmt: skip
    api.kubectl(
        "patch", "specm", "commerce-agent-fp8", "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}),
    )  # fmt: skip
    table = api.kubectl("get", "specm").splitlines()
    assert table[0].split() == ["NAME", "READY", "REASON", "GPUS", "DRAFTER", "TOKENS", "ACCEPT", "SLA", "AGE"]
    assert max(len(line) for line in table) <= 120


def suspended_model(name: str) -> Json:
    """Return a model about which an operator that happens to run does nothing."""
    return {
        "apiVersion": "specmodel.dev/v1alpha1",
        "kind": "SpeculativeModel",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "hf://nvidia/Llama-3.1-Nemotron-Nano-8B-v1"}, "suspend": True},
    }


def refusal_of(path: Path) -> str:
    """Return what the first line of a wrong manifest says that the refusal must contain."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# refused: "), path
    return first.removeprefix("# refused: ")
