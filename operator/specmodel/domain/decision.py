"""The choice among assessed candidates, and what to measure next. Total, deterministic, independent of order.

    assessments ──► somebody Unmeasured who could win ──yes──► measure; what serves goes on serving
                        │ no
                        ├── Eligible: the best by the objective, unless the incumbent is within minGainPercent
                        ├── else Inconclusive: may serve, WithinSla Unknown
                        └── else the incumbent stays; on first install the baseline serves, WithinSla False

Pure. Judging one candidate is `assessment`'s work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from specmodel.api.benchmark import CellRequest
from specmodel.api.model import Objective, SpeculativeModel, SpeculativeModelSpec, Weights
from specmodel.domain.assessment import (
    METRIC_WORDS,
    Assessment,
    Miss,
    Verdict,
    assess,
    first_metric,
    gpu_budget,
    least_replicas,
    price_of,
)
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
    """Choose among assessed candidates. Total, deterministic, independent of the order of `assessments`.

    `incumbent` is the assessment of what serves, whether or not the spec still enumerates it.
    """
    field = _field_of(spec, assessments, incumbent)
    pending = [one for one in field.pool if one.verdict is Verdict.UNMEASURED and one.missing]
    decision = _wait(field, pending) if pending else _choose(field)
    if not any(one.engine == "replay" for one in field.pool):
        return decision
    return replace(decision, message=f"{decision.message} (replayed, not a GPU)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """Who competes, under which rule."""

    spec: SpeculativeModelSpec
    #: Those that compete, in a stable order, candidates that cannot win marked so.
    pool: tuple[Assessment, ...]
    #: What serves; the pool's own assessment of it where it competes.
    standing: Assessment | None
    #: True when what serves differs from everything that the spec enumerates by more than the drafter.
    is_foreign: bool
    #: True when what serves competes although the spec no longer enumerates it (another drafter).
    is_former: bool

    @property
    def everyone(self) -> tuple[Assessment, ...]:
        """All assessments to be told of: the pool, and what serves."""
        if self.is_foreign and self.standing is not None:
            return (*self.pool, self.standing)
        return self.pool

    def eligible(self) -> list[Assessment]:
        """Return those that passed every gate, best first."""
        return self.ranked(one for one in self.pool if one.verdict is Verdict.ELIGIBLE)

    def ranked(self, some: Iterable[Assessment]) -> list[Assessment]:
        """Return assessments best first: by the objective, then by decision.md's ties."""
        return sorted(some, key=lambda one: (_badness(one, self.spec), *_ties(one)))

    def name(self, one: Assessment) -> str:
        """Return a candidate's name for people: its shape, and what tells it from another of the same shape."""
        shapes = Counter(str(other.candidate.shape) for other in self.everyone)
        shape = str(one.candidate.shape)
        if shapes[shape] < 2:
            return shape
        if one.candidate.drafter_uri and not (self.is_foreign and one is self.standing):
            return f"{shape} with {one.candidate.drafter_uri}@{one.candidate.drafter_revision}"
        return f"{shape} ({one.candidate.digest})"


def _field_of(spec: SpeculativeModelSpec, assessments: Sequence[Assessment], incumbent: Assessment | None) -> _Field:
    mine = {one.candidate.digest: one for one in sorted(assessments, key=_order)}
    standing = incumbent
    is_foreign = is_former = False
    if incumbent is not None and incumbent.candidate.digest in mine:
        standing = mine[incumbent.candidate.digest]
    elif incumbent is not None:
        is_former = any(_is_other_drafter(incumbent.candidate, one.candidate) for one in mine.values())
        is_foreign = not is_former
        # What the spec has given up is not worth a GPU-minute.
        standing = replace(incumbent, missing=()) if is_foreign else incumbent
        if is_former:
            mine[incumbent.candidate.digest] = incumbent
    pool = tuple(sorted(mine.values(), key=_order))
    field = _Field(spec=spec, pool=pool, standing=standing, is_foreign=is_foreign, is_former=is_former)
    return replace(field, pool=tuple(_unless_hopeless(field, one) for one in pool))


def _order(one: Assessment) -> tuple[int, str, int, str, str]:
    """Cheapest first: fewest GPUs per replica, then weights, then the reference before the drafter."""
    candidate = one.candidate
    shape = candidate.shape
    return shape.gpus_per_replica, shape.weights, shape.speculative_tokens, candidate.digest, candidate.revision


def _is_other_drafter(one: Candidate, other: Candidate) -> bool:
    """Return whether two candidates differ in the drafter's place or revision alone."""
    if not one.speculative_tokens:
        return False
    same = replace(one, drafter_uri=other.drafter_uri, drafter_revision=other.drafter_revision)
    return same.digest == other.digest


