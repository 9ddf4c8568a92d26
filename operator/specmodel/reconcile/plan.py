"""The difference between what is and what was decided, as ordered actions, each with its why. Pure.

Every server has one part to play; whoever has none is deleted:

    serving    what the stable Service selects
    promoted   what the decision wants to serve, until the Service selects it
    leaving    what served until the selector moved, until its requests are finished
    measured   the one candidate that is loaded now (a twin, when the Service selects its revision)
    kept       the best so far, when the next measurement fits beside it

Deletions come first and GPUs count as held until their pods are gone, so that the budget is never exceeded, not even
for a moment. Nothing here reads a phase or a condition of the model back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from specmodel.api.labels import COMPONENT, RENDERED, ROLE_MEASURE, ROLE_SERVE
from specmodel.api.model import RolloutMode, SelectionMode
from specmodel.domain.assessment import Verdict, gpu_budget
from specmodel.domain.candidate import Candidate
from specmodel.domain.decision import NextMeasurement
from specmodel.domain.observation import Observation, Pod, Run, Server
from specmodel.manifests.benchmark import benchmark_run, run_spec, target_server
from specmodel.manifests.difference import first_difference
from specmodel.manifests.names import model_owner, run_name, server_name
from specmodel.manifests.server import (
    rescaled,
    server_deployment,
    server_service,
    stable_service,
    startup_budget_seconds,
)
from specmodel.reconcile.action import Action, Apply, Ask, Delete, Plan
from specmodel.reconcile.gpus import committed, fits, held, supply_in_words
from specmodel.reconcile.measuring import (
    Setting,
    clean_up,
    close,
    died_under_load,
    is_finished,
    job_steps,
    note_server,
)
from specmodel.reconcile.situation import Situation
from specmodel.reconcile.times import stamp

#: How often to look again while waiting for GPUs: nodes of others change without ringing for this model.
LOOK_FOR_GPUS = timedelta(seconds=30)
#: How soon to ask a pod again that did not answer.
ASK_AGAIN = timedelta(seconds=5)
#: A container that restarted this often before it was Ready will not become it.
RESTARTS_MAXIMUM = 3
#: What a pod gets beyond the engine's own startup budget before it counts as too late.
STARTUP_SLACK = timedelta(seconds=30)
#: Waiting reasons that are no fault of the candidate.
NOT_ITS_FAULT = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ContainerCreating",
        "PodInitializing",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurement that is going on, or is to begin: its run (None before it exists) and its server."""

    candidate: Candidate
    role: str
    server: str
    run: Run | None
    #: What to write down as the run when there is none.
    wanted: NextMeasurement | None


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A plan in the making: local to one call of `plan`."""

    actions: list[Action] = field(default_factory=list)
    wakes: list[timedelta] = field(default_factory=list)
    waiting: tuple[str, str] | None = None
    doing: tuple[str, str] | None = None
    #: GPUs held, what this plan adds included.
    held: int = 0
    #: Names of the servers that have a part to play.
    parts: frozenset[str] = frozenset()

    def wake(self, after: timedelta | None) -> None:
        if after is not None:
            self.wakes.append(max(after, timedelta(seconds=1)))

    def wait(self, reason: str, message: str, wake: timedelta | None = LOOK_FOR_GPUS) -> None:
        """Note what cannot be done now; the first word stands."""
        self.waiting = self.waiting or (reason, message)
        self.wake(wake)

    def do(self, reason: str, message: str) -> None:
        """Note what is going on; the first word stands."""
        self.doing = self.doing or (reason, message)


def plan(situation: Situation) -> Plan:
    """Return what to do now about a model, in order, and when to look again."""
    if situation.model.spec.suspend:
        return Plan(waiting=("Suspended", "spec.suspend is true: what serves goes on serving, nothing else is done."))
    draft = _Draft(held=held(situation.observation))
    promoted = _promoted(situation)
    measured = _measured(situation, promoted)
    leaving = _leaving(situation, draft)
    draft.parts = _parts(situation, promoted, measured, leaving)
    _free(situation, draft, measured)
    _keep_serving(situation, draft)
    if promoted is not None:
        _promote(situation, draft, promoted, measured)
    elif leaving:
        draft.do("Draining", _leaving_message(situation, leaving))
    if measured is not None:
        _measure(situation, draft, measured)
    elif (blocked := _blocked(situation)) and draft.doing is None:
        draft.wait("MeasurementBlocked", blocked, None)
    return Plan(
        actions=tuple(draft.actions),
        wake_after=min(draft.wakes, default=None),
        waiting=draft.waiting,
        doing=draft.doing,
    )


# ---- who plays which part


def _parts(
    situation: Situation, promoted: Candidate | None, measured: Measured | None, leaving: list[Server]
) -> frozenset[str]:
    """Return the names of all servers that have a part to play."""
    parts = {server.name for server in leaving}
    serving = situation.serving
    if serving is not None and not (promoted is not None and _must_free_first(situation, promoted)):
        parts.add(serving.name)
    if promoted is not None:
        parts.add(_name(situation, promoted, ROLE_SERVE))
    if measured is not None:
        parts.add(measured.server)
    return frozenset(parts | _kept(situation, promoted, measured))


def _name(situation: Situation, candidate: Candidate, role: str) -> str:
    return server_name(situation.model.name, candidate, role)


def _find(observation: Observation, name: str) -> Server | None:
    return next((server for server in observation.servers if server.name == name), None)


def _promoted(situation: Situation) -> Candidate | None:
    """Return what is to be promoted, or None while what serves is what was decided."""
    target = _goal(situation)
    if target is None:
        return None
    if target.revision == situation.serving_revision and (
        situation.serving is not None and not situation.serving.is_being_deleted
    ):
        return None
    return target


def _goal(situation: Situation) -> Candidate | None:
    """Return what is to serve: the decision's choice, or what serves already where the decision only recommends."""
    is_advice = situation.model.spec.selection.mode is SelectionMode.RECOMMEND
    return situation.incumbent if is_advice else situation.target


