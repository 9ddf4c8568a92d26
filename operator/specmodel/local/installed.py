"""Which vLLM is on this machine: asked of its package or its program, never guessed."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from specmodel.cli.reading import InputError

#: `vllm --version` imports all of vLLM.
VERSION_SECONDS = 300


def installed_version(command: tuple[str, ...]) -> tuple[str, str]:
    """Return the version of the vLLM that is on this machine, and with what tells builds of it apart."""
    if not command:
        raise InputError("--vllm: names no program")
    if known := _packaged(command):
        return known
    try:
        done = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise InputError(
            f"--vllm: there is no program {command[0]!r}: install vLLM (pip install vllm), or name its "
            "program, for example --vllm '/opt/venv/bin/python -m vllm.entrypoints.cli.main'"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"--vllm: {shlex.join(command)} --version: {error}") from error
    # What plugins say at import comes first; builds append `+cpu` and the like.
    found = re.findall(r"^v?((\d+\.\d+\.\d+)(?:[+.]\S*)?(?: .*)?)$", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["nothing"]
        raise InputError(f"--vllm: {shlex.join(command)} --version prints no version; it says: {said[0][:300]}")
    return found[-1][1], found[-1][0][:200]


def _packaged(command: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the version that vLLM's package states, in a moment where `--version` imports all of it; or None."""
    python = command[:1] if command[1:2] == ("-m",) and command[2:3] and command[2].startswith("vllm.") else ()
    program = shutil.which(command[0])
    if not python and len(command) == 1 and program is not None:
        with contextlib.suppress(OSError, ValueError), Path(program).open(encoding="utf-8") as script:
            first = script.readline(500)
            python = tuple(shlex.split(first[2:])) if first.startswith("#!") and "python" in first else ()
    if not python:
        return None
    question = "from importlib.metadata import version; print(version('vllm'))"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*python, "-c", question],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
            check=False,
        )
        found = re.match(r"(\d+\.\d+\.\d+)(?:[+.]\S*)?$", done.stdout.strip())
        return (found.group(1), found.group()) if found and not done.returncode else None
    return None
