"""The choice among assessed candidates, and what to measure next. Total, deterministic, independent of order.

Contract (the dataclasses below); the functions live beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specmodel.api.benchmark import CellRequest
from specmodel.domain.assessment import Assessment, Miss
from specmodel.domain.candidate import Candidate


class Sla(StrEnum):
    """Whether what is chosen to serve is within the SLA."""

    WITHIN = "True"
    OUTSIDE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextMeasurement:
    """The candidate to measure next and its missing cells."""

    candidate: Candidate
    cells: tuple[CellRequest, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to serve, what to measure next, and why. `serve` is None while nothing may serve yet."""

    serve: Candidate | None
    replicas: int
    reason: str
    message: str
    within_sla: Sla
    runner_up: str = ""
    assessments: tuple[Assessment, ...] = ()
    #: In order: the first is measured first. Empty when measuring is complete.
    measure: tuple[NextMeasurement, ...] = ()
    nearest_miss: Miss | None = None

    def assessment_of(self, candidate: Candidate) -> Assessment | None:
        """Return the assessment of a candidate by its digest, or None."""
        for assessment in self.assessments:
            if assessment.candidate.digest == candidate.digest:
                return assessment
        return None
