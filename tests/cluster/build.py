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

from tests.cluster import children, golang, paths
from tests.cluster.faults import ClusterError, duration, say, tail
from tests.cluster.versions import BUILD_FLAGS, KIND, LINKER_FLAGS, TOOLS, Group, Program, kubernetes

RESOLVE_SECONDS = 900
BUILD_SECONDS = 2400
"""Deadlines of one step. The longest step seen was six minutes, on two cores with empty caches."""
REPORT_SECONDS = 30
FEW = 5
SPACE_NEEDED_GB = 12
PAUSE = Program(name="pause", package=".")
"""The first process of every pod's sandbox: our own, in `pause/`."""


def folder_of(group: Group) -> Path:
    """Return where the programs of a group lie."""
    return paths.programs_cache() / group.key


def folders(release: str) -> tuple[Path, Path]:
    """Return the folders of what the node runs: the programs of a Kubernetes release, and the tools."""
    return folder_of(kubernetes(release)), folder_of(TOOLS)


def has(name: str, release: str) -> bool:
    """Whether a program is built."""
    return any((folder / name).exists() for folder in (*folders(release), folder_of(KIND)))


def program(name: str, release: str) -> Path:
    """Return the path of a built program. Raises ClusterError when it is not built."""
    for folder in (*folders(release), folder_of(KIND)):
        if (folder / name).exists():
            return folder / name
    raise ClusterError(f"{name} is not built: run `python3 tests/cluster/cluster.py build` first")


def build(release: str, only: frozenset[str] | None = None) -> None:
    """Build what is missing for a Kubernetes release: all there are, or `only` these programs."""
    if not _wanted(release, only):
        return
    paths.programs_cache().mkdir(parents=True, exist_ok=True)
    with _alone():
        wanted = _wanted(release, only)
        if not wanted:
            return
        _check_space()
        go = golang.find()
        progress = _Progress(sum(len(programs) for _, programs in wanted))
        for group, programs in wanted:
            _build_group(go, group, programs, progress)
        progress.finish()


def _wanted(release: str, only: frozenset[str] | None) -> list[tuple[Group, list[Program]]]:
    """Return what is missing, by group. The sandbox's program and the groups' files come with the whole cluster."""
    found = []
    for group in (kubernetes(release), TOOLS, KIND):
        folder = folder_of(group)
        programs = [*group.programs, *([PAUSE] if group is TOOLS else [])]
        missing = [
            each for each in programs if (only is None or each.name in only) and not (folder / each.name).exists()
        ]
        files_missing = only is None and any(not (folder / name).exists() for name, _, _ in group.files)
        if missing or files_missing:
            found.append((group, missing))
    return found


class _Progress:
    """Tells what is being built, and how long it has taken so far."""

    def __init__(self, total: int) -> None:
        self._total, self._number, self._started = total, 0, time.monotonic()
        self.doing = ""
        patience = "; the first time takes about ten minutes, later it takes none" if total > FEW else ""
        say(f"building {total} programs of the cluster{patience}")

    def step(self, name: str) -> None:
        self._number += 1
        self.doing = f"building {name}"
        self.tell(self.doing)

    def tell(self, text: str) -> None:
        elapsed = duration(time.monotonic() - self._started)
        say(f"  {text} ({max(self._number, 1)} of {self._total}, {elapsed} so far)")

    def finish(self) -> None:
        say(f"  built in {duration(time.monotonic() - self._started)}; kept in {paths.programs_cache()}")


def _build_group(go: Path, group: Group, programs: list[Program], progress: _Progress) -> None:
    folder = folder_of(group)
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".new-*"):
        leftover.unlink()
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "",
        "GOWORK": "off",
    }
    module = folder / "module"
    if not (module / "go.sum").exists():
        progress.doing = f"resolving the modules of {group.name}"
        progress.tell(progress.doing)
        _resolve(go, group, module, environment, progress)
    for name, source, path in group.files:
        found = _run([go, "list", "-m", "-f", "{{.Dir}}", source], module, environment, RESOLVE_SECONDS, progress)
        _put(Path(found.strip()) / path, folder / name)
    for each in programs:
        progress.step(each.name)
        command = _command(go, each.package, each.variables, folder / each.name)
        own = paths.HERE / each.name if each is PAUSE else module
        _compile(command, own, folder / each.name, environment, progress)


def _resolve(go: Path, group: Group, module: Path, environment: Mapping[str, str], progress: _Progress) -> None:
    """Write a module that imports the programs, and let Go resolve it.

    k8s.io/kubernetes names its staging modules at v0.0.0: each is replaced by its matching release.
    """
    with tempfile.TemporaryDirectory(dir=module.parent) as scratch:
        work = Path(scratch) / "module"
        work.mkdir()
        head = "module specmodel.dev/cluster\n\ngo 1.26.0\n\n"
        (work / "go.mod").write_text(head, encoding="utf-8")
        lines = [f"require {each}" for each in group.requires]
        if group.kubernetes:
            main = f"k8s.io/kubernetes@v{group.kubernetes}"
            told = json.loads(
                _run([go, "mod", "download", "-json", main], work, environment, RESOLVE_SECONDS, progress)
            )
            own = Path(told["GoMod"]).read_text(encoding="utf-8")
            staging = re.findall(r"(k8s\.io/[a-z-]+) v0\.0\.0$", own, re.MULTILINE)
            libraries = f"v0.{group.kubernetes.removeprefix('1.')}"
            lines += [f"require k8s.io/kubernetes v{group.kubernetes}"]
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
    flags = " ".join([*LINKER_FLAGS, *(f"-X {each}" for each in variables)])
    return [go, "build", *BUILD_FLAGS, "-ldflags", flags, "-o", _new(target), package]


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
            children.bound([str(word) for word in command]),
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    child.wait(timeout=REPORT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress.tell("still " + progress.doing)
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
