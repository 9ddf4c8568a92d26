"""Which server plays which part. Whoever has none is deleted.

    serving    what the stable Service selects
    promoted   what the decision wants to serve, until the Service selects it
    leaving    what served until the selector moved, until its requests are finished
    measured   the one candidate that is loaded now (a twin, when the Service selects its revision)
    kept       the best so far, when the next measurement fits beside it

Pure; writes nothing into the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from specmodel.api.labels import ROLE_MEASURE, ROLE_SERVE
from specmodel.api.model import RolloutMode, SelectionMode
from specmodel.domain.assessment import Verdict, gpu_budget
from specmodel.domain.candidate import Candidate
from specmodel.domain.decision import NextMeasurement
from specmodel.domain.observation import Run, Server
from specmodel.manifests.benchmark import target_server
from specmodel.manifests.names import run_name
from specmodel.reconcile.draft import find_server, name_of_server
from specmodel.reconcile.gpus import committed, fits
from specmodel.reconcile.measuring import is_finished
from specmodel.reconcile.situation import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurement that is going on, or is to begin: its run (None before it exists) and its server."""

    candidate: Candidate
    role: str
    server: str
    run: Run | None
    #: What to write down as the run when there is none.
    wanted: NextMeasurement | None


def parts_of(
    situation: Situation, promoted: Candidate | None, measured: Measured | None, leaving: list[Server]
) -> frozenset[str]:
    """Return the names of all servers that have a part to play."""
    parts = {server.name for server in leaving}
    serving = situation.serving
    if serving is not None and not (promoted is not None and must_free_first(situation, promoted)):
        parts.add(serving.name)
    if promoted is not None:
        parts.add(name_of_server(situation, promoted, ROLE_SERVE))
    if measured is not None:
        parts.add(measured.server)
    return frozenset(parts | _kept(situation, promoted, measured))


def to_promote(situation: Situation) -> Candidate | None:
    """Return what is to be promoted, or None while what serves is what was decided."""
    target = goal_of(situation)
    if target is None:
        return None
    if target.revision == situation.serving_revision and (
        situation.serving is not None and not situation.serving.is_being_deleted
    ):
        return None
    return target


def goal_of(situation: Situation) -> Candidate | None:
    """Return what is to serve: the decision's choice, or what serves already where the decision only recommends."""
    is_advice = situation.model.spec.selection.mode is SelectionMode.RECOMMEND
    return situation.incumbent if is_advice else situation.target


def replicas_of(situation: Situation, candidate: Candidate) -> int:
    """Return the replicas wanted of what is to serve."""
    decision = situation.decision
    if decision.serve is not None and decision.serve.digest == candidate.digest:
        return decision.replicas
    return situation.serving.replicas if situation.serving is not None else situation.model.spec.serving.replicas


def drained_time(situation: Situation) -> datetime | None:
    """Return when requests that were under way when the selector last moved should be finished, or None."""
    service = situation.observation.service
    if service is None or service.moved_at is None:
        return None
    return service.moved_at + timedelta(seconds=situation.model.spec.serving.rollout.drain_seconds)


def leaving_servers(situation: Situation) -> list[Server]:
    """Return servers that may still have requests of the stable Service: they stay until the drain is over."""
    service = situation.observation.service
    if service is None or service.moved_at is None:
        return []
    drained_at = drained_time(situation)
    if service.is_settled and drained_at is not None and situation.observation.now >= drained_at:
        return []
    return [
        server
        for server in situation.observation.servers
        if server.role == ROLE_SERVE
        and server.revision != service.revision
        and server.created_at < service.moved_at
        and not server.is_being_deleted
        and server.ready_replicas > 0
    ]


def to_measure(situation: Situation, promoted: Candidate | None) -> Measured | None:
    """Return the measurement to go on with: the one whose Job runs, else the first that can be placed, else the first.

    While something is promoted only a measurement whose Job runs goes on.
    """
    choices = _choices(situation)
    loading = [one for one in choices if one.run is not None and one.run.job is not None]
    if loading:
        return loading[0]
    if promoted is not None:
        return None
    choices = [one for one in choices if one.wanted is not None]
    placed = [one for one in choices if _is_placed(situation, one)]
    fitting = [one for one in choices if _would_fit(situation, one)]
    return next(iter([*placed, *fitting, *choices]), None)


def _choices(situation: Situation) -> list[Measured]:
    """Return measurements that are wanted or under way, in order, without those whose run ended and says why."""
    wanted = {one.candidate.digest: one for one in situation.measurements_wanted()}
    runs = [run for run in situation.observation.runs if not is_finished(run) and situation.is_wanted(run)]
    known = {candidate.digest: candidate for candidate in reversed(_known(situation))}
    found: list[Measured] = []
    for digest, candidate in ({d: one.candidate for d, one in wanted.items()} | known).items():
        mine = [run for run in runs if run.candidate == digest]
        found += _choice(
            situation, wanted[digest].candidate if digest in wanted else candidate, mine, wanted.get(digest)
        )
    return found