def _replicas(situation: Situation, candidate: Candidate) -> int:
    """Return the replicas wanted of what is to serve."""
    decision = situation.decision
    if decision.serve is not None and decision.serve.digest == candidate.digest:
        return decision.replicas
    return situation.serving.replicas if situation.serving is not None else situation.model.spec.serving.replicas


def _leaving(situation: Situation, draft: _Draft) -> list[Server]:
    """Return servers that may still have requests of the stable Service: they stay until the drain is over."""
    service = situation.observation.service
    if service is None or service.moved_at is None:
        return []
    drained_at = service.moved_at + timedelta(seconds=situation.model.spec.serving.rollout.drain_seconds)
    now = situation.observation.now
    if service.is_settled and now >= drained_at:
        return []
    leaving = [
        server
        for server in situation.observation.servers
        if server.role == ROLE_SERVE
        and server.revision != service.revision
        and server.created_at < service.moved_at
        and not server.is_being_deleted
        and server.ready_replicas > 0
    ]
    if leaving:
        draft.wake(drained_at - now if now < drained_at else ASK_AGAIN)
    return leaving


def _leaving_message(situation: Situation, leaving: list[Server]) -> str:
    drain = situation.model.spec.serving.rollout.drain_seconds
    names = ", ".join(server.name for server in leaving)
    return f"Traffic has moved to revision {situation.serving_revision}; {names} finishes its requests for {drain} s."