# --- spending little --------------------------------------------------------------------------------------------------


def _unless_hopeless(field: _Field, one: Assessment) -> Assessment:
    """Return the assessment without its missing cells when even its best possible cost cannot win.

    Sound because replicas are whole: a demand costs at least its fewest replicas. Without a demand, or under another
    objective, nothing known bounds an unmeasured candidate, and all are measured.
    """
    if one.verdict is not Verdict.UNMEASURED or not one.missing or _is_reference(field, one):
        return one
    spec = field.spec
    if spec.selection.objective is not Objective.LOWEST_COST or spec.workload.demand is None:
        return one
    least = least_replicas(spec) * one.candidate.gpus_per_replica * price_of(spec)
    costs = [other.cost for other in field.pool if other.verdict is Verdict.ELIGIBLE and other.cost is not None]
    if not costs:
        return one
    best = min(costs)
    message = f"not measured: it would cost at least {least:g} per hour, the best measured costs {best:g}"
    if least > best:
        return replace(one, reason="CannotWin", message=message, missing=())
    standing = field.standing
    if standing is None or field.is_foreign or standing.verdict is not Verdict.ELIGIBLE or standing.cost is None:
        return one
    if standing is one or _is_enough(standing.cost, least, spec):
        return one
    gain = spec.selection.min_gain_percent
    message = (
        f"not measured: it would cost at least {least:g} per hour, what serves costs {standing.cost:g}; "
        f"wanted gain {gain} %"
    )
    return replace(one, reason="CannotWin", message=message, missing=())


def _is_reference(field: _Field, one: Assessment) -> bool:
    """Return whether this is the drafterless candidate of the smallest topology: it is measured whatever wins."""
    fewest = min(other.candidate.gpus_per_replica for other in field.pool)
    return one.candidate.speculative_tokens == 0 and one.candidate.gpus_per_replica == fewest


def _wait(field: _Field, pending: Sequence[Assessment]) -> Decision:
    """Return the decision to go on measuring; what serves goes on serving meanwhile."""
    first = pending[0]
    judged = len(field.pool) - len(pending)
    message = (
        f"{judged} of {len(field.pool)} candidates are judged; {field.name(first)} is measured next "
        f"({len(first.missing)} cells)."
    )
    standing = field.standing
    if standing is not None:
        message += f" {field.name(standing)} goes on serving meanwhile."
    return Decision(
        serve=standing.candidate if standing is not None else None,
        replicas=_wanted(field.spec, standing),
        reason="Undetermined",
        message=message,
        within_sla=_sla(standing),
        assessments=field.everyone,
        measure=tuple(
            NextMeasurement(candidate=one.candidate, cells=one.missing, why=f"{field.name(one)}: {one.message}")
            for one in pending
        ),
        nearest_miss=_nearest(field)[1],
    )


# --- choosing ---------------------------------------------------------------------------------------------------------


def _choose(field: _Field) -> Decision:
    eligible = field.eligible()
    if not eligible:
        return _fall_back(field)
    best, standing = eligible[0], field.standing
    if standing is None or standing.verdict is not Verdict.ELIGIBLE or field.is_foreign or best is standing:
        reason = field.spec.selection.objective.value
        if best is standing and field.is_former:
            reason = "IncumbentKept"
        elif len(eligible) == 1:
            reason = "OnlyEligible"
        return _serve(field, best, reason, _why_best(field, eligible))
    if _is_enough(_badness(standing, field.spec), _badness(best, field.spec), field.spec):
        return _serve(field, best, field.spec.selection.objective.value, _why_best(field, eligible))
    return _serve(field, standing, "IncumbentKept", _why_kept(field, best))


def _is_enough(before: float, after: float, spec: SpeculativeModelSpec) -> bool:
    """Return whether a challenger's badness is so far below the incumbent's that it replaces it."""
    return after < before and _gain_percent(before, after) >= spec.selection.min_gain_percent


def _gain_percent(before: float, after: float) -> float:
    """Return by how many percent of the incumbent's value a challenger is better. Badness of a rate is its negative."""
    if before == 0 or math.isinf(before):
        return math.inf if after < before else 0.0
    gain = 100 * (before - after) / abs(before)
    # A gain of exactly minGainPercent must not fail on the last bit.
    return round(gain, 9)


def _badness(one: Assessment, spec: SpeculativeModelSpec) -> float:
    """Return what the objective minimises."""
    objective = spec.selection.objective
    match objective:
        case Objective.LOWEST_COST:
            return math.inf if one.cost is None else one.cost
        case Objective.HIGHEST_THROUGHPUT:
            return -_most_within_budget(one, spec)
        case Objective.LOWEST_LATENCY:
            return math.inf if one.latency_milliseconds is None else one.latency_milliseconds
    assert_never(objective)


