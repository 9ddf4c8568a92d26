"""The distribution's packages that the local cluster needs, installed only when something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.faults import ClusterError, say
from tests.cluster.versions import PACKAGES

INSTALL_SECONDS = 900


def require_root() -> None:
    """Raise ClusterError, with what to use instead, for anyone but root."""
    if os.geteuid() != 0:
        raise ClusterError(
            "the local cluster needs root (it makes namespaces, mounts and cgroups). Run it with sudo, or use "
            "another cluster: `make e2e KUBECONFIG=…` for one you have, or CLUSTER=kind with Docker"
        )


def missing() -> dict[str, str]:
    """Return the packages that are missing: name → what it is for."""
    return {
        package: purpose
        for sign, (package, purpose) in PACKAGES.items()
        if not (Path(sign).exists() if sign.startswith("/") else _which(sign))
    }


def prepare() -> None:
    """Install what is missing, saying what and why."""
    wanted = missing()
    if not wanted:
        return
    require_root()
    for package, purpose in wanted.items():
        say(f"missing: {package} ({purpose})")
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *wanted]
    if not shutil.which("apt-get"):
        raise ClusterError(f"install {', '.join(wanted)} with this machine's package manager (the names are Debian's)")
    say(f"installing them: {' '.join(command)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update"], command):
        try:
            done = subprocess.run(
                step, env=environment, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{' '.join(step)}: not done within {INSTALL_SECONDS // 60} minutes") from None
        # An unreachable third-party source fails the update, and matters only if the packages are not found then.
        if done.returncode != 0 and step is command:
            raise ClusterError(f"{' '.join(step)} failed\n{(done.stdout + done.stderr).strip()[-3000:]}")
    still = missing()
    if still:
        raise ClusterError(f"still missing after the installation: {', '.join(still)}")


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
