"""vLLM's command line, from recorded data: which flags exist, what they take, and how wrong ones fail.

The flags of `vllm serve` are recorded in flags.json, which `make generate` makes of the operator's table of releases.
Most are accepted and have no effect here; what has an effect is read in `arguments`. Wrong ones fail as argparse makes
vLLM fail.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

_DATA: Final = Path(__file__).parent / "flags.json"
_HUMAN: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Flags whose value is a JSON object, which may also be given key by key (--speculative-config.method eagle3).
_OBJECT_SUFFIXES: Final = ("-config", "-kwargs", "-overrides", "-args", "-params")


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`; raises ArgumentTypeError when it holds anything else."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = None
    if not isinstance(content, dict):
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to a JSON object.")
    return content


def human_integer(text: str) -> int:
    """Return a size as vLLM reads it: 4000 for "4k", 4096 for "4K", -1 for "auto"; raises ArgumentTypeError."""
    if text == "auto":
        return -1
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgGtT]?)", text)
    if match is None or ("." in match[1] and not match[2].islower()):
        raise argparse.ArgumentTypeError(f"invalid human_readable_int_or_auto value: {text!r}")
    return int(float(match[1]) * _HUMAN[match[2]]) if match[2] else int(match[1])


_TYPES: Final[dict[str, Any]] = {
    "--max-model-len": human_integer,
    "--max-num-batched-tokens": human_integer,
    "--kv-cache-memory-bytes": human_integer,
    "--speculative-config": json_object,
    "--compilation-config": json_object,
    "--structured-outputs-config": json_object,
    "--kv-transfer-config": json_object,
    "--override-generation-config": json_object,
    "--tensor-parallel-size": int,
    "--max-num-seqs": int,
    "--data-parallel-size": int,
    "--shutdown-timeout": int,
    "--spec-tokens": int,
    "--gpu-memory-utilization": float,
}


class FlagParser(argparse.ArgumentParser):
    """argparse with vLLM's habits: underscores read as hyphens, JSON given key by key, exit 2 on anything wrong."""

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the parsed flags, or exit with status 2 and argparse's message."""
        flags, unknown = self.parse_known_args(_fold_dotted(_hyphenate(list(arguments))))
        if flags.model_tag is not None and flags.model is not None:
            unknown.insert(
                0, flags.model_tag
            )  # vLLM puts the value of --model in front, so that the other is left over
        if unknown:
            # argparse leaves these to the outermost parser, hence `vllm` and not `vllm serve`
            self.exit(
                2, f"usage: vllm [-h] [-v] {{serve}} ...\nvllm: error: unrecognized arguments: {' '.join(unknown)}\n"
            )
        return flags

    def error(self, message: str) -> NoReturn:
        """Print the short usage and the message to stderr and exit with status 2."""
        self.exit(2, f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {message}\n")


def parser() -> FlagParser:
    """Return a parser for everything after `vllm serve`."""
    result = FlagParser(
        prog="vllm serve",
        usage="vllm serve [model_tag] [options]",
        description="Replays measured timings behind vLLM's command line. No model is run.",
    )
    result.add_argument("model_tag", nargs="?", default=None)
    for flag in json.loads(_DATA.read_text(encoding="utf-8"))["flags"]:
        names, arity = flag["names"], flag["arity"]
        if arity == "switch":
            positive = [name for name in names if not name.startswith("--no-")]
            action: Any = argparse.BooleanOptionalAction if len(positive) < len(names) else "store_true"
            result.add_argument(*positive, action=action, default=None)
            continue
        options: dict[str, Any] = {
            "default": None,
            "type": _TYPES.get(names[0], int if flag.get("type") == "int" else str),
        }
        if flag.get("choices"):
            options["choices"] = flag["choices"]
        if flag.get("type") == "float":
            options["type"] = float
        if arity == "list":
            options["nargs"] = "+"
        if arity == "optional":
            options["nargs"] = "?"
            options["const"] = True
        result.add_argument(*names, **options)
    # -O3 and -O 3; the level itself has no effect on a replay
    result.add_argument("-O", dest="optimization_level_short", default=None, metavar="LEVEL")
    return result


def _hyphenate(arguments: list[str]) -> list[str]:
    result = []
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            first, dot, rest = name.partition(".")
            result.append(first.replace("_", "-") + dot + rest + equals + value)
        else:
            result.append(argument)
    return result


def _fold_dotted(arguments: list[str]) -> list[str]:
    """Return the arguments with `--x-config.key value` gathered into one `--x-config '{"key": value}'` each."""
    kept: list[str] = []
    gathered: dict[str, dict[str, Any]] = {}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        name, equals, value = argument.partition("=")
        if not (name.startswith("-") and "." in name and not re.match(r"-\d", name)):
            kept.append(argument)
            continue
        if not equals:
            if position >= len(arguments):
                kept.append(argument)
                continue
            value = arguments[position]
            position += 1
        flag, _, path = name.partition(".")
        if flag in {"-sc", "-cc", "-ac"}:
            flag = {"-sc": "--speculative-config", "-cc": "--compilation-config", "-ac": "--attention-config"}[flag]
        if not flag.endswith(_OBJECT_SUFFIXES):
            kept.extend([name, value])
            continue
        target = gathered.setdefault(flag, {})
        *parents, last = path.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        try:
            target[last] = json.loads(value)
        except json.JSONDecodeError:
            target[last] = value
    for flag, content in gathered.items():
        kept.extend([flag, json.dumps(content)])
    return kept