def _known(situation: Situation) -> list[Candidate]:
    return [*situation.candidates, *(assessment.candidate for assessment in situation.decision.assessments)]


def _choice(
    situation: Situation, candidate: Candidate, under_way: list[Run], wanted: NextMeasurement | None
) -> list[Measured]:
    serves = candidate.revision == situation.serving_revision
    role = ROLE_MEASURE if serves else ROLE_SERVE
    server = name_of_server(situation, candidate, role)
    for run in under_way:
        on = target_server(run.spec)
        existing = find_server(situation.observation, on)
        if on == server:
            return [Measured(candidate=candidate, role=role, server=on, run=run, wanted=wanted)]
        # Placed as the spec said earlier, or the twin of what no longer serves: as good as another. A server that is
        # gone, or that the Service selects now, ends the run where it is: its cells are kept, the rest is another's.
        if existing is None or existing.is_being_deleted or _is_selected(situation, existing):
            continue
        return [Measured(candidate=candidate, role=existing.role, server=on, run=run, wanted=wanted)]
    if wanted is None:
        return []
    name = run_name(situation.model.name, server, candidate.digest, situation.workload, wanted.cells)
    earlier = next((run for run in situation.observation.runs if run.name == name), None)
    if earlier is not None and is_finished(earlier):
        return []
    return [Measured(candidate=candidate, role=role, server=server, run=earlier, wanted=wanted)]


def _is_selected(situation: Situation, server: Server) -> bool:
    return server.role == ROLE_SERVE and server.revision == situation.serving_revision


def _is_placed(situation: Situation, one: Measured) -> bool:
    server = find_server(situation.observation, one.server)
    if one.run is None or server is None or server.is_being_deleted:
        return False
    return any(pod.node is not None and pod.is_active for pod in server.pods)


def _would_fit(situation: Situation, one: Measured) -> bool:
    """Return whether a measurement can be placed now beside what must stay."""
    observation = situation.observation
    serving = situation.serving
    removable = {s.name for s in observation.servers if serving is None or s.name != serving.name}
    staying = committed(serving) if serving is not None else 0
    gpus = one.candidate.gpus_per_replica
    return staying + gpus <= gpu_budget(situation.model.spec) and fits(observation, gpus, 1, without=removable)


def _kept(situation: Situation, promoted: Candidate | None, measured: Measured | None) -> set[str]:
    """Return the best candidate's idle server, when the next measurement fits beside it: it may be promoted soon."""
    if promoted is not None or measured is None:
        return set()
    best = _best(situation)
    if best is None or best.digest == measured.candidate.digest:
        return set()
    observation = situation.observation
    name = name_of_server(situation, best, ROLE_SERVE)
    server = find_server(observation, name)
    if server is None or server.is_being_deleted or server is situation.serving:
        return set()
    serving = situation.serving
    stay = {name, measured.server, *([serving.name] if serving is not None else [])}
    going = {other.name for other in observation.servers if other.name not in stay}
    gpus = measured.candidate.gpus_per_replica
    has_own = find_server(observation, measured.server) is not None
    total = sum(committed(s) for s in observation.servers if s.name in stay) + (0 if has_own else gpus)
    if total > gpu_budget(situation.model.spec):
        return set()
    return {name} if fits(observation, gpus, 0 if has_own else 1, without=going) else set()


def _best(situation: Situation) -> Candidate | None:
    """Return the candidate that would be promoted if measuring ended now; only a hint, the decision is elsewhere."""
    if situation.target is not None:
        return situation.target
    eligible = [
        one for one in situation.decision.assessments if one.verdict is Verdict.ELIGIBLE and one.cost is not None
    ]
    chosen = min(eligible, key=lambda one: (one.cost or 0.0, one.candidate.shape, one.candidate.digest), default=None)
    return situation.placed(chosen.candidate) if chosen is not None else None


def must_free_first(situation: Situation, promoted: Candidate) -> bool:
    """Return whether rollout mode Recreate has to take the serving server away to make room."""
    serving = situation.serving
    if situation.model.spec.serving.rollout.mode is not RolloutMode.RECREATE or serving is None:
        return False
    observation = situation.observation
    name = name_of_server(situation, promoted, ROLE_SERVE)
    server = find_server(observation, name)
    replicas = replicas_of(situation, promoted)
    wanted = replicas * promoted.gpus_per_replica
    if committed(serving) + wanted > gpu_budget(situation.model.spec):
        return True
    if server is not None and any(pod.unschedulable for pod in server.pods):
        return True
    others = {other.name for other in observation.servers if other.name != serving.name}
    return not fits(observation, promoted.gpus_per_replica, replicas, without=others)
