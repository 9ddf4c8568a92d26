"""Whether a release of vLLM would take some arguments, and if not, what is wrong with which of them, in words.

Reads arguments as that release's parser does: underscores as hyphens, `--flag value` and `--flag=value`,
`--flag.member value` for JSON values. One thing is stricter on purpose: an abbreviated flag, which the parser would
complete, is refused, so that nothing reaches the engine under a name that nobody looks for. What cannot be judged from
the recorded data passes: a refusal must be certain.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from specmodel.engines.releases import Flag, Release, checked_releases, version_key

_TRAPS = Path(__file__).parent / "traps.json"
_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_SIZE = re.compile(r"(auto|-?\d+(\.\d+)?[kKmMgGtT]?)$")
_SUFFIXED = re.compile(r"(?<=\d)[kKmMgGtT]\b")


class FaultKind(StrEnum):
    """What is wrong with an argument; the names are reasons of conditions."""

    UNKNOWN_FLAG = "UnknownFlag"
    INVALID_VALUE = "InvalidFlagValue"
    CLASH = "UnsupportedFlag"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One argument that the release does not take; the message says what to write instead."""

    index: int
    kind: FaultKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """One argument taken apart: `--flag_name.member=value` is (--flag-name, member, value)."""

    flag: str
    member: str = ""
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A flag, or members of its JSON value, that an engine does not serve together with a drafter."""

    flag: str
    why: str
    members: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def _traps() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_TRAPS.read_text(encoding="utf-8"))
    return content


def gone_flags() -> dict[str, str]:
    """Return each flag that was gone by the oldest checked release, and what to do instead."""
    return {flag: entry["instead"] for entry in _traps()["gone"] for flag in entry["flags"]}


def clashes() -> tuple[Clash, ...]:
    """Return what an engine does not serve together with a drafter."""
    entries = _traps()["clashes"]
    return tuple(Clash(flag=it["flag"], why=it["why"], members=tuple(it.get("members", ()))) for it in entries)


def caveats() -> dict[str, str]:
    """Return what is known to be broken, by distribution and version."""
    return {entry["distribution"]: entry["what"] for entry in _traps()["caveats"]}


def is_flag(argument: str) -> bool:
    """Return whether argparse reads an argument as an option and not as a value."""
    if len(argument) < 2 or argument[0] != "-" or _NEGATIVE_NUMBER.match(argument):
        return False
    return " " not in argument.partition("=")[0]


def spelling(argument: str) -> Spelling:
    """Return an option's parts, its name as vLLM's parser reads it: hyphens for underscores, -O3 as -O=3."""
    if re.match(r"-O[^.=]", argument):
        return Spelling(flag="-O", value=argument[2:])
    name, equals, value = argument.partition("=")
    flag, _, member = name.partition(".")
    if flag.startswith("--"):
        flag = "--" + flag[2:].replace("_", "-")
    return Spelling(flag=flag, member=member, value=value if equals else None)


def faults(release: Release, arguments: Sequence[str], *, with_drafter: bool = False) -> list[Fault]:
    """Return what is wrong with the arguments, in their order; nothing when the release takes them all."""
    return list(_faults(release, arguments, with_drafter=with_drafter))


def owner_of(release: Release, argument: str) -> tuple[Flag | None, Spelling]:
    """Return the flag that an argument names, None when the release has no such flag, and the argument's parts.

    A one-letter flag may have its value attached: -qfp8 is -q fp8.
    """
    found = spelling(argument)
    flag = release.flags.get(found.flag)
    if flag is not None or argument.startswith("--") or len(found.flag) <= 2:
        return flag, found
    flag = release.flags.get(argument[:2])
    if flag is None or flag.takes == "none":
        return None, found
    return flag, Spelling(flag=argument[:2], value=argument[2:])


def _faults(release: Release, arguments: Sequence[str], *, with_drafter: bool) -> Iterator[Fault]:
    place = 0
    after = ""
    while place < len(arguments):
        index, argument = place, arguments[place]
        place += 1
        if not is_flag(argument):
            message = f"{argument!r} belongs to no flag{after}: write each flag with its value as --flag=value"
            yield Fault(index=index, kind=FaultKind.INVALID_VALUE, message=message)
            continue
        flag, found = owner_of(release, argument)
        if flag is None:
            yield Fault(index=index, kind=FaultKind.UNKNOWN_FLAG, message=unknown(release, found.flag))
            place += _values_after(arguments, place)
            continue
        values = _values(flag, found, arguments, place)
        place += 0 if found.value is not None else len(values)
        after = f", {found.flag} takes no value" if flag.takes == "none" else ""
        wrong = _wrong_values(release, flag, found, values)
        if wrong:
            yield Fault(index=index, kind=FaultKind.INVALID_VALUE, message=f"{found.flag}: {wrong}")
            continue
        clash = _clash(flag, found, values) if with_drafter else ""
        if clash:
            yield Fault(index=index, kind=FaultKind.CLASH, message=f"{found.flag} cannot go with a drafter: {clash}")


def _values(flag: Flag, found: Spelling, arguments: Sequence[str], place: int) -> list[str]:
    """Return the values of a flag: the one behind its =, else those that follow and that it takes."""
    if found.value is not None:
        return [found.value]
    if found.member:
        return list(arguments[place : place + 1])  # whatever it is
    most = {"none": 0, "one": 1, "optional": 1}.get(flag.takes)
    count = _values_after(arguments, place)
    return list(arguments[place : place + (count if most is None else min(most, count))])


def _values_after(arguments: Sequence[str], place: int) -> int:
    """Return how many arguments from a place on are values."""
    count = 0
    while place + count < len(arguments) and not is_flag(arguments[place + count]):
        count += 1
    return count


def completions(release: Release, flag: str) -> list[str]:
    """Return the flags that an unknown --flag may be short for, by the name that vLLM's help gives first."""
    if flag in release.flags or not flag.startswith("--") or len(flag) < 4:
        return []
    return sorted({it.name for name, it in release.flags.items() if name.startswith(flag)})


