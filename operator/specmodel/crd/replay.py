"""The replay engine's flags.json, out of the recorded command line of the release that it stands in for.

The replay image holds nothing of this package; so that the flags have one home all the same, its copy is generated.
"""

from __future__ import annotations

import json

from specmodel.engines.releases import Flag, Release

_ARITY = {"none": "switch", "one": "one", "optional": "optional", "any": "list", "some": "list"}
_TYPES = {"integer": "int", "number": "float"}


def replay_flags(generated: str, release: Release) -> str:
    """Return flags.json: one flag and one key of `--speculative-config` a line, a key with the values it accepts."""
    flags = {flag.name: _entry(flag) for flag in release.flags.values() if flag.name != "--help"}
    keys = {name: list(key.choices) for name, key in sorted(release.keys["--speculative-config"].items())}
    lines = ",\n  ".join(json.dumps(entry) for _, entry in sorted(flags.items()))
    known = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(choices)}" for name, choices in keys.items())
    return (
        f'{{\n "generated": {json.dumps(generated)},\n "vllm": "{release.version}",\n'
        f' "flags": [\n  {lines}\n ],\n "speculative_config": {{\n  {known}\n }}\n}}\n'
    )


def _entry(flag: Flag) -> dict[str, object]:
    entry: dict[str, object] = {"names": list(flag.names), "arity": _ARITY[flag.takes]}
    kind = _TYPES.get(flag.kind)
    if kind is not None:
        entry["type"] = kind
    if flag.choices:
        entry["choices"] = [int(choice) for choice in flag.choices] if kind == "int" else list(flag.choices)
    return entry