def _most_within_budget(one: Assessment, spec: SpeculativeModelSpec) -> float:
    """Return the requests per second of as many replicas as the budget allows."""
    return gpu_budget(spec) // one.candidate.gpus_per_replica * (one.throughput or 0.0)


def _ties(one: Assessment) -> tuple[float, int, int, str]:
    median = math.inf if one.p50_milliseconds is None else one.p50_milliseconds
    return median, one.candidate.gpus_per_replica, one.candidate.speculative_tokens, one.candidate.digest


def _fall_back(field: _Field) -> Decision:
    """Return what serves when nobody is eligible."""
    standing = field.standing
    nearest, _ = _nearest(field)
    because = "Nobody is eligible"
    if nearest is not None and nearest.miss is not None:
        because += f"; nearest miss: {field.name(nearest)}, {nearest.miss}"
    elif other := next((one for one in field.pool if one.verdict is not Verdict.UNMEASURED), None):
        because += f"; {field.name(other)}: {other.message.removesuffix('.')}"
    maybe = [one for one in field.pool if one.verdict is Verdict.INCONCLUSIVE]
    if maybe and not field.is_foreign:
        best = standing if standing in maybe and standing is not None else _likeliest(field, maybe)
        return _serve(field, best, "InconclusiveServes", f"{because}; {field.name(best)} may pass: {best.message}.")
    baseline = _baseline(field)
    if standing is not None and (baseline is None or standing.candidate.digest != baseline.candidate.digest):
        return _serve(field, standing, "IncumbentFallback", f"{because}. {field.name(standing)} goes on serving.")
    if baseline is not None:
        text = f"{because}. The baseline {field.name(baseline)} serves without being within the limits."
        if baseline.verdict is Verdict.UNMEASURED:
            text = f"{because}. The baseline {field.name(baseline)} serves unmeasured: {baseline.message}."
        return _serve(field, baseline, "BaselineFallback", text)
    return Decision(
        serve=None,
        replicas=_wanted(field.spec, None),
        reason="NobodyEligible",
        message=f"{because}. Not even a baseline without drafter can run.",
        within_sla=Sla.OUTSIDE,
        assessments=field.everyone,
        nearest_miss=_nearest(field)[1],
    )


def _likeliest(field: _Field, maybe: Sequence[Assessment]) -> Assessment:
    """Return the undecided candidate to serve: first those whose observed percentile is within the limit."""

    def rank(one: Assessment) -> tuple[bool, float, tuple[float, int, int, str]]:
        return one.miss is not None and one.miss.excess > 1, _badness(one, field.spec), _ties(one)

    return min(maybe, key=rank)


def _baseline(field: _Field) -> Assessment | None:
    """Return the fallback of a first install: no drafter, able to run, measured, of the smallest topology."""
    able = [
        one
        for one in field.pool
        if one.candidate.speculative_tokens == 0 and one.verdict is not Verdict.FAILED and one.reason != "OverBudget"
    ]
    precision = {Weights.NONE.value: 0, Weights.CHECKPOINT.value: 1}

    def rank(one: Assessment) -> tuple[bool, int, int, str]:
        shape = one.candidate.shape
        is_unmeasured = one.verdict is Verdict.UNMEASURED
        return is_unmeasured, shape.gpus_per_replica, precision.get(shape.weights, 2), one.candidate.digest

    return min(able, key=rank, default=None)


def _nearest(field: _Field) -> tuple[Assessment | None, Miss | None]:
    """Return who missed a limit by least, and the miss."""
    missed = [one for one in field.pool if one.verdict is Verdict.VIOLATES and one.miss is not None]
    nearest = min(missed, key=lambda one: (one.miss.excess if one.miss else math.inf, *_order(one)), default=None)
    return nearest, nearest.miss if nearest is not None else None


def _sla(one: Assessment | None) -> Sla:
    if one is None or one.verdict in (Verdict.UNMEASURED, Verdict.INCONCLUSIVE):
        return Sla.UNKNOWN
    return Sla.WITHIN if one.verdict is Verdict.ELIGIBLE else Sla.OUTSIDE


def _wanted(spec: SpeculativeModelSpec, one: Assessment | None) -> int:
    """Return replicas: what the demand needs, and never fewer than the spec's minimum."""
    return max(spec.serving.replicas, (one.replicas or 0) if one is not None else 0)


def _serve(field: _Field, chosen: Assessment, reason: str, message: str) -> Decision:
    is_fallback = not any(one.verdict is Verdict.ELIGIBLE for one in field.pool)
    return Decision(
        serve=chosen.candidate,
        replicas=_wanted(field.spec, chosen),
        reason=reason,
        message=message,
        within_sla=_sla(chosen),
        runner_up=_runner_up(field, chosen),
        assessments=field.everyone,
        nearest_miss=_nearest(field)[1] if is_fallback else None,
    )