def _measured(situation: Situation, promoted: Candidate | None) -> Measured | None:
    """Return the one measurement to go on with: the one whose Job runs, else the first that can be placed, else the first.

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
    server = _name(situation, candidate, role)
    for run in under_way:
        on = target_server(run.spec)
        existing = _find(situation.observation, on)
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
    server = _find(situation.observation, one.server)
    if one.run is None or server is None or server.is_being_deleted:
        return False
    return any(pod.node is not None and not pod.is_terminating for pod in server.pods)


def _would_fit(situation: Situation, one: Measured) -> bool:
    """Return whether a measurement can be placed now beside what must stay."""
    observation = situation.observation
    serving = situation.serving
    removable = {s.name for s in observation.servers if serving is None or s.name != serving.name}
    staying = committed(serving) if serving is not None else 0
    gpus = one.candidate.gpus_per_replica
    return staying + gpus <= gpu_budget(situation.model.spec) and fits(observation, gpus, 1, without=removable)


def _kept(situation: Situation, promoted: Candidate | None, measured: Measured | None) -> set[str]:
    """Return the best candidate's idle server, when the next measurement fits beside it: it may be promoted as it is."""
    if promoted is not None or measured is None:
        return set()
    best = _best(situation)
    if best is None or best.digest == measured.candidate.digest:
        return set()
    observation = situation.observation
    name = _name(situation, best, ROLE_SERVE)
    server = _find(observation, name)
    if server is None or server.is_being_deleted or server is situation.serving:
        return set()
    serving = situation.serving
    stay = {name, measured.server, *([serving.name] if serving is not None else [])}
    going = {other.name for other in observation.servers if other.name not in stay}
    gpus = measured.candidate.gpus_per_replica
    has_own = _find(observation, measured.server) is not None
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


def _must_free_first(situation: Situation, promoted: Candidate) -> bool:
    """Return whether rollout mode Recreate has to take the serving server away to make room."""
    serving = situation.serving
    if situation.model.spec.serving.rollout.mode is not RolloutMode.RECREATE or serving is None:
        return False
    observation = situation.observation
    name = _name(situation, promoted, ROLE_SERVE)
    server = _find(observation, name)
    replicas = _replicas(situation, promoted)
    wanted = replicas * promoted.gpus_per_replica
    if committed(serving) + wanted > gpu_budget(situation.model.spec):
        return True
    if server is not None and any(pod.unschedulable for pod in server.pods):
        return True
    others = {other.name for other in observation.servers if other.name != serving.name}
    return not fits(observation, promoted.gpus_per_replica, replicas, without=others)


# ---- freeing


def _free(situation: Situation, draft: _Draft, measured: Measured | None) -> None:
    """Delete whoever has no part, and the Jobs and accounts of runs that nobody measures now."""
    observation = situation.observation
    setting = _setting(situation)
    current = measured.run.name if measured is not None and measured.run is not None else ""
    for run in observation.runs:
        if run.name != current:
            why = "its run has ended" if is_finished(run) else "its run is not needed now"
            draft.actions += clean_up(run, setting, why)
    for server in observation.servers:
        if server.name not in draft.parts and not server.is_being_deleted:
            why = _why_free(situation, server)
            draft.actions.append(Delete(kind="Deployment", name=server.name, uid=server.uid, why=why))
    loaded = {measured.server} if measured is not None else set()
    for (kind, name), live in sorted(observation.objects.items()):
        is_ours = live["metadata"].get("labels", {}).get(COMPONENT) == "engine"
        if kind == "Service" and is_ours and name not in loaded and not live["metadata"].get("deletionTimestamp"):
            uid = str(live["metadata"].get("uid", ""))
            draft.actions.append(Delete(kind=kind, name=name, uid=uid, why="nobody measures through it"))


def _why_free(situation: Situation, server: Server) -> str:
    candidate = situation.candidate_of(server)
    if candidate is None:
        return "nothing the spec names runs on it"
    assessment = situation.decision.assessment_of(candidate)
    if assessment is None:
        return f"{candidate.shape} is no longer a candidate"
    if assessment.verdict in (Verdict.FAILED, Verdict.VIOLATES):
        return f"{candidate.shape}: {assessment.verdict}, {assessment.reason}"
    return f"{candidate.shape} neither serves nor is measured now"


# ---- serving


