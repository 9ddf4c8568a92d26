"""A decision in the words of status: candidates, the decision, the figures of what serves, and what is known of them.

Pure, and shared by `report` (which knows the cluster) and by `specmodel decide` (which knows none). Every figure is
rounded here and nowhere else. Figures made from replayed measurements say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specmodel.api.conditions import ConditionStatus, ConditionType
from specmodel.api.model import CandidateStatus, DecisionStatus, ServingStatus, SpeculativeModelSpec
from specmodel.domain.assessment import Assessment, Verdict
from specmodel.domain.candidate import Candidate
from specmodel.domain.decision import Decision

#: Bounds of the wire types.
MESSAGE_MAXIMUM = 2000
RUNS_MAXIMUM = 16
CANDIDATES_MAXIMUM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A condition without its time and generation, which only the reporter knows."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str


def candidate_statuses(decision: Decision) -> list[CandidateStatus]:
    """Return every candidate with its verdict and figures: fewest GPUs first, then weights, then γ."""
    return [_candidate_status(one) for one in decision.assessments[:CANDIDATES_MAXIMUM]]


def decision_status(decision: Decision, *, time: str | None = None) -> DecisionStatus:
    """Return the decision in one sentence. `time` is when it was first taken (RFC 3339), None leaves it out."""
    return DecisionStatus(
        reason=decision.reason,
        message=decision.message[:MESSAGE_MAXIMUM],
        candidate=decision.serve.digest if decision.serve is not None else "",
        runner_up=decision.runner_up[:MESSAGE_MAXIMUM],
        time=time,
    )


def serving_status(candidate: Candidate, assessment: Assessment | None, *, replicas: int) -> ServingStatus:
    """Return shape and measured figures of what serves; revision, readiness, endpoint and since are report's."""
    bare = ServingStatus(
        candidate=candidate.digest,
        gpus_per_replica=candidate.gpus_per_replica,
        speculative_tokens=candidate.speculative_tokens,
        weights=candidate.weights,
        replicas=replicas,
        engine_image=candidate.engine_image,
    )
    if assessment is None:
        return bare
    return bare.model_copy(
        update={
            "capacity": assessment.capacity,
            "requests_per_second": _decimal(assessment.throughput, 2),
            "p99_milliseconds": _whole(assessment.p99_milliseconds),
            "acceptance_rate_percent": _percent(assessment.acceptance_rate),
            "cost_per_million_tokens": _decimal(assessment.cost_per_million_tokens, 3),
            "engine": assessment.engine,
        }
    )


def benchmarked(decision: Decision) -> Finding:
    """Return condition Benchmarked: whether every candidate that could win has been measured."""
    kind = ConditionType.BENCHMARKED
    total = len(decision.assessments)
    if decision.measure:
        pending = len(decision.measure)
        cells = sum(len(wanted.cells) for wanted in decision.measure)
        first = decision.measure[0].candidate.shape
        message = f"{total - pending} of {total} candidates are judged; {cells} cells remain, next {first}."
        return Finding(type=kind, status=ConditionStatus.FALSE, reason="MeasurementPending", message=message)
    blocked = [one for one in decision.assessments if one.verdict is Verdict.UNMEASURED and one.reason != "CannotWin"]
    if blocked:
        first_blocked = f"{blocked[0].candidate.shape}: {blocked[0].message}"
        message = f"{len(blocked)} of {total} candidates cannot be measured; {first_blocked}."
        return Finding(type=kind, status=ConditionStatus.FALSE, reason="MeasurementBlocked", message=message)
    skipped = sum(one.reason == "CannotWin" for one in decision.assessments)
    message = f"All {total - skipped} candidates that could win are judged{_replayed(decision)}."
    if skipped:
        message += f" {skipped} more cannot win and were not measured."
    return Finding(type=kind, status=ConditionStatus.TRUE, reason="Measured", message=message)


