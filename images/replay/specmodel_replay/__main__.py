"""The command: `specmodel_replay serve MODEL …` takes what `vllm serve MODEL …` takes; in the image it is named `vllm`.

`table` and `flags` remake this package's data from what `vllm bench serve` and `vllm serve --help=all` wrote.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specmodel_replay import VLLM_VERSION, arguments, convert, faults, flags, table
from specmodel_replay.speculation import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = logging.getLogger("specmodel_replay")
_DEFAULT_STARTUP_SECONDS = 3.0
_USAGE = """usage: specmodel_replay serve [model_tag] [options]   serve as `vllm serve` would, from a table
       specmodel_replay table RESULTS.json TENSOR_PARALLEL_SIZE SPECULATIVE_TOKENS BF16|FP8 NAME   make a table
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for a configuration that is refused, 2 for wrong usage."""
    match list(sys.argv[1:] if argv is None else argv):
        case ["serve", *rest]:
            return _serve(rest)
        case ["--version" | "-v"]:
            sys.stdout.write(f"{VLLM_VERSION} (replay: no model is run)\n")
            return 0
        case ["table", results, size, tokens, weights, name]:
            return _table(Path(results), int(size), int(tokens), weights, name)
        case _:
            sys.stderr.write(_USAGE)
            return 2


def _serve(rest: Sequence[str]) -> int:
    # Until the server has its own handlers; as process 1 of a container, SIGTERM would otherwise be ignored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [replay] %(message)s", stream=sys.stderr)
    parsed = flags.parser().read(rest)
    try:
        drafter = dict(parsed.speculative_config or {}).get("model", parsed.spec_model)
        wanted_faults = faults.parse(os.environ.get("SPECMODEL_REPLAY_FAULT", ""), drafter)
        startup_seconds = _startup_seconds(os.environ.get("SPECMODEL_REPLAY_STARTUP_SECONDS", ""))
        source = os.environ.get("SPECMODEL_REPLAY_TABLE", "")
        measured = table.load(Path(source)) if source else table.load()
        settings = arguments.read(parsed)
        configuration = arguments.configuration(settings, measured)
        if wanted_faults.is_speculation_inactive:
            plain = replace(settings, shape=replace(settings.shape, speculative_tokens=0))
            configuration = arguments.configuration(plain, measured)
    except ConfigError as error:
        sys.stderr.write(
            faults.traceback_like(f"pydantic_core._pydantic_core.ValidationError: {error}", is_engine_core=False)
        )
        return 1
    except (arguments.UnsupportedError, faults.FaultError, table.TableError, ValueError) as error:
        sys.stderr.write(f"specmodel_replay: error: {error}\n")
        return 1
    _LOG.info(
        "REPLAY ENGINE: no model is run; timings are replayed from table %r, configuration %r; answers are made up.",
        measured.name,
        configuration.name,
    )
    for notice in settings.notices:
        _LOG.warning("%s", notice)
    if wanted_faults != faults.Faults():
        _LOG.warning("failing on purpose, this is no replay of the table: %s", wanted_faults)
    from specmodel_replay import server  # noqa: PLC0415 - the HTTP stack is wanted only once the command line is fine

    application = server.Server(settings, configuration, measured.name, wanted_faults)
    try:
        asyncio.run(server.serve(application, settings, wanted_faults, startup_seconds))
    except OSError as error:
        sys.stderr.write(f"specmodel_replay: error: cannot listen on {settings.host}:{settings.port}: {error}\n")
        return 1
    return 0


def _startup_seconds(text: str) -> float:
    if not text:
        return _DEFAULT_STARTUP_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"SPECMODEL_REPLAY_STARTUP_SECONDS must be a number of seconds, 0 or more, not {text!r}")
    return seconds


def _table(results: Path, size: int, tokens: int, weights: str, name: str) -> int:
    shape = table.Shape(tensor_parallel_size=size, speculative_tokens=tokens, weights=weights)
    try:
        content = json.loads(results.read_text(encoding="utf-8"))
        rows = content if isinstance(content, list) else [content]
        made = convert.table_from_results(rows, shape, name, {"source": results.name})
    except (OSError, ValueError, table.TableError) as error:
        sys.stderr.write(f"specmodel_replay: error: {results}: {error}\n")
        return 1
    sys.stdout.write(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
