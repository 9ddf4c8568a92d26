"""Programs that we run end with us, even when we are killed and cannot tell them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence


@functools.cache
def _prefix() -> tuple[str, ...]:
    program = shutil.which("setpriv")
    return (program, "--pdeathsig", "KILL", "--") if program else ()


def bound(command: Sequence[str]) -> list[str]:
    """Return a command that the kernel kills when the process that started it ends (where it can: on Linux)."""
    return [*_prefix(), *command]
