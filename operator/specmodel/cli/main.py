"""`specmodel`: one program, a command for each thing that it does.

Commands stand in one table and are imported when asked for, so that `specmodel decide` needs no Kubernetes client and
the benchmark image no operator. This module knows no command's arguments: each parses its own.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: its module has `main(arguments) -> exit code`."""

    name: str
    module: str
    summary: str


#: Every command. A new one is a new row.
COMMANDS = (
    Command(
        name="decide",
        module="specmodel.cli.decide",
        summary="decide from saved results, without a cluster",
    ),
    Command(
        name="try",
        module="specmodel.local.command",
        summary="measure on this machine's own GPUs and decide, without a cluster",
    ),
    Command(
        name="preflight",
        module="specmodel.cli.preflight",
        summary="read target and drafter and say what fits, without a GPU or a cluster",
    ),
    Command(name="operator", module="specmodel.app.main", summary="run the operator"),
    Command(name="bench", module="specmodel.bench.command", summary="measure one BenchmarkRun (what its Job runs)"),
    Command(name="crd", module="specmodel.crd.main", summary="write the CRDs and what is generated with them"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that is named and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="specmodel",
        description="Measure candidates with speculative decoding, decide among them, serve the best.",
        epilog="commands:\n" + "\n".join(f"  {one.name:<10} {one.summary}" for one in COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=[one.name for one in COMMANDS], metavar="COMMAND", help="see below")
    name = parser.parse_args(given[:1]).command
    command = next(one for one in COMMANDS if one.name == name)
    try:
        code: int = import_module(command.module).main(given[1:])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code
