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
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specmodel import __version__
from specmodel.api.model import DrafterMethod, OnIncompatible, SpeculativeModel
from specmodel.bench.prompts import PromptsError, read_prompts
from specmodel.cli.answer import OUTPUTS, rendered, status_of, written_out
from specmodel.cli.manifest import read_written
from specmodel.cli.reading import InputError
from specmodel.domain.assessment import Verdict
from specmodel.domain.candidate import Candidate, EngineChoice, digest_of, enumerate_candidates
from specmodel.domain.decision import Decision
from specmodel.domain.engine import resolve_engine
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.measurement import workload_digest
from specmodel.domain.preflight import Policy, Reading, judge
from specmodel.domain.settings import Settings
from specmodel.engines.releases import checked_releases, release_for
from specmodel.local.advice import recommended
from specmodel.local.devices import Machine, find_machine
from specmodel.local.engine import kill_leftovers
from specmodel.local.session import Session, Setup
from specmodel.local.store import Store
from specmodel.local.weights import fingerprint
from specmodel.manifests.engine_arguments import CLAIM, HUB, Paths
from specmodel.preflight.read import read

EXIT_FAULT = 1
EXIT_INPUT = 2
EXIT_NOBODY_ELIGIBLE = 3
#: `vllm --version` imports all of vLLM.
VERSION_SECONDS = 300
#: How often the live line is written: on a terminal, and elsewhere.
LIVE_SECONDS = 1.0
LINE_SECONDS = 15.0
#: In the environment of candidates with pretended acceptance: such figures never pass for those of a real drafter.
SYNTHETIC = "SPECMODEL_SYNTHETIC_ACCEPTANCE"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, decide, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    logging.getLogger("specmodel").addHandler(logging.NullHandler())
    try:
        setup, written = _setup(options)
        return asyncio.run(_run(setup, written, options.output))
    except InputError as error:
        for problem in error.problems:
            _tell(f"specmodel try: {problem}")
        return EXIT_INPUT
    except InvalidModelError as error:
        _tell(f"specmodel try: {options.file}: {error.reason}: {error.message}")
        return EXIT_INPUT
    except OSError as error:
        # What cannot be written has no name; it goes to the results.
        _tell(f"specmodel try: {error.filename or options.results or 'the results'}: {error.strerror or error}")
        return EXIT_FAULT
    except KeyboardInterrupt:
        _tell("specmodel try: stopped before anything was started")
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


# --- what is measured -------------------------------------------------------------------------------------------------


def _setup(options: argparse.Namespace) -> tuple[Setup, dict[str, Any]]:
    """Return what to measure. Raises `InputError` and `InvalidModelError`."""
    model, written = read_written(options.file)
    machine = find_machine(options.devices)
    try:
        command = tuple(shlex.split(options.vllm))
    except ValueError as error:
        raise InputError(f"--vllm: {options.vllm!r} is no command: {error}") from error
    version, build = _installed(command)
    candidates = _candidates(model, machine, version, options)
    drafted = sorted({one.speculative_tokens for one in candidates} - {0})
    # Rates of steps to come may stand beside those of this one: they are part of the folder's conditions.
    lacking = sorted(set(options.synthetic_acceptance) - set(drafted))
    if lacking and len(lacking) == len(options.synthetic_acceptance):
        raise InputError(
            f"--synthetic-acceptance: no candidate here drafts {', '.join(map(str, lacking))} tokens; "
            f"{options.file}: spec.drafter.speculativeTokens: {', '.join(map(str, drafted)) or 'none'}"
        )
    if options.schedule and not drafted:
        raise InputError(f"--schedule: no candidate drafts; {options.file} names no drafter")
    prompts, digest = _prompts(model, options.prompts)
    store = Store(folder=options.results or Path("specmodel-try") / model.name)
    setup = Setup(
        model=model,
        candidates=candidates,
        workload=workload_digest(model.spec.workload, digest),
        machine=machine,
        store=store,
        engine_command=command,
        paths=_paths(model, options),
        prompts=prompts,
        prompts_digest=digest,
        load_format=options.load_format,
        synthetic_acceptance=options.synthetic_acceptance,
        schedule=options.schedule,
        side_by_side=not options.one_at_a_time and not machine.is_cpu,
    )
    store.open(
        {
            "product": machine.product,
            "driver": machine.driver,
            "cores": machine.cores or None,
            "engine": build,
            "model": fingerprint(setup.paths.model),
            "drafter": fingerprint(setup.paths.drafter) if setup.paths.drafter is not None else None,
            "instrument": __version__,
            "loadFormat": options.load_format or "auto",
            "syntheticAcceptancePercent": {str(g): round(100 * r, 6) for g, r in options.synthetic_acceptance.items()},
            "schedule": [list(step) for step in options.schedule],
            "command": ["specmodel", "try", *sys.argv[2:]],
        }
    )
    return setup, written


