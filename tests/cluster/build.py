"""Builds every program of a cluster from Go modules, into the cache.

A build that is stopped goes on where it was: each program is put in place whole or not at all, and Go's own build cache
keeps what was compiled. Two builds wait for each other. It must not start a program it built.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import golang, paths
from tests.cluster.faults import ClusterError, duration, say, tail
from tests.cluster.versions import TOOLS, Group, Program, kubernetes

RESOLVE_SECONDS = 900
BUILD_SECONDS = 2400
"""Deadlines of one step. The longest step seen was six minutes, on two cores with empty caches."""
REPORT_SECONDS = 30
SPACE_NEEDED_GB = 12
PAUSE = "pause"


def folders(release: str) -> tuple[Path, Path]:
    """Return the folders of the programs: those of a Kubernetes release, and the tools."""
    return paths.programs_cache() / kubernetes(release).key, paths.programs_cache() / TOOLS.key


def program(name: str, release: str) -> Path:
    """Return the path of a built program. Raises ClusterError when it is not built."""
    for folder in folders(release):
        if (folder / name).exists():
            return folder / name
    raise ClusterError(f"{name} is not built: run `python3 tests/cluster/cluster.py build` first")


def is_built(release: str) -> bool:
    """Whether nothing is left to build for a release."""
    return not any(_missing(group) for group in (kubernetes(release), TOOLS))


def build(release: str) -> None:
    """Build what is missing for a Kubernetes release."""
    if is_built(release):
        return
    paths.programs_cache().mkdir(parents=True, exist_ok=True)
    with _alone():
        groups = [group for group in (kubernetes(release), TOOLS) if _missing(group)]
        if not groups:
            return
        _check_space()
        go = golang.find()
        progress = _Progress(sum(len(_missing_programs(group)) for group in groups) + sum(map(_pause_missing, groups)))
        for group in groups:
            _build_group(go, group, progress)
        progress.finish()


def _missing_programs(group: Group) -> list[Program]:
    folder = paths.programs_cache() / group.key
    return [each for each in group.programs if not (folder / each.name).exists()]


def _pause_missing(group: Group) -> bool:
    return group is TOOLS and not (paths.programs_cache() / group.key / PAUSE).exists()


def _missing(group: Group) -> bool:
    folder = paths.programs_cache() / group.key
    files_missing = any(not (folder / name).exists() for name, _, _ in group.files)
    return bool(_missing_programs(group)) or files_missing or _pause_missing(group)


class _Progress:
    """Tells what is being built, and how long it has taken so far."""

    def __init__(self, total: int) -> None:
        self._total, self._number, self._started = total, 0, time.monotonic()
        say(f"building {total} programs of the cluster; the first time takes about ten minutes, later it takes none")

    def step(self, name: str) -> None:
        self._number += 1
        self.tell(f"building {name}")

    def tell(self, text: str) -> None:
        elapsed = duration(time.monotonic() - self._started)
        say(f"  {text} ({max(self._number, 1)} of {self._total}, {elapsed} so far)")

    def finish(self) -> None:
        say(f"  built in {duration(time.monotonic() - self._started)}; kept in {paths.programs_cache()}")


def _build_group(go: Path, group: Group, progress: _Progress) -> None:
    folder = paths.programs_cache() / group.key
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".new-*"):
        leftover.unlink()
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-buildvcs=false",
        "GOWORK": "off",
    }
    module = folder / "module"
    if not (module / "go.sum").exists():
        progress.tell(f"resolving the modules of {group.name}")
        _resolve(go, group, module, environment, progress)
    for name, source, path in group.files:
        found = _run([go, "list", "-m", "-f", "{{.Dir}}", source], module, environment, RESOLVE_SECONDS, progress)
        _put(Path(found.strip()) / path, folder / name)
    for each in _missing_programs(group):
        progress.step(each.name)
        command = _command(go, each.package, each.variables, folder / each.name)
        _compile(command, module, folder / each.name, environment, progress)
    if _pause_missing(group):
        progress.step(PAUSE)
        command = _command(go, ".", (), folder / PAUSE)
        _compile(command, paths.HERE / "pause", folder / PAUSE, environment, progress)


def _resolve(go: Path, group: Group, module: Path, environment: Mapping[str, str], progress: _Progress) -> None:
    """Write a module that imports the programs, and let Go resolve it.

    k8s.io/kubernetes names its staging modules at v0.0.0: each is replaced by its matching release.
    """
    with tempfile.TemporaryDirectory(dir=module.parent) as scratch:
        work = Path(scratch) / "module"
        work.mkdir()
        head = "module specmodel.dev/cluster\n\ngo 1.26.0\n\n"
        (work / "go.mod").write_text(head, encoding="utf-8")
        main = f"k8s.io/kubernetes@v{group.kubernetes}"
        told = json.loads(_run([go, "mod", "download", "-json", main], work, environment, RESOLVE_SECONDS, progress))
        own = Path(told["GoMod"]).read_text(encoding="utf-8")
        staging = re.findall(r"(k8s\.io/[a-z-]+) v0\.0\.0$", own, re.MULTILINE)
        libraries = f"v0.{group.kubernetes.removeprefix('1.')}"
        lines = [f"require k8s.io/kubernetes v{group.kubernetes}"]
        lines += [f"require {each}" for each in group.requires]
        lines += [f"replace {each} => {each} {libraries}" for each in sorted(set(staging))]
        (work / "go.mod").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
        imports = "".join(f'import _ "{each.package}"\n' for each in group.programs)
        (work / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\n{imports}", encoding="utf-8")
        _run([go, "mod", "tidy"], work, environment, RESOLVE_SECONDS, progress)
        shutil.rmtree(module, ignore_errors=True)
        work.rename(module)


def _new(target: Path) -> Path:
    return target.with_name(f".new-{target.name}")


def _command(go: Path, package: str, variables: tuple[str, ...], target: Path) -> list[str | Path]:
    flags = " ".join(["-s", "-w", *(f"-X {each}" for each in variables)])
    return [go, "build", "-trimpath", "-ldflags", flags, "-o", _new(target), package]


def _compile(
    command: list[str | Path], module: Path, target: Path, environment: Mapping[str, str], progress: _Progress
) -> None:
    _run(command, module, environment, BUILD_SECONDS, progress)
    _new(target).replace(target)


def _run(
    command: list[str | Path], folder: Path, environment: Mapping[str, str], seconds: float, progress: _Progress
) -> str:
    """Return what a command wrote; it and its children end with us or at the deadline."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        (Path(scratch) / "out").open("w+") as out,
        (Path(scratch) / "errors").open("w") as errors,
    ):
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=errors, start_new_session=True
        )
        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    child.wait(timeout=REPORT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress.tell("still at it")
                if time.monotonic() > deadline:
                    raise ClusterError(f"{_told(command)}: not done within {duration(seconds)}")
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if child.returncode != 0:
            raise ClusterError(f"{_told(command)} failed\n{tail(Path(errors.name))}")
        out.seek(0)
        return out.read()


def _told(command: list[str | Path]) -> str:
    return " ".join(str(word) for word in command)


def _put(source: Path, target: Path) -> None:
    shutil.copyfile(source, _new(target))
    _new(target).replace(target)


def _check_space() -> None:
    free = shutil.disk_usage(paths.programs_cache()).free / 1e9
    if free < SPACE_NEEDED_GB:
        say(f"  warning: {free:.0f} GB are free at {paths.programs_cache()}; a first build wants {SPACE_NEEDED_GB} GB")


@contextmanager
def _alone() -> Iterator[None]:
    """Let one build run at a time. The lock goes with the process that holds it."""
    with (paths.programs_cache() / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is running: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
