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


def install_operator(world: World, *settings: str, values: Path | None = None) -> None:
    """Install or upgrade the chart with the local images and wait until the operator is Ready."""
    arguments = [
        "upgrade", "--install", "specmodel", str(CHART), "--namespace", OPERATOR_NAMESPACE, "--create-namespace",
        "--set", "image.repository=localhost/specmodel-operator", "--set", "image.tag=dev",
        "--set", "benchmark.image=localhost/specmodel-benchmark:dev",
        "--wait", "--timeout", "120s",
    ]  # fmt: skip
    for setting in settings:
        arguments += ["--set", setting]
    if values is not None:
        arguments += ["--values", str(values)]
    helm(world, *arguments)
