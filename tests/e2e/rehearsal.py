"""Install the operator from its chart on a cluster whose images are local, as the demo and the scenarios both do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.e2e.world import REPOSITORY, World

OPERATOR_NAMESPACE = "specmodel-system"
REPLAY_IMAGE = "localhost/specmodel-replay:dev"
CHART = REPOSITORY / "charts" / "specmodel"


def helm(world: World, *arguments: str, timeout: int = 180) -> str:
    """Run helm against the world; raise with helm's own words when it fails."""
    program = os.environ.get("HELM") or shutil.which("helm")
    assert program, "helm is not on PATH and HELM does not name it"
    done = subprocess.run(
        [program, "--kubeconfig", str(world.kubeconfig), *arguments],
        text=True, capture_output=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout


#: Label on the operator's namespace that says it was made here, and may be changed and removed here.
MARK = "specmodel.dev/rehearsal"


def _claim(world: World) -> None:
    """Make the operator's namespace ours, or refuse to touch an operator that somebody else installed."""
    done = world.try_kubectl("get", "namespace", OPERATOR_NAMESPACE, "-o", "jsonpath={.metadata.labels}")
    if done.returncode == 0:
        assert MARK in done.stdout, (
            f"namespace {OPERATOR_NAMESPACE} of this cluster was not made by these commands (label {MARK} is missing): "
            "an operator may be at work in it. Name another cluster with KUBECONFIG, or unset it for a local one."
        )
        return
    crds = world.try_kubectl("get", "crd", "speculativemodels.specmodel.dev", "-o", "name")
    assert crds.returncode != 0 or os.environ.get("SPECMODEL_LOCAL_CLUSTER"), (
        "this cluster already has SpecModel's CRDs, which these commands did not install: name another cluster with "
        "KUBECONFIG, or unset it for a local one"
    )
    metadata = {"name": OPERATOR_NAMESPACE, "labels": {MARK: "yes"}}
    world.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def install_operator(world: World, *settings: str, values: Path | None = None) -> None:
    """Install or upgrade the chart with the local images and wait until the operator is Ready.

    Refuses to touch an operator that was not installed here.
    """
    _claim(world)
    arguments = [
        "upgrade", "--install", "specmodel", str(CHART), "--namespace", OPERATOR_NAMESPACE,
        "--set", "image.repository=localhost/specmodel-operator", "--set", "image.tag=dev",
        "--set", "benchmark.image=localhost/specmodel-benchmark:dev",
        "--wait", "--timeout", "120s",
    ]  # fmt: skip
    for setting in settings:
        arguments += ["--set", setting]
    if values is not None:
        arguments += ["--values", str(values)]
    helm(world, *arguments)


def remove_operator(world: World) -> None:
    """Remove what `install_operator` made: the release, the CRDs with every model, and the namespace."""
    helm(world, "uninstall", "specmodel", "--namespace", OPERATOR_NAMESPACE)
    world.kubectl("delete", "crd", "speculativemodels.specmodel.dev", "benchmarkruns.specmodel.dev", timeout=180)
    world.kubectl("delete", "namespace", OPERATOR_NAMESPACE, timeout=180)
