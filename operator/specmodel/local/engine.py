"""One vLLM server as a process: started in a session of its own, waited for, stopped with everything that it started.

vLLM starts processes of its own (engine core, workers). They stay in the server's process group, which is what is
signalled. Should this program be killed, the kernel tells the server to stop (`PR_SET_PDEATHSIG`); what is left even so
is found at the next start by the mark in its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

#: In the environment of every process that an engine consists of: the results folder it works for.
MARK = "SPECMODEL_TRY"
#: Likewise: the engine that it belongs to. Who left its process group is found by it.
ENGINE_MARK = "SPECMODEL_TRY_ENGINE"
HOST = "127.0.0.1"
POLL_SECONDS = 1.0
ANSWER_SECONDS = 10.0
#: What an engine may take to leave after SIGTERM beyond its own shutdown timeout, and after SIGKILL, in seconds.
EXIT_SECONDS = 15.0
KILL_SECONDS = 10.0
#: How much of a log's end is read for its last words.
TAIL_BYTES = 64 * 1024
_PR_SET_PDEATHSIG = 1


class EngineFailedError(Exception):
    """The engine ended, or was not ready in time. `reason` is a reason of a run's condition Failed."""

    def __init__(self, reason: str, message: str) -> None:
        """Carry reason and message."""
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass(slots=True, kw_only=True)
class Engine:
    """A started server."""

    process: asyncio.subprocess.Process
    url: str
    log: Path
    started: float
    #: The value of ENGINE_MARK.
    name: str

    @property
    def is_alive(self) -> bool:
        """Whether the server's first process runs."""
        return self.process.returncode is None

    def log_end(self) -> str:
        """Return the end of what it printed."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    async def wait_until_ready(self, seconds: float) -> float:
        """Return the seconds from start until /health was 200. Raises `EngineFailedError`."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                if not self.is_alive:
                    raise EngineFailedError("EngineFailed", f"The engine ended with {_ending(self.process.returncode)}")
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                    async with session.get(f"{self.url}/health") as response:
                        if response.status == 200:
                            return time.monotonic() - self.started
                if time.monotonic() - self.started > seconds:
                    message = f"The engine was not ready after {seconds:.0f} s (engine.startupTimeoutSeconds)"
                    raise EngineFailedError("StartupTimeout", message)
                await asyncio.sleep(POLL_SECONDS)

    async def stop(self, seconds: float) -> None:
        """Tell it to stop, kill what is left after `seconds` and EXIT_SECONDS more, and wait until all are gone."""
        group = self.process.pid
        _signal(group, signal.SIGTERM)
        try:
            if not await _gone(group, self.process, seconds + EXIT_SECONDS):
                _signal(group, signal.SIGKILL)
                await _gone(group, self.process, KILL_SECONDS)
        except asyncio.CancelledError:
            _signal(group, signal.SIGKILL)
            raise
        finally:
            _kill_marked(f"{ENGINE_MARK}={self.name}")


async def start_engine(
    command: Sequence[str], *, environment: Mapping[str, str], port: int, log: Path, mark: str
) -> Engine:
    """Start a server that will listen on `port`; what it prints goes to `log`. Raises `EngineFailedError`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    name = f"{os.getpid()}-{port}-{time.monotonic_ns()}"
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, MARK: mark, ENGINE_MARK: name},
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            raise EngineFailedError("EngineFailed", f"{command[0]}: {error.strerror or error}") from error
    return Engine(process=process, url=f"http://{HOST}:{port}", log=log, started=time.monotonic(), name=name)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def kill_leftovers(mark: str) -> list[int]:
    """Kill processes of an earlier start that was itself killed: those with the mark. Returns their ids."""
    return _kill_marked(f"{MARK}={mark}")


def _kill_marked(mark: str) -> list[int]:
    """Kill the processes with a variable in their environment and return their ids."""
    wanted = mark.encode()
    killed = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
    return killed


def _end_with_parent() -> None:
    """Have the kernel stop the server when this program ends, however it ends. Runs in the child before exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


async def _gone(group: int, process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Return whether no process of the group is left within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if process.returncode is not None and not _exists(group):
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        names = {one.value: one.name for one in signal.Signals}
        return f"signal {names.get(-code, -code)}"
    return f"exit code {code}"
