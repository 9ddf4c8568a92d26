"""The choice among assessed candidates, and what to measure next. Total, deterministic, independent of order.

Contract (the dataclasses below); the functions live beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specmodel.api.benchmark import CellRequest
from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec
from specmodel.domain.assessment import Assessment, Miss, assess
from specmodel.domain.candidate import Candidate
from specmodel.domain.measurement import Measurement


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


def decide_model(
    model: SpeculativeModel,
    candidates: Sequence[Candidate],
    measurements: Mapping[str, Measurement],
    incumbent: Candidate | None,
) -> Decision:
    """Assess every candidate and decide: the one entry for the reconcile loop and the command line.

    `candidates` is what the spec enumerates now. `measurements` is by candidate digest, for the spec's workload digest
    (see `measurement.gather`), the incumbent's included; a candidate that cannot be measured for now carries that in
    its measurement (`fault`; an empty Measurement with only `fault` will do), a candidate whose server failed carries
    `failure`, results to which nothing can be added carry `is_final`. `incumbent` is what the stable Service selects,
    or None.

    `serve` is None on a first install while a candidate that could win is Unmeasured (reason Undetermined), and when
    not even the baseline can run (NobodyEligible). With an incumbent `serve` is never None. Only `measure` says what to
    measure next, in order; it is empty when measuring is complete or impossible.
    """
    spec = model.spec
    assessments = [assess(candidate, measurements.get(candidate.digest), spec) for candidate in candidates]
    standing = assess(incumbent, measurements.get(incumbent.digest), spec) if incumbent is not None else None
    return decide(spec, assessments, standing)


def decide(
    spec: SpeculativeModelSpec, assessments: Sequence[Assessment], incumbent: Assessment | None = None
) -> Decision:
    """Choose among assessed candidates. Total, deterministic, independent of the order of `assessments`."""
    raise NotImplementedError
