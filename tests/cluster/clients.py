"""Calls of kubectl and ctr against one cluster, each with a deadline. No decisions here."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from tests.cluster import build, state
from tests.cluster.faults import ClusterError
from tests.cluster.paths import Paths

SECONDS = 60


def kubectl_command(paths: Paths) -> list[str]:
    """Return the words that call kubectl as the administrator of a cluster."""
    chosen = state.read(paths)
    release = chosen.kubernetes if chosen else ""
    return [str(build.program("kubectl", release)), "--kubeconfig", str(paths.kubeconfig)]


def ctr_command(paths: Paths) -> list[str]:
    """Return the words that call ctr on a cluster's containerd, where Kubernetes keeps its images."""
    chosen = state.read(paths)
    release = chosen.kubernetes if chosen else ""
    return [str(build.program("ctr", release)), "--address", str(paths.socket), "--namespace", "k8s.io"]


def kubectl(paths: Paths, *arguments: str, stdin: str | None = None, seconds: float = SECONDS) -> str:
    """Return what kubectl wrote. Raises ClusterError with its complaint when it fails."""
    done = try_command([*kubectl_command(paths), *arguments], stdin=stdin, seconds=seconds)
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def find(paths: Paths, *what: str) -> dict[str, Any] | None:
    """Return an object, or None when it is not there or nobody answers yet."""
    done = try_command([*kubectl_command(paths), "get", *what, "--output=json", "--request-timeout=5s"])
    return json.loads(done.stdout) if done.returncode == 0 else None


def ctr(paths: Paths, *arguments: str, seconds: float = SECONDS) -> str:
    """Return what ctr wrote. Raises ClusterError with its complaint when it fails."""
    done = try_command([*ctr_command(paths), *arguments], seconds=seconds)
    if done.returncode != 0:
        raise ClusterError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def try_command(
    command: list[str], *, stdin: str | None = None, seconds: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command and return how it ended. Raises ClusterError only when it does not end."""
    try:
        return subprocess.run(
            command,
            input=stdin or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env={**os.environ, "KUBECTL_KUBERC": "false"},
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(command)}: no answer within {seconds:.0f}s") from None
