"""What a person sees while it goes on: lines with the time, and one that is kept up to date on a terminal."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime


def say(text: str) -> None:
    """Print a line with the time of day (UTC), in place of the line that is kept up to date."""
    clear()
    tell(f"{datetime.now(tz=UTC):%H:%M:%S} {text}")


def clear() -> None:
    """Take the line away that is kept up to date, where there is one."""
    if is_terminal():
        tell("\r\033[K", end="")


def is_terminal() -> bool:
    """Return whether a person looks on."""
    return sys.stderr is not None and sys.stderr.isatty()


def tell(text: str, *, end: str = "\n") -> None:
    """Print to stderr. Nobody there (a closed terminal, a pipe that ended, a full disk) stops no measurement."""
    if sys.stderr is None:
        return
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
