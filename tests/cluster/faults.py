"""What can go wrong with the cluster, told so that a person knows what to do next.

Every wait of this package goes through `wait_for`: it has a deadline, says what it waits for, and ends with the last
lines of the log of whoever is late. Nothing here starts or stops anything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
LAST_LINES = 15


class ClusterError(Exception):
    """The cluster cannot do what was asked. The message says what is wrong and what to do; it is shown as it is."""


def say(text: str) -> None:
    """Show a line of progress. Progress goes to standard error: standard output holds answers only."""
    print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a duration as a person says it: `4.2s`, `37s`, `3m40s`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02d}s"


def tail(log: Path, lines: int = LAST_LINES) -> str:
    """Return the last lines of a log under its path, or that there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - 64 * 1024))
            text = stream.read().decode(errors="replace")
    except OSError:
        return f"{log}: not there"
    last = text.splitlines()[-lines:]
    return "\n".join([f"--- the last lines of {log}", *last])


def wait_for(what: str, probe: Callable[[], T | None], *, seconds: float, logs: Iterable[Path] = ()) -> T:
    """Return the first true value of `probe`, asked ten times a second.

    Raises ClusterError after `seconds`, with what was waited for and the ends of `logs`.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            ends = "\n".join(tail(log) for log in logs)
            raise ClusterError(f"{what}: not within {duration(seconds)}\n{ends}".rstrip())
        time.sleep(0.1)