class _Step(Enum):
    """How far bringing one server about has come."""

    BLOCKED = "blocked"
    WRITTEN = "written"
    DONE = "done"


def _ensure(situation: Situation, draft: _Draft, candidate: Candidate, role: str, replicas: int, why: str) -> _Step:
    """Bring one server to its replicas within the budget."""
    owner = model_owner(situation.model.name, situation.model.uid)
    name = _name(situation, candidate, role)
    server = _find(situation.observation, name)
    if server is not None and server.is_being_deleted:
        draft.do("Promoting" if role == ROLE_SERVE else "Measuring", f"Waiting for the former {name} to be gone.")
        draft.wake(ASK_AGAIN)
        return _Step.BLOCKED
    has = committed(server) if server is not None else 0
    needs = max(0, replicas * candidate.gpus_per_replica - has)
    if needs and draft.held + needs > gpu_budget(situation.model.spec):
        _no_budget(situation, draft, candidate, needs)
        return _Step.BLOCKED
    manifest = server_deployment(owner, candidate, role=role, replicas=replicas, settings=situation.settings)
    change = (manifest, why) if server is None else _deployment_change(server, manifest, situation)
    if change is None:
        return _Step.DONE
    draft.held += needs
    draft.actions.append(Apply(manifest=change[0], why=change[1]))
    return _Step.WRITTEN


def _deployment_change(
    server: Server, manifest: dict[str, Any], situation: Situation
) -> tuple[dict[str, Any], str] | None:
    """Return (manifest, why) of a needed write, or None. A template of another release is left alone."""
    replicas = manifest["spec"]["replicas"]
    if server.rendered == manifest["metadata"]["annotations"][RENDERED]:
        difference = first_difference(manifest, server.deployment)
        if difference is None:
            return None
        return manifest, difference
    if server.replicas == replicas:
        return None
    owner = model_owner(situation.model.name, situation.model.uid)
    return rescaled(
        dict(server.deployment), owner, replicas=replicas
    ), f"replicas: {server.replicas}, wanted {replicas}"


def _no_budget(situation: Situation, draft: _Draft, candidate: Candidate, needs: int) -> None:
    """Say why GPUs cannot be taken now: the budget is full for good, or is just being given back."""
    budget = gpu_budget(situation.model.spec)
    staying = situation.serving.name if situation.serving is not None else ""
    others = [
        server
        for server in situation.observation.servers
        if committed(server) and server.revision != candidate.revision
    ]
    going = [server.name for server in others if server.is_being_deleted or server.name not in draft.parts]
    giving_back = going or [server.name for server in others if server.name != staying]
    if giving_back or situation.observation.stray_pods:
        names = ", ".join(giving_back) or "pods of a deleted server"
        draft.do("Measuring", f"{candidate.shape}: waiting for {names} to give back GPUs.")
        draft.wake(LOOK_FOR_GPUS)
        return
    draft.wait(
        "BudgetExceeded",
        f"{candidate.shape} needs {needs} more GPUs beside the {draft.held} held, hardware.gpuBudget is {budget}: "
        "raise it or lower serving.replicas.",
    )


