"""The operator's loop on this machine: decide, start what is wanted and fits, measure, write down, decide again.

    decide_model ──measure──► one trial per candidate that fits the free devices ──► a run's file ──┐
         ▲                                                                                          │
         └──────────────────────────────────────────────────────────────────────────────────────────┘

Nothing is kept but the results folder: a second start reads it and goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from specmodel.api.benchmark import CellRequest, RunProgress
from specmodel.api.labels import CAVEATS, ROLE_SERVE
from specmodel.api.model import SpeculativeModel
from specmodel.bench.figures import in_words
from specmodel.bench.job import Outcome, run_job
from specmodel.bench.load import RequestRecord, open_session
from specmodel.domain.candidate import Candidate
from specmodel.domain.decision import Decision, NextMeasurement, decide_model
from specmodel.domain.last_words import explain
from specmodel.domain.measurement import CANDIDATE_FAULTS, Measurement, gather
from specmodel.domain.observation import Run
from specmodel.local.devices import Machine
from specmodel.local.engine import HOST, Engine, EngineFailedError, free_port, start_engine
from specmodel.local.store import FileRun, Store
from specmodel.manifests.benchmark import benchmark_run, run_spec
from specmodel.manifests.engine_arguments import Paths, engine_arguments
from specmodel.manifests.names import Owner, server_name

#: What an engine that is idle has to finish: nothing. The pod's drain is for clients that this machine has not.
STOP_SECONDS = 5.0
#: An engine that died is noticed by its client first: how long its process is given to be seen dead.
DEATH_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is measured, with what, and where."""

    model: SpeculativeModel
    candidates: tuple[Candidate, ...]
    workload: str
    machine: Machine
    store: Store
    #: The program and its first arguments; `serve` and the engine's own follow.
    engine_command: tuple[str, ...]
    #: Where the weights are on this machine, else the hub id of the manifest.
    paths: Paths
    prompts: Path = Path("/dev/null")
    prompts_digest: str | None = None
    load_format: str | None = None
    #: γ → the share of drafted tokens that the engine pretends to accept.
    synthetic_acceptance: Mapping[int, float] = field(default_factory=dict)
    #: (first batch size, last batch size, γ): the engine chooses γ by how many requests it has.
    schedule: tuple[tuple[int, int, int], ...] = ()
    side_by_side: bool = True
    #: Why a candidate is not started, (reason, message) by digest: what its checkpoints say.
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def caveats(self) -> list[str]:
        """Return what a reader of the figures must know of them."""
        notes = []
        if self.machine.is_cpu:
            notes.append("measured on a CPU: the figures say nothing of a GPU")
        if self.load_format:
            notes.append("random weights (--load-format dummy): speed is real, text is not")
        if self.synthetic_acceptance:
            shares = ", ".join(f"{100 * rate:g} % at γ={gamma}" for gamma, rate in self.synthetic_acceptance.items())
            notes.append(f"acceptance is pretended ({shares}), not a drafter's")
        if self.schedule:
            steps = ", ".join(f"{tokens} up to {last} requests" for _, last, tokens in self.schedule)
            notes.append(f"γ follows the load: {steps}; no manifest can ask for that yet")
        return notes


