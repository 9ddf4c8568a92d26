"""What the measurements say of one candidate: its verdict, capacity and cost. The rule is decision.md's, exactly.

Contract (the dataclasses below); the functions live beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specmodel.api.benchmark import CellRequest, Limit
from specmodel.api.model import SpeculativeModelSpec
from specmodel.domain.candidate import Candidate
from specmodel.domain.measurement import Measurement


class Verdict(StrEnum):
    """Worst first; a candidate has its gates' worst."""

    FAILED = "Failed"
    VIOLATES = "Violates"
    UNMEASURED = "Unmeasured"
    INCONCLUSIVE = "Inconclusive"
    ELIGIBLE = "Eligible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A limit that a candidate missed at its lowest failing level, with the number measured."""

    limit: Limit
    concurrency: int
    temperature: str
    measured_milliseconds: float

    @property
    def excess(self) -> float:
        """Measured over allowed: the nearest miss has the smallest."""
        return self.measured_milliseconds / self.limit.max_milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """One candidate as judged. Figures are None where nothing measured says them."""

    candidate: Candidate
    verdict: Verdict
    reason: str
    message: str
    capacity: int | None = None
    #: Requests per second at capacity: the lowest over temperatures.
    throughput: float | None = None
    output_tokens_per_second: float | None = None
    #: At capacity, the worst over temperatures, in milliseconds.
    p50_milliseconds: float | None = None
    p99_milliseconds: float | None = None
    #: Accepted / drafted tokens over all measured cells, 0..1.
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    replicas: int | None = None
    gpus: int | None = None
    #: Cost per hour of what the demand needs (or, without a demand, GPU-hours x price per request/s), in price units.
    cost: float | None = None
    cost_per_million_tokens: float | None = None
    miss: Miss | None = None
    #: Cells that the verdict still needs, with their sizes: what a next run has to measure.
    missing: tuple[CellRequest, ...] = ()
    runs: tuple[str, ...] = ()
    engine: str = ""


def assess(candidate: Candidate, measurement: Measurement | None, spec: SpeculativeModelSpec) -> Assessment:
    """Judge one candidate by what is measured of it. Total: hostile cells end in a verdict, never in an exception."""
    raise NotImplementedError
