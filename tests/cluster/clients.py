"""Calls of kubectl and ctr against one cluster, each with a deadline. No decisions here."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import build, children
from tests.cluster.faults import ClusterError
from tests.cluster.paths import NODE, Paths

SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a cluster is talked to: the words that call its kubectl, and the node that has the GPUs."""

    kubectl: tuple[str, ...]
    node: str
    kubelet_log: Path | None


def access(paths: Paths, release: str) -> Access:
    """Return how the local cluster is talked to, as its administrator."""
    words = (str(build.program("kubectl", release)), "--kubeconfig", str(paths.kubeconfig))
    return Access(kubectl=words, node=NODE, kubelet_log=paths.log("kubelet"))


def ctr_command(paths: Paths, release: str) -> list[str]:
    """Return the words that call ctr on the local cluster's containerd, where Kubernetes keeps its images."""
    return [str(build.program("ctr", release)), "--address", str(paths.socket), "--namespace", "k8s.io"]


def kubectl(cluster: Access, *arguments: str, stdin: str | None = None, seconds: float = SECONDS) -> str:
    """Return what kubectl wrote. Raises ClusterError with its complaint when it fails."""
    done = try_command([*cluster.kubectl, *arguments], stdin=stdin, seconds=seconds)
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def find(cluster: Access, *what: str) -> dict[str, Any] | None:
    """Return an object, or None when it is not there or nobody answers yet."""
    done = try_command([*cluster.kubectl, "get", *what, "--output=json", "--request-timeout=5s"])
    return json.loads(done.stdout) if done.returncode == 0 else None


def try_command(
    command: list[str], *, stdin: str | None = None, seconds: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command and return how it ended. Raises ClusterError only when it does not end."""
    try:
        return subprocess.run(
            children.bound(command),
            input=stdin or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env={**os.environ, "KUBECTL_KUBERC": "false"},
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(command)}: no answer within {seconds:.0f}s") from None