def _keep_serving(situation: Situation, draft: _Draft) -> None:
    """Keep what serves, and its Service, as they were rendered, at the replicas that are wanted of it."""
    serving = situation.serving
    if serving is None or serving.is_being_deleted or serving.name not in draft.parts:
        return
    _keep_service(situation, draft)
    candidate = situation.candidate_of(serving)
    if candidate is None:
        return
    goal = _goal(situation)
    is_goal = goal is not None and goal.revision == serving.revision
    wanted = _replicas(situation, candidate) if is_goal else serving.replicas
    affordable = wanted
    if wanted > serving.replicas:
        room = gpu_budget(situation.model.spec) - draft.held + committed(serving)
        affordable = max(serving.replicas, min(wanted, room // candidate.gpus_per_replica))
    _ensure(situation, draft, candidate, ROLE_SERVE, affordable, "what serves must be there")
    if affordable < wanted:
        _no_budget(situation, draft, candidate, (wanted - affordable) * candidate.gpus_per_replica)
    _report_pods(situation, draft, serving, candidate)


def _keep_service(situation: Situation, draft: _Draft) -> None:
    """Mend the stable Service where someone changed it."""
    service = situation.observation.service
    live = situation.observation.objects.get(("Service", situation.model.name))
    if service is None or service.revision is None or live is None:
        return
    owner = model_owner(situation.model.name, situation.model.uid)
    moved = service.moved_at or situation.observation.now
    manifest = stable_service(owner, service.revision, moved_at=stamp(moved))
    difference = first_difference(manifest, live)
    if difference is not None:
        draft.actions.append(Apply(manifest=manifest, why=difference))


def _promote(situation: Situation, draft: _Draft, promoted: Candidate, measured: Measured | None) -> None:
    """Bring the winner to its replicas, have every pod answer, move the selector. Nothing that serves is touched."""
    replicas = _replicas(situation, promoted)
    name = _name(situation, promoted, ROLE_SERVE)
    if measured is not None and measured.server == name:
        draft.do("Measuring", f"{promoted.shape} is promoted as soon as its measurement has ended.")
        return
    why = f"promote {promoted.shape} with {_count(replicas)}"
    step = _ensure(situation, draft, promoted, ROLE_SERVE, replicas, why)
    server = _find(situation.observation, name)
    if step is _Step.BLOCKED:
        return
    if server is None:
        draft.do("Promoting", f"{promoted.shape} starts with {_count(replicas)}; traffic moves when all have answered.")
        return
    pods = [pod for pod in server.pods if not pod.is_terminating]
    ready = [pod for pod in pods if pod.is_ready]
    answered = [pod for pod in ready if pod.has_answered]
    _report_pods(situation, draft, server, promoted)
    draft.do(
        "Promoting",
        f"{promoted.shape}: {len(ready)} of {_count(replicas)} Ready, {len(answered)} have answered; "
        "traffic moves when all have.",
    )
    _ask(draft, promoted, ready)
    if step is not _Step.DONE or len(answered) < replicas or len(pods) != replicas:
        return
    owner = model_owner(situation.model.name, situation.model.uid)
    service = stable_service(owner, promoted.revision, moved_at=stamp(situation.observation.now))
    draft.actions.append(Apply(manifest=service, why=f"all of {_count(replicas)} of {promoted.shape} answered"))


def _count(replicas: int) -> str:
    return f"{replicas} replica" + ("s" if replicas != 1 else "")


def _ask(draft: _Draft, promoted: Candidate, ready: list[Pod]) -> None:
    for pod in ready:
        if pod.has_answered or not pod.ip:
            continue
        draft.actions.append(
            Ask(
                pod=pod.name,
                uid=pod.uid,
                ip=pod.ip,
                served_name=promoted.placement.served_name,
                expects_speculation=promoted.speculative_tokens > 0,
                why="it must answer before traffic moves to it",
            )
        )
        draft.wake(ASK_AGAIN)


def _report_pods(situation: Situation, draft: _Draft, server: Server, candidate: Candidate) -> None:
    """Say which pods of a server cannot get on, and why; look again at the next deadline."""
    now = situation.observation.now
    for pod in server.pods:
        if pod.is_terminating or pod.is_ready:
            continue
        if pod.unschedulable is not None:
            _no_gpus(situation, draft, candidate, pod, len([p for p in server.pods if p.unschedulable]))
            continue
        deadline = _deadline(pod, candidate)
        if deadline is None:
            continue
        if now < deadline:
            draft.wake(deadline - now)
            continue
        words = pod.last_words or pod.waiting or "it is not Ready"
        draft.wait(
            "RolloutDeadlineExceeded",
            f"Pod {pod.name} of {candidate.shape} was not Ready in time "
            f"({candidate.placement.startup_timeout_seconds} s, {pod.restarts} restarts): {words}",
            LOOK_FOR_GPUS,
        )


def _deadline(pod: Pod, candidate: Candidate) -> datetime | None:
    since = pod.started_at or (pod.created_at if pod.node is not None else None)
    if since is None:
        return None
    return since + timedelta(seconds=startup_budget_seconds(candidate)) + STARTUP_SLACK


def _no_gpus(situation: Situation, draft: _Draft, candidate: Candidate, pod: Pod, pods: int) -> None:
    supply = situation.observation.supply
    needs = candidate.gpus_per_replica
    wanted = f"{pods} pods x {needs}" if pods > 1 else str(needs)
    words = f" Scheduler: {pod.unschedulable}" if pod.unschedulable else ""
    if supply.is_known and not supply.nodes:
        products = ", ".join(candidate.gpu_products)
        draft.wait("NoMatchingGPU", f"No node offers {products}; {supply_in_words(situation.observation)}.{words}")
        return
    draft.wait(
        "WaitingForGPUs",
        f"{candidate.shape} wants {wanted} GPUs, each pod's on one node; {supply_in_words(situation.observation)}.{words}",
    )


# ---- measuring


def _setting(situation: Situation) -> Setting:
    observation = situation.observation
    return Setting(
        now=observation.now,
        namespace=situation.model.namespace,
        model=situation.model.name,
        settings=situation.settings,
        objects=observation.objects,
        products={node.name: node.product for node in observation.supply.nodes},
    )


def _measure(situation: Situation, draft: _Draft, one: Measured) -> None:
    """Bring the measured server up alone, then its Job, then write down how it ended."""
    server = _find(situation.observation, one.server)
    is_rendered = one.server == _name(situation, one.candidate, one.role)
    if is_rendered:
        step = _ensure(situation, draft, one.candidate, one.role, 1, f"measure {one.candidate.shape}")
        if step is _Step.BLOCKED:
            return
        _ensure_service(situation, draft, one)
    if one.run is None:
        _create_run(situation, draft, one)
        return
    if server is None:
        draft.do("Measuring", f"{one.candidate.shape}: its server starts.")
        return
    _load(situation, draft, one, one.run, server)


def _ensure_service(situation: Situation, draft: _Draft, one: Measured) -> None:
    owner = model_owner(situation.model.name, situation.model.uid)
    manifest = server_service(owner, one.candidate, role=one.role)
    live = situation.observation.objects.get(("Service", one.server))
    if live is None or first_difference(manifest, live) is not None:
        draft.actions.append(Apply(manifest=manifest, why=f"{one.candidate.shape} is measured through it"))


def _create_run(situation: Situation, draft: _Draft, one: Measured) -> None:
    if one.wanted is None:
        return
    prompts = situation.observation.prompts
    spec = run_spec(
        situation.model,
        one.candidate,
        server=one.server,
        cells=one.wanted.cells,
        dataset_digest=prompts.digest if prompts is not None else None,
    )
    owner = model_owner(situation.model.name, situation.model.uid)
    manifest = benchmark_run(owner, spec, candidate=one.candidate.digest, workload=situation.workload)
    draft.actions.append(Apply(manifest=manifest, why=one.wanted.why))
    draft.do("Measuring", f"{one.candidate.shape}: its server starts.")


def _load(situation: Situation, draft: _Draft, one: Measured, run: Run, server: Server) -> None:
    setting = _setting(situation)
    now = situation.observation.now
    pods = [pod for pod in server.pods if not pod.is_terminating]
    engine = max(pods, key=lambda pod: (pod.is_ready, pod.name), default=None)
    if engine is not None and died_under_load(run, engine):
        words = engine.last_words or f"exit code {engine.exit_code}"
        draft.actions += close(run, setting, "ServerFailed", f"The engine died under load: {words}")
        draft.do("Measuring", f"{one.candidate.shape}: the engine died under load.")
        return
    failure = _startup_failure(engine, one.candidate, now)
    if failure is not None:
        draft.actions += close(run, setting, *failure)
        draft.do("Measuring", f"{one.candidate.shape}: {failure[1][:300]}")
        return
    is_alone = engine is not None and engine.is_ready and len(server.pods) == 1
    if not is_alone and run.job is None:
        _starting(situation, draft, one, run, engine)
        return
    ready = f"Pod {engine.name} is Ready." if engine is not None else ""
    steps = job_steps(run, setting, engine=engine, ready=ready)
    draft.actions += steps.actions
    draft.wake(steps.wake_after)
    draft.do("Measuring", _progress(one, run, steps.message))


def _startup_failure(engine: Pod | None, candidate: Candidate, now: datetime) -> tuple[str, str] | None:
    """Return (reason, message) when an engine will not become Ready; an image that cannot be pulled is not its fault."""
    if engine is None or engine.is_ready or engine.unschedulable is not None:
        return None
    words = engine.last_words or (f"exit code {engine.exit_code}" if engine.exit_code is not None else "no last words")
    if engine.restarts >= RESTARTS_MAXIMUM:
        return (
            "ServerFailed",
            f"The engine of {candidate.shape} ended {engine.restarts} times before it was Ready: {words}",
        )
    deadline = _deadline(engine, candidate)
    if deadline is None or now < deadline:
        return None
    if engine.waiting in NOT_ITS_FAULT:
        return "TargetUnreachable", f"Pod {engine.name} could not start within its deadline: {engine.waiting}"
    limit = candidate.placement.startup_timeout_seconds
    return "StartupTimeout", f"The engine of {candidate.shape} was not Ready within {limit} s: {words}"


def _starting(situation: Situation, draft: _Draft, one: Measured, run: Run, engine: Pod | None) -> None:
    setting = _setting(situation)
    limit = one.candidate.placement.startup_timeout_seconds
    if engine is not None and engine.unschedulable is not None:
        _no_gpus(situation, draft, one.candidate, engine, 1)
        draft.actions += note_server(run, setting, "ServerStarting", "The pod waits for GPUs; there is no time limit.")
        return
    draft.actions += note_server(run, setting, "ServerStarting", f"The server gets {limit} s to become Ready.")
    why = (
        f" ({engine.waiting})" if engine is not None and engine.waiting in NOT_ITS_FAULT - {"ContainerCreating"} else ""
    )
    draft.do("Measuring", f"{one.candidate.shape}: its server starts, {limit} s at most{why}.")
    deadline = _deadline(engine, one.candidate) if engine is not None else None
    draft.wake(deadline - situation.observation.now if deadline is not None else LOOK_FOR_GPUS)


def _progress(one: Measured, run: Run, message: str) -> str:
    """Return where a measurement is: cell i of n and a rounded estimate. Changes with the cell, not with the clock."""
    progress = run.status.progress
    cells = len(run.spec.cells)
    if run.job is None or progress is None or not progress.cells:
        return f"{one.candidate.shape}: {message or 'the load is about to begin'}."
    number = min(progress.cells, max(1, progress.cell))
    doing = f" ({progress.doing})" if progress.doing else ""
    left = ""
    if progress.remaining_seconds is not None:
        left = f", about {max(10, round(progress.remaining_seconds / 10) * 10)} s left"
    return f"{one.candidate.shape}: cell {number} of {progress.cells or cells}{doing}{left}."


def _blocked(situation: Situation) -> str | None:
    """Return why cells that are wanted are not being measured, or None when none are."""
    wanted = situation.measurements_wanted()
    if not wanted or situation.model.spec.suspend:
        return None
    names = sorted(
        run.name
        for run in situation.observation.runs
        if run.failure is not None and run.candidate in {one.candidate.digest for one in wanted}
    )
    shapes = ", ".join(str(one.candidate.shape) for one in wanted)
    runs = f"; see and delete BenchmarkRun {', '.join(names)} to try again" if names else ""
    return f"{shapes}: cells are missing and cannot be measured{runs}."
