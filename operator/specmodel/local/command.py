"""`specmodel try -f MODEL.yaml`: measure on this machine's own GPUs what the operator would measure in a cluster.

Exit codes: 0 decided, 1 a fault of this machine, 2 input that cannot be used, 3 nobody is eligible, 129, 130 and 143
when it was told to stop; what is measured is kept, and a second start goes on from there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specmodel.cli.answer import OUTPUTS, rendered, status_of, written_out
from specmodel.cli.reading import InputError, problems_in
from specmodel.domain.assessment import Verdict
from specmodel.domain.decision import Decision
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.preflight import Reading, judge, policy_of
from specmodel.local.advice import recommended
from specmodel.local.engine import kill_leftovers
from specmodel.local.session import Session, Setup
from specmodel.local.setup import set_up
from specmodel.local.terminal import clear, is_terminal, say, tell
from specmodel.preflight.read import read

EXIT_FAULT = 1
EXIT_INPUT = 2
EXIT_NOBODY_ELIGIBLE = 3
#: How often the live line is written: on a terminal, and elsewhere.
LIVE_SECONDS = 1.0
LINE_SECONDS = 15.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, decide, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    logging.getLogger("specmodel").addHandler(logging.NullHandler())
    try:
        setup, written = set_up(options)
        return asyncio.run(_run(setup, written, options.output))
    except (InputError, InvalidModelError) as error:
        for problem in problems_in(error, options.file):
            tell(f"specmodel try: {problem}")
        return EXIT_INPUT
    except OSError as error:
        # What cannot be written has no name; it goes to the results.
        tell(f"specmodel try: {error.filename or options.results or 'the results'}: {error.strerror or error}")
        return EXIT_FAULT
    except KeyboardInterrupt:
        tell("specmodel try: stopped before anything was started")
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specmodel try",
        description="Measure a SpeculativeModel's candidates on this machine with vLLM processes, and decide.",
        epilog="Exit codes: 0 decided; 1 a fault of this machine; 2 files or arguments cannot be used; 3 nobody is "
        "eligible; 129, 130 or 143 told to stop. A second start with the same --results goes on where the first ended.",
    )
    parser.add_argument(
        "-f", "--file", type=Path, required=True, metavar="MODEL.yaml", help="file with one SpeculativeModel"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="where results are kept (default: specmodel-try/<model's name>)"
    )
    parser.add_argument("--model", metavar="PATH", help="folder of the target's weights (default: the hub's, by uri)")
    parser.add_argument("--drafter", metavar="PATH", help="folder of the drafter's weights (default: likewise)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines, for workload.dataset.prompts")
    parser.add_argument(
        "--devices",
        default="auto",
        help="auto (all GPUs), GPU indices such as 0,1, cpu, or cpu:PARTS to divide the cores (default: auto)",
    )
    parser.add_argument(
        "--vllm", default="vllm", metavar="COMMAND", help="the engine's program, as in a shell (default: vllm)"
    )
    parser.add_argument(
        "--one-at-a-time", action="store_true", help="never measure two candidates side by side on separate devices"
    )
    parser.add_argument(
        "--load-format", choices=["dummy"], help="random weights: honest for speed, meaningless for text"
    )
    parser.add_argument(
        "--synthetic-acceptance",
        default={},
        type=_acceptance,
        metavar="γ=PERCENT,...",
        help="have the engine pretend to accept that share of drafted tokens, for example 3=35.5,5=25",
    )
    parser.add_argument(
        "--schedule",
        default=(),
        type=_schedule,
        metavar="FIRST-LAST=γ,...",
        help="let the engine choose γ by its batch size, for example 1-8=5,9-64=3; give a folder of its own",
    )
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table", help="how to print (default: table)")
    return parser


def _acceptance(text: str) -> dict[int, float]:
    """Return γ → rate of `3=35.5,5=25`. Raises ArgumentTypeError."""
    rates: dict[int, float] = {}
    for part in text.split(","):
        gamma, _, percent = part.partition("=")
        try:
            tokens, rate = int(gamma), float(percent) / 100
        except ValueError:
            tokens, rate = 0, -1.0
        if not (1 <= tokens <= 16 and 0 <= rate <= 1) or tokens in rates:
            message = f"{part!r} must be γ=PERCENT, such as 3=35.5, each γ from 1 to 16 once, and 0 to 100 percent"
            raise argparse.ArgumentTypeError(message)
        rates[tokens] = rate
    return rates


def _schedule(text: str) -> tuple[tuple[int, int, int], ...]:
    """Return (first, last, γ) of `1-8=5,9-64=3`. Raises ArgumentTypeError."""
    steps: list[tuple[int, int, int]] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,4})-(\d{1,4})=(\d{1,2})", part)
        first, last, tokens = (int(group) for group in found.groups()) if found else (0, 0, 0)
        follows = first == (steps[-1][1] + 1 if steps else 1)
        if not (found and follows and first <= last and tokens <= 16):
            message = f"{part!r} must be FIRST-LAST=γ, the first from 1 and each where the one before it ends"
            raise argparse.ArgumentTypeError(message)
        steps.append((first, last, tokens))
    return tuple(steps)


async def _run(setup: Setup, written: dict[str, Any], output: str) -> int:
    stopped: list[int] = []
    session = Session(setup, say=say)
    killed = kill_leftovers(str(setup.store.folder.resolve()))
    if killed:
        say(f"stopped {len(killed)} processes that an earlier start left behind")
    setup.store.reopen()
    setup.store.note("start", candidates=len(setup.candidates), devices=list(setup.machine.devices))
    where = "this CPU" if setup.machine.is_cpu else f"{len(setup.machine.devices)} × {setup.machine.product}"
    say(f"{len(setup.candidates)} candidates on {where}; results in {setup.store.folder}")
    for line in _failed_before(setup):
        say(line)
    working = asyncio.create_task(_work(session))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup has SIGHUP ignored; a shell ignores SIGINT for what it runs in the background, which is asked by name.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, _stop, working, stopped, number)
    live = asyncio.create_task(_live(session))
    try:
        decision = await working
    except asyncio.CancelledError:
        say("stopped; what is measured is kept, the same command goes on from there")
        with contextlib.suppress(OSError):
            setup.store.note("interrupted")
        return 128 + (stopped[0] if stopped else signal.SIGTERM)
    finally:
        live.cancel()
        await asyncio.gather(live, return_exceptions=True)
    if decision is None:
        return EXIT_INPUT
    setup.store.note("decided", reason=decision.reason)
    return _print(session.setup, written, decision, output)


async def _work(session: Session) -> Decision | None:
    """Read the checkpoints, measure, decide; None when nothing may start."""
    return await session.run() if await _preflight(session) else None


async def _preflight(session: Session) -> bool:
    """Read the checkpoints and keep off what they rule out; return False, having said why, when nothing may start."""
    setup = session.setup
    model, drafter = setup.model, setup.model.spec.drafter
    policy = policy_of(model, products=frozenset() if setup.machine.is_cpu else frozenset({setup.machine.product}))
    environment = {**os.environ, **{one.name: one.value for one in model.spec.engine.env}}
    nowhere = Path("/nonexistent")
    target = await read(_uri(setup.paths.model, model.spec.model.uri), model.spec.model.revision, nowhere, environment)
    fitted = None
    if policy.has_drafter and drafter is not None and drafter.uri is not None and setup.paths.drafter is not None:
        uri = _uri(setup.paths.drafter, drafter.uri)
        fitted = await read(uri, drafter.revision or "main", nowhere, environment)
    judgement = judge(Reading(target=target, drafter=fitted), setup.candidates, policy, proven=())
    status, reason, message = judgement.drafter
    say(f"DrafterCompatible: {status.value} ({reason}): {message}")
    refused = dict(judgement.refused)
    if setup.machine.is_cpu:  # its memory is not a GPU's
        refused = {digest: why for digest, why in refused.items() if why[0] != "DoesNotFit"}
    session.setup = replace(setup, refused=refused)
    stalled = judgement.stalled
    if stalled is None or (setup.machine.is_cpu and stalled[0] == "DoesNotFit"):
        return True
    tell(f"specmodel try: {stalled[0]}: {stalled[1]}")
    return False


def _uri(path: str, uri: str) -> str:
    """Return what is to be read: the folder on this machine, where one is given."""
    return path if Path(path).is_absolute() else uri


def _stop(working: asyncio.Task[Decision | None], stopped: list[int], number: signal.Signals) -> None:
    stopped.append(number)
    working.cancel()
    say("stopping the engines" if len(stopped) == 1 else "killing the engines")


def _print(setup: Setup, written: dict[str, Any], decision: Decision, output: str) -> int:
    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = status_of(setup.model, decision, now)
    clear()
    where = "a CPU" if setup.machine.is_cpu else setup.machine.product
    measured_on = f"{where}, vLLM {setup.candidates[0].engine_version}"
    is_decided = any(one.verdict is Verdict.ELIGIBLE for one in decision.assessments)
    manifest = recommended(written, setup.model, decision, measured_on, setup.caveats()) if is_decided else ""
    path = setup.store.folder / "recommended.yaml"
    if manifest:
        path.write_text(manifest, encoding="utf-8")
    else:
        path.unlink(missing_ok=True)  # an earlier decision's
    unwritten = written_out(rendered(status, output))
    for note in setup.caveats():
        tell(f"specmodel try: {note}")
    if manifest:
        tell(f"specmodel try: the recommended manifest is {path}")
    if unwritten:
        tell(f"specmodel try: stdout: {unwritten}; the same command prints the decision again")
        return EXIT_FAULT
    if is_decided:
        return 0
    tell(f"specmodel try: {decision.message}")
    return EXIT_NOBODY_ELIGIBLE


def _failed_before(setup: Setup) -> list[str]:
    """Return a line for each candidate that an earlier start found at fault, with what to do to try it again."""
    shapes = {candidate.digest: candidate.shape for candidate in setup.candidates}
    return [
        f"{shapes[run.candidate]}: failed before ({run.failure[0]}) and is not tried again; remove "
        f"{setup.store.path_of(run.name)} to try it"
        for run in setup.store.runs(setup.workload)
        if run.failure is not None and run.candidate in shapes
    ]


async def _live(session: Session) -> None:
    """Keep one line on a terminal up to date; elsewhere print what changed now and then."""
    last = ""
    while True:
        await asyncio.sleep(LIVE_SECONDS if is_terminal() else LINE_SECONDS)
        line = " | ".join(session.doing[digest] for digest in sorted(session.doing))
        if is_terminal():
            clear()
            tell(line[:200], end="")
        elif line and line != last:
            say(line)
        last = line
