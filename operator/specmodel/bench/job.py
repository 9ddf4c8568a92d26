"""One benchmark Job from its BenchmarkRun to its outcome.

Every wait has a deadline and ends in an outcome that says which; a cell is written whole or not at all, so that a Job
that is killed at any line goes on at the next cell when it is started again. Faults of the infrastructure (the API
server away, no right to write) are exceptions and leave no outcome: the next pod tries again.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import aiohttp

from specmodel import __version__
from specmodel.api.benchmark import AcceptanceCounters, BenchmarkRunSpec, Cell, CellRequest, Provenance, RunProgress
from specmodel.api.wire import canonical_decimal
from specmodel.bench import counters, course, figures
from specmodel.bench.load import (
    LOAD_GENERATOR,
    CellDeadlineError,
    Load,
    Patience,
    Prompt,
    RequestRecord,
    StalledError,
    run_cell,
    warm_up,
)
from specmodel.bench.prompts import FilePrompts, PromptsError, SyntheticPrompts, cell_seed, read_prompts
from specmodel.bench.run_status import ApiUnavailableError, Found, InvalidRunError, RunGoneError
from specmodel.bench.target import ModelNotServedError, TargetServer, TargetUnreachableError
from specmodel.domain.statistics import percentile

#: Progress is written at cell boundaries, and between them at most this often.
PROGRESS_SECONDS = 10.0
#: On SIGTERM there is only the pod's grace period left to say so.
LAST_WORD_SECONDS = 5.0

log = logging.getLogger("specmodel.bench")


class RunRecord(Protocol):
    """Where a run is read and written: a BenchmarkRun at the API server, or a file. Errors are `run_status`'s."""

    async def read(self) -> Found:
        """Return the run as it stands."""

    async def write(
        self,
        *,
        progress: RunProgress,
        cells: Sequence[Cell] | None = None,
        provenance: Provenance | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        """Write what is given; what is None stays."""


#: Takes every request of a finished cell, in the order in which they ended.
KeepRequests = Callable[[CellRequest, Sequence[RequestRecord]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: a reason of `RUN_REASONS`, or Complete, and what a person reads."""

    name: str
    message: str


class OutcomeError(Exception):
    """Ends the run with an outcome that is a result."""

    def __init__(self, name: str, message: str) -> None:
        """Carry the outcome to `run_job`, which records it."""
        super().__init__(message)
        self.outcome = Outcome(name=name, message=message)


async def run_job(
    status: RunRecord,
    session: Callable[[float], aiohttp.ClientSession],
    prompts: Path,
    *,
    keep: KeepRequests | None = None,
) -> Outcome:
    """Measure the cells that the run lacks and return the outcome, which is then in its status.

    `session` makes the session for the target, given the seconds that a read may take. `prompts` is the folder where
    the prompts' key is mounted under its name, or the file itself. Raises ApiUnavailableError and RunGoneError with
    nothing recorded. When cancelled it says in the progress where the next pod goes on.
    """
    try:
        found = await status.read()
    except InvalidRunError as error:
        outcome = Outcome(name="InvalidRun", message=str(error))
        await status.write(progress=RunProgress(cell=0, cells=0, outcome=outcome.name, message=outcome.message))
        return outcome
    if found.outcome == "Complete":
        return Outcome(name=found.outcome, message="this run had ended before; nothing was measured")
    # Any other outcome is an earlier attempt's: the operator makes a new Job only to try again.
    async with session(found.spec.stall_seconds) as target_session:
        job = _Job(
            status=status,
            spec=found.spec,
            target=TargetServer(session=target_session, url=found.spec.target.url, model=found.spec.target.model),
            prompts_at=prompts,
            uid=found.uid,
            done={course.key_of(cell): cell for cell in found.cells},
            started=_started(found),
            keep=keep,
        )
        try:
            outcome = await job.outcome()
        except OutcomeError as error:
            outcome = error.outcome
        except asyncio.CancelledError:
            await job.say_interrupted()
            raise
        await job.finish(outcome)
    return outcome


def _started(found: Found) -> datetime:
    """Return when the run began to be measured, in an earlier pod if there was one: the deadline counts from there."""
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        begun = datetime.fromisoformat((found.provenance and found.provenance.started_at) or "")
    except ValueError:
        return now
    return min(begun, now) if begun.tzinfo else now


@dataclass(slots=True, kw_only=True)
class _Job:
    status: RunRecord
    spec: BenchmarkRunSpec
    target: TargetServer
    prompts_at: Path
    uid: str
    done: dict[course.Key, Cell]
    started: datetime
    keep: KeepRequests | None = None
    #: Median seconds of a request, for the estimate only.
    latencies: dict[course.Key, float] = field(default_factory=dict)
    prompts: FilePrompts | SyntheticPrompts | None = None
    is_vllm: bool = False
    doing: str = ""
    note: str = ""
    at: int = 0

    async def outcome(self) -> Outcome:
        """Measure what is missing. Raises OutcomeError for every other end."""
        for key, cell in self.done.items():
            if cell.e2e_latency is not None:
                self.latencies[key] = cell.e2e_latency.p50_microseconds / 1e6
        try:
            async with asyncio.timeout(self._seconds_left()):
                await self._prepare()
                await self._measure_all()
        except TimeoutError as error:
            message = f"spec.deadlineSeconds ({self.spec.deadline_seconds}) passed during: {self.doing}"
            raise OutcomeError("DeadlineExceeded", message) from error
        except TargetUnreachableError as error:
            raise OutcomeError("TargetUnreachable", str(error)) from error
        except ModelNotServedError as error:
            raise OutcomeError("ModelNotServed", str(error)) from error
        except (StalledError, CellDeadlineError) as error:
            raise OutcomeError("Stalled", f"{self.doing}: {error}") from error
        except counters.EngineChangedError as error:
            raise OutcomeError("EngineChanged", f"{self.doing}: {error}") from error
        except PromptsError as error:
            raise OutcomeError("InvalidRun", str(error)) from error
        return Outcome(name="Complete", message=self._summary())

    def _seconds_left(self) -> float:
        spent = (datetime.now(UTC) - self.started).total_seconds()
        return max(0.0, self.spec.deadline_seconds - spent)

    async def _prepare(self) -> None:
        """Wait for the target, say what it is, and make ready what to ask it."""
        self.doing = f"waiting for {self.spec.target.url} to serve {self.spec.target.model}"
        await self._write()
        if self.spec.dataset.prompts is not None:
            key = self.spec.dataset.prompts.config_map_ref.key
            self.prompts = read_prompts(self.prompts_at / key if self.prompts_at.is_dir() else self.prompts_at)
        await self.target.wait_until_served(self.spec.stall_seconds)
        self.doing = "preparing the load"
        identity = await self.target.identity()
        self.is_vllm = bool(identity.engine)
        provenance = Provenance(
            engine=identity.engine or "unknown",
            engine_version=identity.version,
            replay_table=identity.replay_table,
            load_generator=LOAD_GENERATOR,
            instrument_version=__version__,
            model=self.spec.target.model,
            started_at=_stamp(self.started),
        )
        await self._write(provenance=provenance)
        if self.spec.dataset.synthetic is not None:
            vocabulary = await self.target.vocabulary()
            self.prompts = SyntheticPrompts(
                vocabulary=vocabulary, input_tokens=self.spec.dataset.synthetic.input_tokens
            )

    async def _measure_all(self) -> None:
        ordered = course.in_order(self.spec.cells)
        for index, asked in enumerate(ordered, start=1):
            key = course.key_of(asked)
            if key in self.done or key in self._needless():
                continue
            self.at = index
            cell = await self._measure(asked)
            self.done[key] = cell
            if cell.e2e_latency is not None:
                self.latencies[key] = cell.e2e_latency.p50_microseconds / 1e6
            self.doing = f"measured {_name(asked)}"
            await self._write(cells=True)
            log.info("measured %s", figures.in_words(cell))

    async def _measure(self, asked: CellRequest) -> Cell:
        load = self._load(asked)
        size = course.first_size(asked)
        self.doing = f"{_name(asked)}: warming up"
        if self.spec.warmup_seconds:
            warm = await warm_up(
                self.target.session,
                load,
                self._stream(asked, "warm-up"),
                self.spec.warmup_seconds,
                self._patience(asked, size),
            )
            seen = sorted(record.e2e for record in warm if not record.error)
            if seen:
                self.latencies.setdefault(course.key_of(asked), percentile(seen, 50))
        before = await self._counters()
        started_at = _stamp(datetime.now(UTC))
        records: list[RequestRecord] = []
        seconds = 0.0
        for part in itertools.count():
            prompts = itertools.islice(self._stream(asked, f"load {part}"), size)
            async with self._reporting(asked, len(records), len(records) + size) as finished:
                result = await run_cell(self.target.session, load, prompts, self._patience(asked, size), finished)
            records += result.records
            seconds += result.seconds
            cell = figures.cell_of(
                asked,
                figures.Measured(
                    records=records,
                    seconds=seconds,
                    acceptance=await self._acceptance(before),
                    started_at=started_at,
                    finished_at=_stamp(datetime.now(UTC)),
                ),
            )
            size = course.extension(asked, cell, self.spec.stop)
            if not size:
                if self.keep is not None:
                    self.keep(asked, records)
                return cell
        raise AssertionError  # pragma: no cover  count() has no end

    def _load(self, asked: CellRequest) -> Load:
        dataset = self.spec.dataset.synthetic or self.spec.dataset.prompts
        if dataset is None:
            message = "spec.dataset: set exactly one of synthetic and prompts"
            raise OutcomeError("InvalidRun", message)
        salt = f"{self.uid}/{asked.concurrency}/{asked.temperature}"
        return Load(
            url=self.spec.target.url,
            model=self.spec.target.model,
            concurrency=asked.concurrency,
            temperature=float(asked.temperature),
            output_tokens=dataset.output_tokens,
            ignore_eos=self.spec.dataset.synthetic is not None,
            cache_salt=hashlib.sha256(salt.encode()).hexdigest()[:16] if self.is_vllm else None,
        )

    def _stream(self, asked: CellRequest, part: str) -> Iterator[Prompt]:
        if self.prompts is None:
            message = "the prompts are read before the first cell"
            raise AssertionError(message)
        temperature = canonical_decimal(asked.temperature)
        return self.prompts.stream(cell_seed(self.spec.seed, asked.concurrency, temperature, part))

    def _patience(self, asked: CellRequest, size: int) -> Patience:
        """Return the bounds of one part of a cell: no request may need longer than a stall."""
        requests_per_stream = -(-size // asked.concurrency)
        stall = float(self.spec.stall_seconds)
        return Patience(stall_seconds=stall, cell_seconds=stall * (requests_per_stream + 1))

    async def _counters(self) -> counters.Counters | None:
        """Return the engine's counters, or None, with a note in the progress, for a page that cannot be parsed."""
        try:
            return await self.target.counters()
        except counters.MetricsError as error:
            self.note = str(error)
            log.warning("%s", error)
            return None

    async def _acceptance(self, before: counters.Counters | None) -> AcceptanceCounters | None:
        after = await self._counters()
        if before is None or after is None:
            return None
        counters.check_same_engine(before, after)
        queries = counters.difference(before, after, counters.CACHE_QUERIES)
        hits = counters.difference(before, after, counters.CACHE_HITS)
        if self.spec.dataset.synthetic is not None and hits * 100 > queries:
            self.note = f"{hits} of {queries} prompt tokens came from the prefix cache, with random prompts"
        return counters.acceptance(before, after)

    @asynccontextmanager
    async def _reporting(
        self, asked: CellRequest, had: int, size: int
    ) -> AsyncIterator[Callable[[RequestRecord], None]]:
        """Give a callback for finished requests, and write how many there are every PROGRESS_SECONDS meanwhile."""
        count = itertools.count(had + 1)

        def finished(_: RequestRecord) -> None:
            self.doing = f"{_name(asked)}: {next(count)} of {size} requests"

        self.doing = f"{_name(asked)}: {had} of {size} requests"
        writing = asyncio.create_task(self._keep_writing())
        try:
            yield finished
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            if not writing.cancelled() and (error := writing.exception()) is not None:
                raise error

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            try:
                await self._write(patience_seconds=PROGRESS_SECONDS)
            except ApiUnavailableError as error:
                # The cell goes on: what it measures is written, with more patience, at its end.
                log.warning("progress was not written: %s", error)

    async def _write(
        self,
        *,
        cells: bool = False,
        provenance: Provenance | None = None,
        outcome: Outcome | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        ordered = course.in_order(self.spec.cells)
        needless = self._needless()
        todo = [
            cell for cell in ordered if course.key_of(cell) not in self.done and course.key_of(cell) not in needless
        ]
        await self.status.write(
            progress=RunProgress(
                cell=self.at,
                cells=len(ordered),
                doing="" if outcome else self.doing[:256],
                remaining_seconds=self._remaining(todo, outcome),
                outcome=outcome.name if outcome else "",
                message=(outcome.message if outcome else self.note)[:2048],
                updated_at=_stamp(datetime.now(UTC)),
            ),
            cells=[self.done[key] for key in sorted(self.done)] if cells else None,
            provenance=provenance,
            patience_seconds=patience_seconds,
        )

    def _remaining(self, todo: list[CellRequest], outcome: Outcome | None) -> int | None:
        return 0 if outcome else course.remaining_seconds(todo, self.latencies, self.spec.warmup_seconds)

    async def finish(self, outcome: Outcome) -> None:
        """Record the outcome."""
        if outcome.name == "Complete":
            self.at = len(course.in_order(self.spec.cells))
        await self._write(cells=True, outcome=outcome)
        log.info("%s: %s", outcome.name, outcome.message)

    async def say_interrupted(self) -> None:
        """Say in the progress that another pod goes on, if the API server answers at once."""
        self.doing = f"interrupted during {self.doing}"
        try:
            await self._write(patience_seconds=LAST_WORD_SECONDS)
        except (ApiUnavailableError, RunGoneError) as error:
            log.warning("the interruption was not written: %s", error)

    def _needless(self) -> dict[course.Key, course.Key]:
        return course.needless(self.spec.cells, self.done, self.spec.stop)

    def _summary(self) -> str:
        ordered = course.in_order(self.spec.cells)
        needless = {key: below for key, below in self._needless().items() if key not in self.done}
        measured = len([cell for cell in ordered if course.key_of(cell) in self.done])
        parts = [f"{measured} of {len(ordered)} cells measured"]
        for concurrency, temperature in sorted(set(needless.values())):
            parts.append(f"levels above {concurrency} at temperature {temperature} not needed: {concurrency} fails")
        return "; ".join([*parts, self.note] if self.note else parts)


def _name(asked: CellRequest) -> str:
    return f"concurrency {asked.concurrency}, temperature {asked.temperature}"


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