def unknown(release: Release, flag: str) -> str:
    """Return why a release does not take a flag, and what to write: the known name, the other releases, the heir."""
    start = f"vLLM {release.version} does not know {flag!r}"
    if flag in release.flags:
        raise ValueError(f"{flag} is known to vLLM {release.version}")
    if flag in gone_flags():
        return f"{start}: {gone_flags()[flag]}"
    full = completions(release, flag)
    if len(full) == 1:
        return f"{flag!r} is short for {full[0]}: write that"
    elsewhere = _elsewhere(release, flag)
    if elsewhere:
        return f"{start}: {elsewhere}"
    if full:
        return f"{flag!r} could be short for {len(full)} flags: write one of {', '.join(full[:6])}"
    near = difflib.get_close_matches(flag, release.flags, n=1, cutoff=0.7)
    return f"{start}: did you mean {near[0]}?" if near else f"{start}, nor does any other release that was checked"


def _elsewhere(release: Release, flag: str) -> str:
    """Return which other releases have the flag, or nothing."""
    having = [it for it in checked_releases() if flag in it.flags]
    older = [it.version for it in having if version_key(it.version) < version_key(release.version)]
    newer = [it.version for it in having if version_key(it.version) > version_key(release.version)]
    parts = []
    if older:
        parts.append(f"{older[-1]} is the last that has it")
    if newer:
        parts.append(f"{newer[0]} is the first that has it")
    return ", ".join(parts)


def _wrong_values(release: Release, flag: Flag, found: Spelling, values: list[str]) -> str:
    """Return what is wrong with the values of a flag, or nothing."""
    if found.member:
        return _wrong_member(release, flag, found, values)
    if flag.takes == "none":
        negative = next((name for name in flag.names if name.startswith("--no-")), None)
        advice = f"write {flag.name} or {negative}" if negative else f"write {flag.name} alone"
        return f"takes no value, not {values[0]!r}: {advice}" if values else ""
    needed = {"one": 1, "some": 1}.get(flag.takes, int(flag.takes) if flag.takes.isdigit() else 0)
    if len(values) < needed:
        return "has no value: " + (f"write {found.flag}={_example(flag)}" if needed == 1 else f"it takes {needed}")
    return next((wrong for wrong in (_wrong_value(flag, value) for value in values) if wrong), "") or _wrong_keys(
        release, flag, values
    )


