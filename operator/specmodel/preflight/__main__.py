"""`python -m specmodel.preflight`: what the preflight Job runs, in an image that holds no other command.

    --model URI --model-revision R [--drafter URI --drafter-revision R] --weights DIR

Reads both checkpoints and writes one line of JSON (`domain.preflight.Reading`) to standard output and to the pod's
termination message, from where the operator takes it: the Job needs no right in the cluster. It ends with 0 whatever it
found, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from specmodel.domain.preflight import Reading
from specmodel.preflight.read import read

TERMINATION_MESSAGE = Path("/dev/termination-log")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, and write down what was read."""
    parser = argparse.ArgumentParser(prog="specmodel.preflight", description="Read a model's checkpoints.")
    parser.add_argument("--model", required=True, help="hf://organisation/name or pvc://claim/path")
    parser.add_argument("--model-revision", default="main", help="branch, tag or commit on the hub")
    parser.add_argument("--drafter", help="likewise")
    parser.add_argument("--drafter-revision", default="main", help="branch, tag or commit on the hub")
    parser.add_argument("--weights", type=Path, default=Path("/weights"), help="where claims are mounted, by name")
    options = parser.parse_args(arguments)
    line = _run(options).to_json()
    print(line)  # noqa: T201 — the answer, for people who read the Job's log
    if TERMINATION_MESSAGE.exists():
        TERMINATION_MESSAGE.write_text(line, encoding="ascii")
    return 0


def _run(options: argparse.Namespace) -> Reading:
    """Read, and wait for no thread afterwards: where packets are lost, a name may be looked up for minutes."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(_read(options))
    finally:
        loop.close()


async def _read(options: argparse.Namespace) -> Reading:
    works = [read(options.model, options.model_revision, options.weights, os.environ)]
    if options.drafter:
        works.append(read(options.drafter, options.drafter_revision, options.weights, os.environ))
    found = await asyncio.gather(*works)
    return Reading(target=found[0], drafter=found[1] if len(found) > 1 else None)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # not sys.exit, which would wait for the threads
