"""Failures on demand, for tests and rehearsals: SPECMODEL_REPLAY_FAULT makes the engine fail in a chosen way.

Only for that. With a fault set, nothing this engine shows is a replay of the table, and the start-up log says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

KNOWN: Final = (
    "die-at-start[:LAST LINE]", "die-at-first-request[:LAST LINE]", "hang", "never-ready", "speculation-inactive",
    "slow:FACTOR", "error-rate:FRACTION",
)  # fmt: skip
#: `owner/drafter=FAULT`: the fault of one drafter alone.
_OF_ONE_DRAFTER: Final = re.compile(r"^([\w.-]+/[\w.-]+)=")
_START_LINE: Final = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
)
_REQUEST_LINE: Final = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    " See stack trace (above) for the root cause."
)


class FaultError(Exception):
    """SPECMODEL_REPLAY_FAULT cannot be understood; the message says what can be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Which failures are wanted; the default is none. The lines are the last ones printed before dying."""

    die_at_start: str | None = None
    die_at_first_request: str | None = None
    is_hanging: bool = False
    is_never_ready: bool = False
    is_speculation_inactive: bool = False
    slowdown: float = 1.0
    error_rate: float = 0.0


def parse(text: str, drafter: str | None = None) -> Faults:
    """Return the faults named in `text`, separated by semicolons; raises FaultError on anything unknown.

    A fault written `owner/drafter=FAULT` counts only when that drafter is the one configured; a later one wins.
    """
    result = Faults()
    for written in filter(None, (part.strip() for part in text.split(";"))):
        owner = _OF_ONE_DRAFTER.match(written)
        added = _add(result, written[owner.end() :] if owner else written)
        if owner is None or owner.group(1) == drafter:
            result = added
    return result


def _add(faults: Faults, item: str) -> Faults:
    name, _, value = item.partition(":")
    match name:
        case "die-at-start":
            return replace(faults, die_at_start=value.strip() or _START_LINE)
        case "die-at-first-request":
            return replace(faults, die_at_first_request=value.strip() or _REQUEST_LINE)
        case "hang":
            return replace(faults, is_hanging=True)
        case "never-ready":
            return replace(faults, is_never_ready=True)
        case "speculation-inactive":
            return replace(faults, is_speculation_inactive=True)
        case "slow":
            return replace(faults, slowdown=_number(item, value, least=0.01, most=1000))
        case "error-rate":
            return replace(faults, error_rate=_number(item, value, least=0, most=1))
        case _:
            known = ", ".join(KNOWN)
            raise FaultError(
                f"SPECMODEL_REPLAY_FAULT: {item!r} is unknown; write one or more of {known}, with ; between"
            )


def _number(item: str, value: str, *, least: float, most: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise FaultError(f"SPECMODEL_REPLAY_FAULT: {item!r} needs a number from {least} to {most} after the colon")
    return number


def traceback_like(last_line: str, *, is_engine_core: bool = True) -> str:
    """Return text shaped like the end of a dying server's log; the core dies apart from the server before it."""
    core = "(EngineCore pid=2) ERROR [core.py] EngineCore failed to start.\n" if is_engine_core else ""
    return core + (
        "(APIServer pid=1) Traceback (most recent call last):\n"
        '(APIServer pid=1)   File "/usr/local/bin/vllm", line 10, in <module>\n'
        "(APIServer pid=1)     sys.exit(main())\n"
        f"(APIServer pid=1) {last_line}\n"
    )