# --- in words ---------------------------------------------------------------------------------------------------------


def _value(one: Assessment, spec: SpeculativeModelSpec) -> str:
    """Return what the objective compares, in words."""
    objective = spec.selection.objective
    match objective:
        case Objective.LOWEST_COST:
            if one.cost is None:
                return "no cost"
            if one.gpus is None or one.replicas is None:
                return f"{_seconds(one.candidate.gpus_per_replica / (one.throughput or math.inf))} GPU·s per request"
            return f"{_count(one.gpus, 'GPU')} ({_count(one.replicas, 'replica')})"
        case Objective.HIGHEST_THROUGHPUT:
            replicas = gpu_budget(spec) // one.candidate.gpus_per_replica
            return f"{_most_within_budget(one, spec):.2f} req/s ({replicas} × {one.throughput or 0:.2f})"
        case Objective.LOWEST_LATENCY:
            if one.latency_milliseconds is None:
                return "an unknown latency"
            return f"{one.latency_milliseconds:.2f} ms at concurrency {one.latency_concurrency}"
    assert_never(objective)


def _seconds(value: float) -> str:
    """Return seconds with three decimals, or as many as show three digits: small models cost a hundredth or less."""
    return f"{value:.3f}" if value >= 0.02 else f"{value:.3g}"


def _best_of(spec: SpeculativeModelSpec) -> str:
    """Return what the objective wants, in words."""
    objective = spec.selection.objective
    match objective:
        case Objective.LOWEST_COST:
            demand = spec.workload.demand
            if demand is None:
                return "costs least"
            if demand.concurrency is not None:
                return f"costs least for {demand.concurrency} concurrent requests"
            used = spec.workload.target_utilization_percent
            return f"costs least for {demand.requests_per_second} req/s at {used} % utilization"
        case Objective.HIGHEST_THROUGHPUT:
            return f"gives most within {_count(gpu_budget(spec), 'GPU')}"
        case Objective.LOWEST_LATENCY:
            metric, percent = first_metric(spec)
            return f"has the lowest {METRIC_WORDS[metric]} P{percent}"
    assert_never(objective)


def _why_best(field: _Field, eligible: Sequence[Assessment]) -> str:
    best, spec = eligible[0], field.spec
    text = f"{field.name(best)} {_best_of(spec)}: {_value(best, spec)}"
    if best.capacity is not None and best.throughput is not None:
        text += f", capacity {best.capacity} at {best.throughput:.2f} req/s"
    if len(eligible) == 1:
        return f"{text}; it is the only eligible one."
    second = eligible[1]
    if _badness(second, spec) == _badness(best, spec):
        return f"{text}; {field.name(second)} equals it and loses by {_tie_in_words(best, second)}."
    return f"{text}, against {_value(second, spec)} for {field.name(second)}."


def _tie_in_words(best: Assessment, second: Assessment) -> str:
    ours, theirs = best.p50_milliseconds, second.p50_milliseconds
    if ours is not None and theirs is not None and ours != theirs:
        return f"its median E2E latency, {theirs:.2f} ms against {ours:.2f} ms"
    if best.candidate.gpus_per_replica != second.candidate.gpus_per_replica:
        return "its GPUs per replica"
    if best.candidate.speculative_tokens != second.candidate.speculative_tokens:
        return "its number of speculative tokens"
    return "the order of digests"


def _why_kept(field: _Field, best: Assessment) -> str:
    spec, standing = field.spec, field.standing
    if standing is None:
        return ""
    gain = _gain_percent(_badness(standing, spec), _badness(best, spec))
    text = f"{field.name(standing)} goes on serving: {_value(standing, spec)}"
    other = f"{_value(best, spec)} for the best challenger {field.name(best)}"
    if gain <= 0:
        return f"{text}, and no better, {other}."
    return f"{text}, against {other}: {gain:.1f} % better, less than minGainPercent {spec.selection.min_gain_percent}."


def _runner_up(field: _Field, chosen: Assessment) -> str:
    """Return who came second and why it lost: the next eligible one, else the one that came nearest."""
    others = [one for one in field.eligible() if one.candidate.digest != chosen.candidate.digest]
    if others:
        second = others[0]
        return f"{field.name(second)}: {_value(second, field.spec)} against {_value(chosen, field.spec)}"
    nearest, miss = _nearest(field)
    if nearest is not None and nearest.candidate.digest != chosen.candidate.digest:
        return f"{field.name(nearest)}: {miss}"
    rest = [one for one in field.pool if one.candidate.digest != chosen.candidate.digest]
    return f"{field.name(rest[0])}: {rest[0].verdict.value}, {rest[0].message}" if rest else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