def within_sla(decision: Decision, serving: Candidate | None, spec: SpeculativeModelSpec) -> Finding:
    """Return condition WithinSla of what serves (or of what the decision would serve, when `serving` is None)."""
    kind = ConditionType.WITHIN_SLA
    subject = serving if serving is not None else decision.serve
    one = decision.assessment_of(subject) if subject is not None else None
    if one is None:
        reason = "MeasurementPending" if decision.measure else "NotMeasured"
        message = "Nothing serves yet." if subject is None else f"{subject.shape} has no measurement that says so."
        if decision.serve is None and not decision.measure:
            message = f"Nothing serves: {decision.message}"
        return Finding(type=kind, status=ConditionStatus.UNKNOWN, reason=reason, message=message)
    shape, replayed = one.candidate.shape, _replayed(decision)
    match one.verdict:
        case Verdict.ELIGIBLE if not spec.sla.limits:
            message = f"The SLA has no latency limit; {shape} {one.message}{replayed}."
            return Finding(type=kind, status=ConditionStatus.TRUE, reason="NoLimits", message=message)
        case Verdict.ELIGIBLE:
            message = f"{shape} {one.message}{replayed}."
            return Finding(type=kind, status=ConditionStatus.TRUE, reason="WithinLimits", message=message)
        case Verdict.VIOLATES:
            reason = one.reason if one.miss is None else "LimitExceeded"
            message = f"{shape} violates: {one.message}{replayed}."
            if decision.nearest_miss is not None and decision.nearest_miss != one.miss:
                message += f" Nearest miss: {_nearest_in_words(decision)}."
            return Finding(type=kind, status=ConditionStatus.FALSE, reason=reason, message=message)
        case Verdict.FAILED:
            message = f"{shape} failed: {one.message}"
            return Finding(type=kind, status=ConditionStatus.FALSE, reason=one.reason, message=message)
        case Verdict.INCONCLUSIVE:
            message = f"{shape} may pass: {one.message}{replayed}."
            return Finding(type=kind, status=ConditionStatus.UNKNOWN, reason="Undecided", message=message)
        case Verdict.UNMEASURED:
            reason = "MeasurementPending" if one.missing else "NotMeasured"
            message = f"{shape}: {one.message}."
            return Finding(type=kind, status=ConditionStatus.UNKNOWN, reason=reason, message=message)


def _candidate_status(one: Assessment) -> CandidateStatus:
    shape = one.candidate.shape
    return CandidateStatus(
        candidate=one.candidate.digest,
        gpus_per_replica=shape.gpus_per_replica,
        speculative_tokens=shape.speculative_tokens,
        weights=shape.weights,
        verdict=one.verdict.value,
        reason=one.reason,
        message=one.message[:MESSAGE_MAXIMUM],
        capacity=one.capacity,
        requests_per_second=_decimal(one.throughput, 2),
        p50_milliseconds=_whole(one.p50_milliseconds),
        p99_milliseconds=_whole(one.p99_milliseconds),
        acceptance_rate_percent=_percent(one.acceptance_rate),
        mean_acceptance_length=_decimal(one.mean_acceptance_length, 2),
        replicas_needed=one.replicas,
        gpus_needed=one.gpus,
        cost_per_million_tokens=_decimal(one.cost_per_million_tokens, 3),
        engine=one.engine,
        runs=list(one.runs[:RUNS_MAXIMUM]),
    )


def _nearest_in_words(decision: Decision) -> str:
    who = next((str(one.candidate.shape) for one in decision.assessments if one.miss == decision.nearest_miss), "")
    return f"{who}, {decision.nearest_miss}"


def _replayed(decision: Decision) -> str:
    return " (replayed, not a GPU)" if any(one.engine == "replay" for one in decision.assessments) else ""


def _decimal(value: float | None, digits: int) -> str | None:
    """Return a figure as the wire's decimal string, or None where there is none or it is beyond the wire's bounds."""
    if value is None or not math.isfinite(value) or not 0 <= value < 1e9:
        return None
    return f"{value:.{digits}f}"


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else round(value)


def _percent(rate: float | None) -> int | None:
    return None if rate is None else round(100 * rate)
