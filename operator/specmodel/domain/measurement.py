"""What has been measured of one candidate under one workload: the union of the cells of its runs.

    BenchmarkRuns of one candidate ──gather──► Measurement ──assess──► Assessment

Cells come from a Job and are hostile input: `gather` only chooses among them; whether one contradicts itself is judged
in `assessment`, where the reason can be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specmodel.api.benchmark import Cell, CellRequest, Dataset, Metric, StopRule
from specmodel.api.model import Workload
from specmodel.api.wire import canonical_decimal
from specmodel.domain.candidate import digest_of
from specmodel.domain.observation import Run

#: What is always so of the load, in words that the digest covers: raised when the way of measuring changes.
LOAD_POLICY = "closed loop; greedy end ignored; warm-up discarded; seed 0"

#: Requests of a cell per stream: with fewer, ramp up and ramp down weigh on req/s.
REQUESTS_PER_STREAM = 6

#: Why a run or a cell failed when the candidate itself is to blame. Everything else is a fault of the infrastructure.
CANDIDATE_FAULTS = frozenset(
    {
        "EngineChanged",
        "EngineFailed",
        "ImplausibleCell",
        "ModelNotServed",
        "NoOutput",
        "ServerFailed",
        "Stalled",
        "StartupTimeout",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPercentile:
    """A percentile of one cell that a source states beside those of `Latency`: raw results hold any."""

    concurrency: int
    temperature: str
    metric: Metric
    percentile: int
    milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A cell that a complete run was asked for and under which stop rule: asking the same again brings nothing new."""

    cell: CellRequest
    stop: StopRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All cells of one candidate under one workload, and where they came from."""

    candidate: str
    cells: tuple[Cell, ...]
    runs: tuple[str, ...] = ()
    #: `vllm`, or `replay` as soon as one of the runs was against the replay engine.
    engine: str = ""
    engine_version: str = ""
    #: Set when the candidate could not run: reason and message of the failure (a Failed run, or a Failed server).
    failure: tuple[str, str] | None = None
    #: Set when the infrastructure, not the candidate, keeps it from being measured further: it then holds up no
    #: decision, and is never held against the candidate.
    fault: tuple[str, str] | None = None
    #: True when nothing more can be measured: results read from files.
    is_final: bool = False
    #: False when the source does not scrape the engine's counters, so that their absence says nothing.
    has_counters: bool = True
    asked: tuple[Asked, ...] = ()
    percentiles: tuple[KnownPercentile, ...] = ()

    def cell(self, concurrency: int, temperature: str) -> Cell | None:
        """Return the cell at a canonical temperature, or None."""
        for cell in self.cells:
            if cell.concurrency == concurrency and cell.temperature == temperature:
                return cell
        return None


def workload_digest(workload: Workload, dataset_digest: str | None) -> str:
    """Return 10 hex digits over what defines the load of every cell: the dataset's content and lengths, and our policy.

    Concurrency, temperature and requestsPerCell are properties of a cell, so that adding a level keeps what is
    measured. `dataset_digest` is the digest of the prompts' content (None for synthetic prompts).
    """
    return load_digest(workload.dataset, dataset_digest)


def load_digest(dataset: Dataset, dataset_digest: str | None) -> str:
    """Return the workload digest of a run's own dataset: equal digests are the same load."""
    prompts: object = None
    if dataset.prompts is not None:
        reference = dataset.prompts.config_map_ref
        content = dataset_digest or f"{reference.name}/{reference.key}"
        prompts = {"content": content, "output_tokens": dataset.prompts.output_tokens}
    synthetic = dataset.synthetic.to_wire() if dataset.synthetic is not None else None
    return digest_of({"synthetic": synthetic, "prompts": prompts, "policy": LOAD_POLICY})


def gather(candidate: str, runs: Iterable[Run]) -> Measurement | None:
    """Return what the runs (any order, of one candidate digest and one workload digest) measured, or None for no run.

    Of several measurements of a cell the one with most requests is kept, then that of the first run by name. Cells of
    a run that is still going on, or that failed half-way, count: each was written whole. A run that failed by the
    candidate's fault makes `failure`; one that failed by another's without finishing a cell makes `fault`.
    """
    mine = sorted(runs, key=lambda run: run.name)
    if not mine:
        return None
    best: dict[tuple[int, str], Cell] = {}
    for run in mine:
        for cell in run.status.cells:
            key = (cell.concurrency, canonical_decimal(cell.temperature))
            if key not in best or _rank(cell) > _rank(best[key]):
                best[key] = cell.model_copy(update={"temperature": key[1]})
    failed = [run.failure for run in mine if run.failure is not None]
    empty = [run.failure for run in mine if run.failure is not None and not run.status.cells]
    engines = [run.status.provenance for run in mine if run.status.provenance is not None]
    names = [provenance.engine for provenance in engines]
    return Measurement(
        candidate=candidate,
        cells=tuple(best[key] for key in sorted(best)),
        runs=tuple(run.name for run in mine),
        engine="replay" if "replay" in names else next(iter(names), ""),
        engine_version=next((p.engine_version for p in engines if p.engine_version), ""),
        failure=next((f for f in failed if f[0] in CANDIDATE_FAULTS), None),
        fault=next((f for f in empty if f[0] not in CANDIDATE_FAULTS), None),
        asked=tuple(
            Asked(cell=_canonical(cell), stop=run.spec.stop)
            for run in mine
            if run.is_complete
            for cell in run.spec.cells
        ),
    )


def _rank(cell: Cell) -> tuple[bool, int]:
    return cell.failure is None, cell.completed + cell.failed


def _canonical(cell: CellRequest) -> CellRequest:
    return cell.model_copy(update={"temperature": canonical_decimal(cell.temperature)})
