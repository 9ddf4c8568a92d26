"""One small loop per object: a bell or a timer starts a pass; one pass at a time per object, a few at a time in all.

Bells that ring during a pass make one more pass, however many they were. A loop with nothing to wait for ends; the next
bell starts another. The only `except Exception` of the program is here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from specmodel.reconcile.action import Key, TransientError
from specmodel.reconcile.loop import Pass

logger = logging.getLogger(__name__)

#: Passes at the same time, over all objects.
CONCURRENCY = 4
#: Seconds that a bell waits for others to ring with it.
SETTLE = 0.2
#: Seconds that a pass may take; it is then cancelled, which is harmless, and made again.
PASS_DEADLINE = 300.0
#: Back-off after faults: 1, 2, 4, ... seconds, at most so many.
BACKOFF_MAXIMUM = 300.0
#: The same after a fault in the midst of a plan: what was observed is known, so that looking again is worth it.
ACTION_BACKOFF_MAXIMUM = 30.0


class Kind(StrEnum):
    """What a loop is for."""

    MODEL = "SpeculativeModel"
    RUN = "BenchmarkRun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One object that has a loop: a model, or a BenchmarkRun that no model owns."""

    kind: Kind
    key: Key


class Ledger(Protocol):
    """Who writes down what passes did: log and metrics."""

    def passed(self, work: Work, made: Pass, seconds: float) -> None:
        """Note a pass."""
        ...

    def failed(self, work: Work, reason: str, message: str, retry_seconds: float) -> None:
        """Note a pass that failed: reason is Transient or Unexpected."""
        ...


@dataclass(slots=True)
class _Entry:
    bell: asyncio.Event
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Loops:
    """All loops. `make_pass` makes one pass over one object."""

    make_pass: Callable[[Work], Awaitable[Pass]]
    ledger: Ledger
    settle: float = SETTLE
    concurrency: int = CONCURRENCY
    _entries: dict[Work, _Entry] = field(default_factory=dict, init=False)
    _places: asyncio.Semaphore = field(init=False)
    _is_stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.concurrency)

    def ring(self, work: Work) -> None:
        """Ask for a pass over an object, soon."""
        if self._is_stopping:
            return
        entry = self._entries.get(work)
        if entry is None:
            entry = self._entries[work] = _Entry(asyncio.Event())
            entry.task = asyncio.create_task(self._loop(work, entry.bell), name=f"loop {work.kind} {work.key}")
        entry.bell.set()

    async def stop(self, grace: float) -> None:
        """Start no more passes; give those that run so many seconds to finish, then cancel them."""
        self._is_stopping = True
        for entry in self._entries.values():
            entry.bell.set()
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stops(self) -> bool:
        return self._is_stopping

    async def _loop(self, work: Work, bell: asyncio.Event) -> None:
        failures = 0
        try:
            while not self._is_stopping:
                await asyncio.sleep(self.settle)
                async with self._places:
                    if self._stops():
                        return
                    bell.clear()
                    failures, wake = await self._one(work, failures)
                if wake is None and not bell.is_set():
                    return
                await self._wait(bell, wake, is_backing_off=failures > 0)
        finally:
            del self._entries[work]

    async def _one(self, work: Work, failures: int) -> tuple[int, float | None]:
        """Make one pass; return how often in a row it failed, and in how many seconds to make another (None: never)."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(PASS_DEADLINE):
                made = await self.make_pass(work)
        except TransientError as error:
            retry = max(error.after.total_seconds(), _backoff(failures, BACKOFF_MAXIMUM))
            self.ledger.failed(work, "Transient", str(error), retry)
            return failures + 1, retry
        except Exception as error:  # the one place: a fault in our own code must not end the process
            retry = _backoff(failures + 2, BACKOFF_MAXIMUM)
            logger.exception("fault in a pass", extra={"fields": _fields(work)})
            self.ledger.failed(work, "Unexpected", repr(error), retry)
            return failures + 1, retry
        self.ledger.passed(work, made, loop.time() - started)
        wake = None if made.wake_after is None else max(0.0, made.wake_after.total_seconds())
        if made.outcome.fault is None:
            return 0, wake
        retry = max(wake or 0.0, _backoff(failures, ACTION_BACKOFF_MAXIMUM))
        return failures + 1, retry

    async def _wait(self, bell: asyncio.Event, seconds: float | None, *, is_backing_off: bool) -> None:
        """Wait for the bell or so many seconds. Bells do not hurry a back-off below a part of it."""
        if is_backing_off and seconds is not None and not self._is_stopping:
            quiet = min(seconds, 2.0)
            await asyncio.sleep(quiet)
            seconds -= quiet
        try:
            async with asyncio.timeout(seconds):
                await bell.wait()
        except TimeoutError:
            return


def _backoff(failures: int, maximum: float) -> float:
    seconds = min(2.0 ** min(failures, 20), maximum)
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 — spreads retries, no secret


def _fields(work: Work) -> dict[str, str]:
    return {"kind": work.kind.value, "namespace": work.key.namespace, "name": work.key.name}