def _installed(command: tuple[str, ...]) -> tuple[str, str]:
    """Return the version of the vLLM that is on this machine, and with what tells builds of it apart."""
    if not command:
        raise InputError("--vllm: names no program")
    if known := _packaged(command):
        return known
    try:
        done = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise InputError(
            f"--vllm: there is no program {command[0]!r}: install vLLM (pip install vllm), or name its "
            "program, for example --vllm '/opt/venv/bin/python -m vllm.entrypoints.cli.main'"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"--vllm: {shlex.join(command)} --version: {error}") from error
    # What plugins say at import comes first; builds append `+cpu` and the like.
    found = re.findall(r"^v?((\d+\.\d+\.\d+)(?:[+.]\S*)?(?: .*)?)$", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["nothing"]
        raise InputError(f"--vllm: {shlex.join(command)} --version prints no version; it says: {said[0][:300]}")
    return found[-1][1], found[-1][0][:200]


def _packaged(command: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the version that vLLM's package states, in a moment where `--version` imports all of it; or None."""
    python = command[:1] if command[1:2] == ("-m",) and command[2:3] and command[2].startswith("vllm.") else ()
    program = shutil.which(command[0])
    if not python and len(command) == 1 and program is not None:
        with contextlib.suppress(OSError, ValueError), Path(program).open(encoding="utf-8") as script:
            first = script.readline(500)
            python = tuple(shlex.split(first[2:])) if first.startswith("#!") and "python" in first else ()
    if not python:
        return None
    question = "from importlib.metadata import version; print(version('vllm'))"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*python, "-c", question],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
            check=False,
        )
        found = re.match(r"(\d+\.\d+\.\d+)(?:[+.]\S*)?$", done.stdout.strip())
        return (found.group(1), found.group()) if found and not done.returncode else None
    return None


def _candidates(
    model: SpeculativeModel, machine: Machine, version: str, options: argparse.Namespace
) -> tuple[Candidate, ...]:
    """Return the operator's own candidates, with this machine's engine. Raises `InputError`, `InvalidModelError`."""
    settings = Settings()
    chosen = resolve_engine(model, None, settings)
    # The flags must be those of the engine that is here.
    engine = model.spec.engine.model_copy(update={"version": version})
    here = model.model_copy(update={"spec": model.spec.model_copy(update={"engine": engine})})
    if release_for(version) is None:
        checked = ", ".join(release.version for release in checked_releases())
        raise InputError(
            f"--vllm: this is vLLM {version}, and no release of that minor was checked, so its flags are not known: "
            f"name one of {checked}, or any patch of these minors"
        )
    image = resolve_engine(here, None, settings).image
    if chosen.version != version:
        _tell(
            f"specmodel try: a cluster would serve this manifest with vLLM {chosen.version}; this machine has "
            f"{version}, and figures are of that"
        )
    candidates = enumerate_candidates(model, EngineChoice(image=image, version=version), settings)
    products = candidates[0].gpu_products
    if not machine.is_cpu and machine.product not in products:
        raise InputError(
            f"{options.file}: spec.hardware.gpuProducts: {', '.join(products)} are allowed, this machine has "
            f"{machine.product}: set gpuProducts: [{machine.product}] to measure on it"
        )
    most = max(candidate.gpus_per_replica for candidate in candidates)
    if most > len(machine.devices):
        here_are = f"{len(machine.devices)} GPU{'s' * (len(machine.devices) > 1)}"
        _tell(f"specmodel try: candidates with more than {here_are} are left out: this machine has no more")
        candidates = tuple(one for one in candidates if one.gpus_per_replica <= len(machine.devices))
    if not candidates:
        raise InputError(
            f"{options.file}: spec.hardware.gpusPerReplica: every candidate needs more GPUs than there are"
        )
    return tuple(_marked(one, options) for one in candidates)


def _marked(candidate: Candidate, options: argparse.Namespace) -> Candidate:
    """Return the candidate with what changes its figures in its digest: what only this command adds."""
    rate = options.synthetic_acceptance.get(candidate.speculative_tokens)
    if rate is not None:
        candidate = replace(candidate, env=(*candidate.env, (SYNTHETIC, f"{100 * rate:g}")))
    if options.schedule and candidate.speculative_tokens:
        steps = ",".join(f"{first}-{last}={tokens}" for first, last, tokens in options.schedule)
        candidate = replace(candidate, env=(*candidate.env, ("SPECMODEL_SCHEDULE", steps)))
    if options.load_format:
        candidate = replace(candidate, env=(*candidate.env, ("SPECMODEL_LOAD_FORMAT", options.load_format)))
    return candidate


def _prompts(model: SpeculativeModel, given: Path | None) -> tuple[Path, str | None]:
    wanted = model.spec.workload.dataset.prompts
    if wanted is None:
        if given is not None:
            raise InputError("--prompts: the manifest's workload.dataset is synthetic; set workload.dataset.prompts")
        return Path("/dev/null"), None
    if given is None:
        reference = wanted.config_map_ref
        raise InputError(f"--prompts: give the file that ConfigMap {reference.name} holds as {reference.key}")
    if given.exists() and not given.is_file():
        raise InputError(f"--prompts: {given} must be a file: it is read more than once")
    try:
        read_prompts(given)
        return given, digest_of(given.read_text(encoding="utf-8"))
    except PromptsError as error:
        raise InputError(f"{given}: {error}") from error
    except OSError as error:
        raise InputError(f"{given}: {error.strerror or error}") from error