def _example(flag: Flag) -> str:
    if flag.choices:
        return "|".join(flag.choices[:8])
    return {"integer": "1", "number": "0.5", "size": "4096", "json": "'{…}'"}.get(flag.kind, "VALUE")


def _wrong_value(flag: Flag, value: str) -> str:
    """Return what is wrong with one value, or nothing."""
    if flag.is_nullable and value in ("", "None"):
        return ""
    if flag.choices:
        return "" if value in flag.choices else _choose(value, flag.choices)
    is_right, wanted = {
        "integer": (_is(int, value), "a whole number"),
        "number": (_is(float, value), "a number"),
        "size": (bool(_SIZE.match(value)), "a number such as 4096 or 4k"),
        "json": (_is(json.loads, _SUFFIXED.sub("", value)), "JSON"),
    }.get(flag.kind, (True, ""))
    return "" if is_right else f"{value!r} is not {wanted}"


def _choose(value: str, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(value, choices, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{value!r} is not one of its values: {hint}choose from {', '.join(choices)}"


def _is(convert: Any, value: str) -> bool:
    try:
        convert(value)
    except ValueError:
        return False
    return True


def _wrong_member(release: Release, flag: Flag, found: Spelling, values: list[str]) -> str:
    """Return what is wrong with `--flag.member value`, or nothing."""
    if flag.takes == "none" or flag.kind in ("integer", "number", "size") or flag.choices:
        return f"has no members: write {flag.name} without .{found.member}"
    if not values:
        return f"has no value: write {found.flag}.{found.member}=VALUE"
    member = found.member.partition(".")[0].removesuffix("+")
    try:
        value = json.loads(values[0])
    except ValueError:
        value = values[0]
    return _wrong_key(release, flag, member, None if member != found.member else value)


def _wrong_keys(release: Release, flag: Flag, values: list[str]) -> str:
    """Return which key of a JSON value the release does not take, or nothing; only where its keys are recorded."""
    if not release.keys.keys() & set(flag.names):
        return ""
    for value in values:
        content = json.loads(value) if _is(json.loads, value) else None
        if not isinstance(content, dict):
            continue
        for name, member in content.items():
            wrong = _wrong_key(release, flag, name, member)
            if wrong:
                return wrong
    return ""


def _wrong_key(release: Release, flag: Flag, name: str, value: object) -> str:
    known = next((release.keys[spelled] for spelled in flag.names if spelled in release.keys), None)
    if known is None:
        return ""
    key = known.get(name.replace("-", "_"))
    if key is None:
        near = difflib.get_close_matches(name, known, n=1)
        having = [it.version for it in checked_releases() if name in it.keys.get(flag.name, {})]
        hint = f": did you mean {near[0]}?" if near else f"; {', '.join(having)} do" if having else ""
        return f"vLLM {release.version} does not know its key {name!r}{hint}"
    if key.type == "choice" and isinstance(value, str) and value not in key.choices:
        return f"key {name!r}: {_choose(value, key.choices)}"
    if (key.type == "int" and isinstance(value, str)) or (key.type == "str" and isinstance(value, int)):
        return f"key {name!r}: {json.dumps(value)} is not of type {key.type}"
    return ""


def _clash(flag: Flag, found: Spelling, values: list[str]) -> str:
    """Return why a flag cannot go with a drafter, or nothing."""
    clash = next((it for it in clashes() if it.flag in flag.names), None)
    if clash is None or found.flag.startswith("--no-"):
        return ""
    if not clash.members:
        return clash.why
    given = [found.member] if found.member else [name for value in values for name in _members(value)]
    hit = next((name for name in given if name in clash.members), None)
    return clash.why.format(member=hit) if hit else ""


def _members(value: str) -> list[str]:
    """Return the members of a JSON object that say something; vLLM's defaults (0, null) change nothing."""
    content = json.loads(value) if _is(json.loads, value) else None
    return [name for name, member in content.items() if member] if isinstance(content, dict) else []
