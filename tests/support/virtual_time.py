"""An event loop whose time jumps from timer to timer: hours of waiting pass at once, in order, with no real clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer whenever nothing is ready. For code without input and output."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual

    def stall(self, seconds: float) -> None:
        """Let time pass while the process does nothing at all, as when it is frozen."""
        self._virtual += seconds

    def _run_once(self) -> None:
        waiting = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and waiting:  # type: ignore[attr-defined]
            self._virtual = max(self._virtual, min(waiting))
        super()._run_once()  # type: ignore[misc]


def run_virtually(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in virtual time and return what it returns."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
