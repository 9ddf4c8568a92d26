"""A decision in the words of status: candidates, the decision, the figures of what serves, and what is known of them.

Pure, and shared by `report` (which knows the cluster) and by `specmodel decide` (which knows none). Every figure is
rounded here and nowhere else. Figures made from replayed measurements say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from specmodel.api.conditions import ConditionStatus, ConditionType
from specmodel.api.model import CandidateStatus, DecisionStatus, ServingStatus, SpeculativeModelSpec
from specmodel.domain.assessment import Assessment
from specmodel.domain.candidate import Candidate
from specmodel.domain.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A condition without its time and generation, which only the reporter knows."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str


def candidate_statuses(decision: Decision) -> list[CandidateStatus]:
    """Return every candidate with its verdict and figures: fewest GPUs first, then weights, then γ."""
    raise NotImplementedError


def decision_status(decision: Decision, *, time: str | None = None) -> DecisionStatus:
    """Return the decision in one sentence. `time` is when it was first taken (RFC 3339), None leaves it out."""
    raise NotImplementedError


def serving_status(candidate: Candidate, assessment: Assessment | None, *, replicas: int) -> ServingStatus:
    """Return shape and measured figures of what serves; revision's readiness, endpoint and since are report's to add."""
    raise NotImplementedError


def benchmarked(decision: Decision) -> Finding:
    """Return condition Benchmarked: whether every candidate that could win has been measured."""
    raise NotImplementedError


def within_sla(decision: Decision, serving: Candidate | None, spec: SpeculativeModelSpec) -> Finding:
    """Return condition WithinSla of what serves (or of what the decision would serve, when `serving` is None)."""
    raise NotImplementedError
