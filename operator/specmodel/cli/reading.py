"""Files as plain values, strictly: what cannot be meant is an error that says where, never a guess.

YAML is read without timestamps (a time stays the text that it is) and a key written twice is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from specmodel.domain.invalid import InvalidModelError

PROBLEMS_SHOWN = 20
#: More than any result or manifest; what is longer is something else.
CHARACTERS_MAXIMUM = 64 * 1024 * 1024
SHOWN_MAXIMUM = 80


class InputError(Exception):
    """Files or arguments that cannot be used: one line for each problem, each saying where and what."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def problems_in(error: InputError | InvalidModelError, path: Path) -> tuple[str, ...]:
    """Return why the model of a file, or what was given with it, cannot be used: one line a problem."""
    if isinstance(error, InputError):
        return tuple(error.problems)
    return (f"{path}: {error.reason}: {error.message}",)


class _StrictLoader(yaml.SafeLoader):
    """YAML without implicit timestamps and without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping, or refuse a key that is written twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is written twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_text(path: Path) -> str:
    """Return a file's text. Raises `InputError`."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(CHARACTERS_MAXIMUM + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no UTF-8 text: {error.reason} at byte {error.start}") from error
    if len(text) > CHARACTERS_MAXIMUM:
        raise InputError(f"{path}: is longer than {CHARACTERS_MAXIMUM} characters: it is no result and no manifest")
    return text


def shown(value: object) -> str:
    """Return a value for a message: shortened, and without looking into what may be without end."""
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= SHOWN_MAXIMUM else f"{text[:SHOWN_MAXIMUM]}..."


def read_yaml(path: Path) -> list[Any]:
    """Return a file's YAML documents, empty ones left out. Raises `InputError`."""
    text = read_text(path)
    try:
        return [value for value in yaml.load_all(text, Loader=_StrictLoader) if value is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"{path}{where}: is no YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # What PyYAML raises for a tag that does not fit its value.
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: is no YAML: {first}") from error


def read_json(path: Path) -> list[Any]:
    """Return a file's JSON values: one, or one a line as `--append-result` leaves them. Raises `InputError`.

    NaN and infinities, which Python writes and JSON does not have, are refused.
    """
    text = read_text(path)
    decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated)
    values: list[Any] = []
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at == len(text):
            return values
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {error.lineno}: is no JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is no JSON: {error}{_near(text, at, str(error))}") from error
        values.append(value)


def _refuse_constant(name: str) -> float:
    message = f"{name} is no number"
    raise ValueError(message)


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        message = f"{next(key for key in found if keys.count(key) > 1)!r} is written twice"
        raise ValueError(message)
    return found


def _near(text: str, start: int, message: str) -> str:
    """Return the key before the first constant that was refused, for the message."""
    constant = message.split(" ", maxsplit=1)[0]
    at = text.find(constant, start) if message.endswith("is no number") else -1
    keys = text[:at].rsplit('"', 2) if at >= 0 else []
    return f" (key {keys[1]})" if len(keys) == 3 else ""


def problems_of(error: ValidationError, *, prefix: str, kind: type[BaseModel]) -> list[str]:
    """Return one line for each problem that pydantic found, with its path as a person writes it."""
    known = sorted(_field_names(kind))
    lines = [
        f"{_path(prefix, problem['loc'])}: {_words(problem['type'], problem['msg'], problem['loc'], known)}"
        for problem in error.errors(include_url=False)
    ]
    more = len(lines) - PROBLEMS_SHOWN
    return [*lines[:PROBLEMS_SHOWN], *([f"and {more} more problems"] if more > 0 else [])]


def _path(prefix: str, location: Iterable[int | str]) -> str:
    path = prefix
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _words(kind: str, message: str, location: tuple[int | str, ...], known: list[str]) -> str:
    if kind == "extra_forbidden":
        close = get_close_matches(str(location[-1]), known, n=1)
        return f"there is no such field{f'; did you mean {close[0]}?' if close else ''}"
    if kind == "missing":
        return "is required"
    if kind == "string_type":
        return f'{message}; write it in quotes, for example "0.5"'
    return message.removeprefix("Value error, ")


def _field_names(kind: type[BaseModel]) -> set[str]:
    schema = kind.model_json_schema(by_alias=True)
    parts: Iterable[Mapping[str, Any]] = [schema, *schema.get("$defs", {}).values()]
    return {name for part in parts for name in part.get("properties", {})}