@dataclass(slots=True)
class Session:
    """One start of `specmodel try`."""

    setup: Setup
    say: Callable[[str], None]
    #: Candidate digest → what its trial does now, for the live line.
    doing: dict[str, str] = field(default_factory=dict)
    #: Candidate digest → why this machine, not the candidate, ended its trial: it is not tried again in this start.
    faults: dict[str, tuple[str, str]] = field(default_factory=dict)

    async def run(self) -> Decision:
        """Measure until nothing more is wanted and return the decision. Cancelled: engines are stopped, cells stay."""
        trials: dict[asyncio.Task[None], tuple[str, tuple[int, ...]]] = {}
        try:
            while True:
                decision = self.decide()
                self._start(decision, trials)
                if not trials:
                    return decision
                done, _ = await asyncio.wait(trials, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del trials[task]
                    task.result()
        finally:
            for task in trials:
                task.cancel()
            await asyncio.gather(*trials, return_exceptions=True)

    def decide(self) -> Decision:
        """Return the decision on what is in the results folder now."""
        setup = self.setup
        runs = setup.store.runs(setup.workload)
        measurements: dict[str, Measurement] = {}
        for candidate in setup.candidates:
            measured = gather(candidate.digest, [run for run in runs if run.candidate == candidate.digest])
            refused = setup.refused.get(candidate.digest)
            if refused is not None and (measured is None or not measured.cells):
                measured = Measurement(candidate=candidate.digest, cells=(), failure=refused)
            fault = self.faults.get(candidate.digest)
            if measured is not None:
                measurements[candidate.digest] = measured if fault is None else replace(measured, fault=fault)
        return decide_model(setup.model, setup.candidates, measurements, None)

    def _start(self, decision: Decision, trials: dict[asyncio.Task[None], tuple[str, tuple[int, ...]]]) -> None:
        """Start a trial for each measurement that is wanted and fits the devices that are free."""
        under_way = {digest for digest, _ in trials.values()}
        for wanted in decision.measure:
            busy = {device for _, devices in trials.values() for device in devices}
            free = [device for device in self.setup.machine.devices if device not in busy]
            needed = wanted.candidate.gpus_per_replica
            if wanted.candidate.digest in under_way or needed > len(free) or (trials and not self.setup.side_by_side):
                continue
            devices = tuple(free[:needed])
            task = asyncio.create_task(self._try(wanted, devices))
            trials[task] = (wanted.candidate.digest, devices)
            under_way.add(wanted.candidate.digest)

    async def _try(self, wanted: NextMeasurement, devices: tuple[int, ...]) -> None:
        """Bring one candidate up, load it, take it down, and write down how it ended."""
        setup, shape = self.setup, wanted.candidate.shape
        run = self._run_for(wanted)
        record = FileRun(
            path=setup.store.path_of(run),
            url=f"http://{HOST}:{free_port()}",
            told=lambda progress: self._told(wanted.candidate, progress),
            measured=lambda cell: self.say(f"{shape}: {in_words(cell)}"),
        )
        try:
            outcome = await self._measured(wanted.candidate, run, record, devices)
        finally:
            self.doing.pop(wanted.candidate.digest, None)
        record.close(outcome)
        if outcome.name not in CANDIDATE_FAULTS | {"Complete"}:
            self.faults[wanted.candidate.digest] = (outcome.name, outcome.message)
        setup.store.note("outcome", run=run, outcome=outcome.name)
        self.say(f"{shape}: {outcome.name}: {outcome.message}")

    async def _measured(self, candidate: Candidate, run: str, record: FileRun, devices: tuple[int, ...]) -> Outcome:
        store = self.setup.store
        port = int(record.url.rpartition(":")[2])
        command = [*self.setup.engine_command, "serve", *local_arguments(self.setup, candidate, port)]
        store.note("engine", run=run, devices=list(devices), command=command)
        self.say(f"{candidate.shape}: starting the engine on {self._where(devices)}; it prints to {store.log_of(run)}")
        self.doing[candidate.digest] = f"{candidate.shape}: starting"
        engine: Engine | None = None
        try:
            engine = await start_engine(
                command,
                environment=self._environment(candidate, devices),
                port=port,
                log=store.log_of(run),
                mark=str(store.folder.resolve()),
            )
            seconds = await engine.wait_until_ready(candidate.placement.startup_timeout_seconds)
            store.note("ready", run=run, seconds=round(seconds, 3))
            self.say(f"{candidate.shape}: ready after {seconds:.0f} s")
            return await self._loaded(engine, run, record)
        except EngineFailedError as error:
            words = explain(engine.log_end()) if engine is not None else ""
            return Outcome(name=error.reason, message=f"{error.message}: {words}" if words else error.message)
        finally:
            if engine is not None:
                await _uncancelled(engine.stop(STOP_SECONDS))
                store.note("stopped", run=run)

    async def _loaded(self, engine: Engine, run: str, record: FileRun) -> Outcome:
        """Return how the load ended; an engine that dies under it is to blame, whatever its client saw."""
        store = self.setup.store

        def keep(asked: CellRequest, records: Sequence[RequestRecord]) -> None:
            store.keep_requests(run, asked, records)
            store.note("cell", run=run, concurrency=asked.concurrency, temperature=asked.temperature)

        job = asyncio.create_task(run_job(record, _session, self.setup.prompts, keep=keep))
        death = asyncio.create_task(engine.process.wait())
        try:
            await asyncio.wait({job, death}, return_when=asyncio.FIRST_COMPLETED)
            if job.done() and job.result().name == "Complete":
                return job.result()
            await asyncio.wait({death}, timeout=DEATH_SECONDS)
            if death.done():
                words = explain(engine.log_end()) or f"exit code {engine.process.returncode}"
                return Outcome(name="ServerFailed", message=f"The engine died under load: {words}")
            return job.result()
        finally:
            job.cancel()
            death.cancel()
            await asyncio.gather(job, death, return_exceptions=True)

    def _run_for(self, wanted: NextMeasurement) -> str:
        """Return the name of the run to go on with, else of a new one."""
        setup, candidate = self.setup, wanted.candidate
        for run in setup.store.runs(setup.workload):
            if run.candidate == candidate.digest and _is_open(run):
                return run.name
        server = server_name(setup.model.name, candidate, ROLE_SERVE)
        spec = run_spec(setup.model, candidate, server=server, cells=wanted.cells, dataset_digest=setup.prompts_digest)
        owner = Owner(kind="SpeculativeModel", name=setup.model.name, uid="")
        manifest = benchmark_run(owner, spec, candidate=candidate.digest, workload=setup.workload)
        del manifest["metadata"]["ownerReferences"]
        if notes := setup.caveats():
            manifest["metadata"]["annotations"] = {CAVEATS: "; ".join(notes)}
        setup.store.create(manifest)
        name: str = manifest["metadata"]["name"]
        return name

    def _told(self, candidate: Candidate, progress: RunProgress) -> None:
        left = "" if progress.remaining_seconds is None else f", about {progress.remaining_seconds} s left"
        self.doing[candidate.digest] = (
            f"{candidate.shape}: cell {progress.cell} of {progress.cells}: {progress.doing or 'done'}{left}"
        )

    def _where(self, devices: tuple[int, ...]) -> str:
        kind = "CPU part" if self.setup.machine.is_cpu else "GPU"
        return f"{kind} {' and '.join(map(str, devices))}"

    def _environment(self, candidate: Candidate, devices: tuple[int, ...]) -> dict[str, str]:
        own = {
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENGINE_READY_TIMEOUT_S": str(candidate.placement.startup_timeout_seconds),
            "PYTHONUNBUFFERED": "1",
        }
        # A key that the user's other servers want would be wanted here too, and nobody would know it.
        had = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
        return {**had, **own, **self.setup.machine.environment(devices), **dict(candidate.env)}


def local_arguments(setup: Setup, candidate: Candidate, port: int) -> list[str]:
    """Return what follows `serve`: the pod's own arguments, this machine's paths, and what only `try` may add."""
    arguments = engine_arguments(candidate, setup.paths, host=HOST, port=port)
    if setup.load_format:
        arguments += ["--load-format", setup.load_format]
    more = _speculation(setup, candidate.speculative_tokens)
    if more and "--speculative-config" in arguments:
        at = arguments.index("--speculative-config") + 1
        arguments[at] = json.dumps(json.loads(arguments[at]) | more, separators=(",", ":"))
    return arguments


def _speculation(setup: Setup, tokens: int) -> dict[str, object]:
    """Return members for `--speculative-config` that no manifest may ask for."""
    more: dict[str, object] = {}
    rate = setup.synthetic_acceptance.get(tokens)
    if rate is not None:
        more["rejection_sample_method"] = "synthetic"
        more["synthetic_acceptance_length"] = round(1 + tokens * rate, 6)
    if setup.schedule:
        more["num_speculative_tokens_per_batch_size"] = [list(step) for step in setup.schedule]
    return more


def _is_open(run: Run) -> bool:
    """Return whether a run can be gone on with: interrupted, or failed by no fault of its candidate."""
    return not run.is_complete and (run.failure is None or run.failure[0] not in CANDIDATE_FAULTS)


def _session(stall_seconds: float) -> aiohttp.ClientSession:
    return open_session(stall_seconds=stall_seconds)


async def _uncancelled(work: Coroutine[None, None, None]) -> None:
    """Finish stopping an engine even while this program is told to stop; a second cancellation kills it at once."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