def _paths(model: SpeculativeModel, options: argparse.Namespace) -> Paths:
    drafter = model.spec.drafter
    wanted = drafter.uri if drafter is not None else None
    return Paths(
        model=_path(options.model, model.spec.model.uri, "--model"),
        drafter=_path(options.drafter, wanted, "--drafter") if wanted is not None else None,
    )


def _path(given: str | None, uri: str, option: str) -> str:
    if given is not None:
        try:
            path = Path(given).expanduser().resolve()
        except RuntimeError as error:
            raise InputError(f"{option}: {given}: {error}") from error
        if not (path / "config.json").is_file():
            raise InputError(f"{option}: {given} holds no config.json; it must be the folder of a checkpoint")
        return str(path)
    if uri.startswith(CLAIM):
        raise InputError(f"{option}: the manifest's {uri} is a volume of a cluster: give the folder on this machine")
    return uri.removeprefix(HUB)


# --- measuring it -----------------------------------------------------------------------------------------------------


async def _run(setup: Setup, written: dict[str, Any], output: str) -> int:
    stopped: list[int] = []
    session = Session(setup, say=_say)
    killed = kill_leftovers(str(setup.store.folder.resolve()))
    if killed:
        _say(f"stopped {len(killed)} processes that an earlier start left behind")
    setup.store.reopen()
    setup.store.note("start", candidates=len(setup.candidates), devices=list(setup.machine.devices))
    where = "this CPU" if setup.machine.is_cpu else f"{len(setup.machine.devices)} × {setup.machine.product}"
    _say(f"{len(setup.candidates)} candidates on {where}; results in {setup.store.folder}")
    for line in _failed_before(setup):
        _say(line)
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
        _say("stopped; what is measured is kept, the same command goes on from there")
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
    has_drafter = drafter is not None and drafter.method is not DrafterMethod.NONE
    environment = {**os.environ, **{one.name: one.value for one in model.spec.engine.env}}
    nowhere = Path("/nonexistent")
    target = await read(_uri(setup.paths.model, model.spec.model.uri), model.spec.model.revision, nowhere, environment)
    fitted = None
    if has_drafter and drafter is not None and drafter.uri is not None and setup.paths.drafter is not None:
        uri = _uri(setup.paths.drafter, drafter.uri)
        fitted = await read(uri, drafter.revision or "main", nowhere, environment)
    policy = Policy(
        has_drafter=has_drafter,
        fails_when_incompatible=drafter is not None and drafter.on_incompatible is OnIncompatible.FAIL,
        products=frozenset() if setup.machine.is_cpu else frozenset({setup.machine.product}),
    )
    judgement = judge(Reading(target=target, drafter=fitted), setup.candidates, policy, proven=())
    status, reason, message = judgement.drafter
    _say(f"DrafterCompatible: {status.value} ({reason}): {message}")
    refused = dict(judgement.refused)
    if setup.machine.is_cpu:  # its memory is not a GPU's
        refused = {digest: why for digest, why in refused.items() if why[0] != "DoesNotFit"}
    session.setup = replace(setup, refused=refused)
    stalled = judgement.stalled
    if stalled is None or (setup.machine.is_cpu and stalled[0] == "DoesNotFit"):
        return True
    _tell(f"specmodel try: {stalled[0]}: {stalled[1]}")
    return False


def _uri(path: str, uri: str) -> str:
    """Return what is to be read: the folder on this machine, where one is given."""
    return path if Path(path).is_absolute() else uri


def _stop(working: asyncio.Task[Decision | None], stopped: list[int], number: signal.Signals) -> None:
    stopped.append(number)
    working.cancel()
    _say("stopping the engines" if len(stopped) == 1 else "killing the engines")


def _print(setup: Setup, written: dict[str, Any], decision: Decision, output: str) -> int:
    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = status_of(setup.model, decision, now)
    _clear()
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
        _tell(f"specmodel try: {note}")
    if manifest:
        _tell(f"specmodel try: the recommended manifest is {path}")
    if unwritten:
        _tell(f"specmodel try: stdout: {unwritten}; the same command prints the decision again")
        return EXIT_FAULT
    if is_decided:
        return 0
    _tell(f"specmodel try: {decision.message}")
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
        await asyncio.sleep(LIVE_SECONDS if _is_terminal() else LINE_SECONDS)
        line = " | ".join(session.doing[digest] for digest in sorted(session.doing))
        if _is_terminal():
            _clear()
            _tell(line[:200], end="")
        elif line and line != last:
            _say(line)
        last = line


def _say(text: str) -> None:
    _clear()
    _tell(f"{datetime.now(tz=UTC):%H:%M:%S} {text}")


def _clear() -> None:
    if _is_terminal():
        _tell("\r\033[K", end="")


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _tell(text: str, *, end: str = "\n") -> None:
    """Print to stderr. Nobody there (a closed terminal, a pipe that ended, a full disk) stops no measurement."""
    if sys.stderr is None:
        return
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
