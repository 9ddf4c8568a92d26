"""What a pass knows once it has thought: the observation, what the spec allows, and the decision.

    observation ──► incumbent ──► engine ──► candidates ──► preflight: who is refused ─┐
    runs ──gather──► measurements, faults ─────────────────────────────────────────────┴─ decide_model ─► Decision

Pure. Both plan and report start from it, so that they speak of the same things.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from specmodel.api.labels import ROLE_SERVE
from specmodel.api.model import SpeculativeModel
from specmodel.domain.assessment import assess
from specmodel.domain.candidate import Candidate, enumerate_candidates
from specmodel.domain.decision import Decision, NextMeasurement, decide_model
from specmodel.domain.engine import resolve_engine
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.measurement import Measurement, gather, workload_digest
from specmodel.domain.observation import Observation, Run, Server
from specmodel.domain.settings import Settings
from specmodel.reconcile.gpus import never_fit
from specmodel.reconcile.preflight import Preflight, understand_preflight


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One pass's knowledge of a model."""

    model: SpeculativeModel
    observation: Observation
    settings: Settings
    workload: str
    candidates: tuple[Candidate, ...]
    incumbent: Candidate | None
    preflight: Preflight
    decision: Decision
    #: Measurements of candidates that fit no node. They hold up no decision; their pods wait, so that a cluster
    #: autoscaler sees them.
    waiting: tuple[NextMeasurement, ...] = ()

    @property
    def serving(self) -> Server | None:
        """The server that the stable Service selects, if its Deployment is there."""
        return serving_server(self.observation)

    @property
    def serving_revision(self) -> str | None:
        """The revision that the stable Service selects."""
        return self.observation.service.revision if self.observation.service else None

    @property
    def target(self) -> Candidate | None:
        """What the decision wants to serve, placed as the spec says now."""
        return None if self.decision.serve is None else self.placed(self.decision.serve)

    def placed(self, candidate: Candidate) -> Candidate:
        """Return the enumerated candidate of the same digest: its placement is the spec's, not an earlier one's."""
        return next((mine for mine in self.candidates if mine.digest == candidate.digest), candidate)

    def candidate_of(self, server: Server) -> Candidate | None:
        """Return the candidate that a server was rendered from, or None when nobody knows any more."""
        if server.candidate is not None and server.candidate.revision == server.revision:
            return server.candidate
        return next((mine for mine in self.candidates if mine.revision == server.revision), None)

    def is_wanted(self, run: Run) -> bool:
        """Return whether a run measures something that the spec still asks about."""
        if run.workload != self.workload:
            return False
        return any(assessment.candidate.digest == run.candidate for assessment in self.decision.assessments)

    def measurements_wanted(self) -> tuple[NextMeasurement, ...]:
        """Return what to measure, in order: the decision's own list, then what waits for GPUs that are not there."""
        wanted = (*self.decision.measure, *self.waiting)
        return tuple(replace(one, candidate=self.placed(one.candidate)) for one in wanted)


def serving_server(observation: Observation) -> Server | None:
    """Return the server that the stable Service selects, if its Deployment is there.

    Someone may have deleted the Service or edited its selector. Then it is the newest server whose pods were promoted
    (they have answered): it goes on running, and the Service comes back to it or to what is decided.
    """
    servers = [server for server in observation.servers if server.role == ROLE_SERVE]
    if observation.service is not None:
        selected = next((s for s in servers if s.revision == observation.service.revision), None)
        if selected is not None:
            return selected
    promoted = [s for s in servers if not s.is_being_deleted and any(p.is_ready and p.has_answered for p in s.pods)]
    return max(promoted, key=lambda server: (server.created_at, server.name), default=None)


def understand(model: SpeculativeModel, observation: Observation, settings: Settings) -> Situation:
    """Return the situation with its decision. Raises `InvalidModelError` when the spec cannot be acted on."""
    prompts = observation.prompts
    if model.spec.workload.dataset.prompts is not None and prompts is not None and prompts.problem is not None:
        raise InvalidModelError(*prompts.problem)
    serving = serving_server(observation)
    known = serving.candidate if serving is not None else None
    incumbent = known if known is not None and serving is not None and known.revision == serving.revision else None
    candidates = enumerate_candidates(model, resolve_engine(model, incumbent, settings), settings)
    if incumbent is None and observation.service is not None:
        revision = observation.service.revision
        incumbent = next((mine for mine in candidates if mine.revision == revision), None)
    workload = workload_digest(model.spec.workload, prompts.digest if prompts else None)
    measurements = _measurements(observation, workload)
    proven = {digest for digest, one in measurements.items() if one.cells or one.failure is not None}
    proven |= {incumbent.digest} if incumbent is not None else set()
    preflight = understand_preflight(model, observation, candidates, proven)
    refused = {
        digest: Measurement(candidate=digest, cells=(), failure=why)
        for digest, why in preflight.judgement.refused.items()
    }
    unplaceable = never_fit(observation, [one for one in candidates if one.digest not in refused])
    faults = {digest: _with_fault(measurements.get(digest), digest, why) for digest, why in unplaceable.items()}
    waiting = (
        NextMeasurement(candidate=candidate, cells=cells, why=unplaceable[candidate.digest])
        for candidate in candidates
        if candidate.digest in unplaceable
        and (cells := assess(candidate, measurements.get(candidate.digest), model.spec).missing)
    )
    return Situation(
        model=model,
        observation=observation,
        settings=settings,
        workload=workload,
        candidates=candidates,
        incumbent=incumbent,
        preflight=preflight,
        decision=decide_model(model, candidates, measurements | faults | refused, incumbent),
        waiting=tuple(waiting),
    )


def _measurements(observation: Observation, workload: str) -> dict[str, Measurement]:
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in observation.runs:
        if run.workload == workload:
            runs[run.candidate].append(run)
    return {digest: measured for digest, mine in runs.items() if (measured := gather(digest, mine)) is not None}


def _with_fault(measured: Measurement | None, digest: str, why: str) -> Measurement:
    known = measured or Measurement(candidate=digest, cells=())
    return replace(known, fault=known.fault or ("WaitingForGPUs", why))
