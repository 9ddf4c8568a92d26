"""The difference between what is and what was decided, as ordered actions, each with its why. Pure.

Every server has one part to play (see `parts`); whoever has none is deleted. Deletions come first and GPUs count as
held until their pods are gone, so that the budget is never exceeded, not even for a moment. Nothing here reads a phase
or a condition of the model back.
"""

from __future__ import annotations

from datetime import timedelta

from specmodel.api.labels import COMPONENT, ROLE_SERVE
from specmodel.domain.assessment import Verdict, gpu_budget
from specmodel.domain.candidate import Candidate
from specmodel.domain.observation import Pod, Server
from specmodel.manifests.difference import first_difference
from specmodel.manifests.server import stable_service
from specmodel.reconcile.action import Apply, Ask, Delete, Plan
from specmodel.reconcile.draft import (
    ASK_AGAIN,
    Draft,
    Step,
    Wanted,
    ensure,
    find_server,
    name_of_server,
    no_budget,
    owner_of,
    report_pods,
)
from specmodel.reconcile.gpus import committed, held
from specmodel.reconcile.measuring import clean_up, is_finished
from specmodel.reconcile.parts import (
    Measured,
    drained_time,
    goal_of,
    leaving_servers,
    parts_of,
    replicas_of,
    to_measure,
    to_promote,
)
from specmodel.reconcile.preflight import preflight_actions
from specmodel.reconcile.situation import Situation
from specmodel.reconcile.times import stamp
from specmodel.reconcile.trial import measure, setting_of

#: How long kube-proxy may take to write a Service's rules on every node; it waits at least a second between two writes.
ROUTED = timedelta(seconds=5)


def plan(situation: Situation) -> Plan:
    """Return what to do now about a model, in order, and when to look again."""
    if situation.model.spec.suspend:
        return Plan(waiting=("Suspended", "spec.suspend is true: what serves goes on serving, nothing else is done."))
    draft = Draft(held=held(situation.observation))
    if situation.preflight.judgement.stalled is not None:
        draft.wait(*situation.preflight.judgement.stalled, None)
    promoted, measured = _what_to_start(situation)
    leaving = leaving_servers(situation)
    draft.parts = parts_of(situation, promoted, measured, leaving)
    _free(situation, draft, measured)
    _keep_serving(situation, draft)
    if promoted is not None:
        _promote(situation, draft, promoted, measured)
    if leaving:
        _drain(situation, draft, leaving)
    elif promoted is None:
        _route(situation, draft)
    _preflight(situation, draft)
    if measured is not None:
        measure(situation, draft, measured)
    elif (blocked := _blocked(situation)) and draft.doing is None:
        draft.wait("MeasurementBlocked", blocked, None)
    return Plan(
        actions=tuple(draft.actions),
        wake_after=min(draft.wakes, default=None),
        waiting=draft.waiting,
        doing=draft.doing,
    )


def _what_to_start(situation: Situation) -> tuple[Candidate | None, Measured | None]:
    """Return what to promote and what to measure; nothing new before the checkpoints are read, or against them."""
    if situation.preflight.judgement.stalled is not None:
        return None, None
    promoted = to_promote(situation)
    measured = to_measure(situation, promoted)
    if measured is not None and situation.preflight.is_pending:
        is_under_way = find_server(situation.observation, measured.server) is not None
        measured = measured if is_under_way else None
    return promoted, measured


def _preflight(situation: Situation, draft: Draft) -> None:
    """Have the checkpoints read, and say so where something waits for it."""
    preflight, now = situation.preflight, situation.observation.now
    actions, wake = preflight_actions(preflight, situation.model, situation.candidates, situation.settings, now)
    draft.actions += actions
    draft.wake(wake)
    if preflight.is_pending and situation.measurements_wanted():
        uris = [uri for uri in (preflight.question.model_uri, preflight.question.drafter_uri) if uri is not None]
        pods = preflight.job.pods if preflight.job is not None else ()
        waits = next((pod.unschedulable or pod.waiting for pod in pods if pod.unschedulable or pod.waiting), "")
        words = f" Its pod waits: {waits}" if waits else ""
        draft.do("Preflight", f"The files of {' and '.join(uris)} are read before a GPU is taken.{words}")


def _drain(situation: Situation, draft: Draft, leaving: list[Server]) -> None:
    """Wait until what served has finished its requests."""
    ends, now = drained_time(situation), situation.observation.now
    draft.wake(ends - now if ends is not None and now < ends else ASK_AGAIN)
    drain = situation.model.spec.serving.rollout.drain_seconds
    names = ", ".join(server.name for server in leaving)
    moved = f"Traffic has moved to revision {situation.serving_revision}"
    draft.do("Draining", f"{moved}; {names} finishes its requests for {drain} s.")


def _route(situation: Situation, draft: Draft) -> None:
    """Wait until the nodes know where the Service leads: until then a client's connection may hang for minutes.

    A node without rules for a new Service lets its first packet go astray, and the connection does not recover.
    """
    service, now = situation.observation.service, situation.observation.now
    if situation.serving is None or service is None or service.moved_at is None or now >= service.moved_at + ROUTED:
        return
    draft.wake(service.moved_at + ROUTED - now)
    draft.do("TrafficMoving", f"The nodes learn that Service {situation.model.name} leads to {service.revision}.")


def _free(situation: Situation, draft: Draft, measured: Measured | None) -> None:
    """Delete whoever has no part, and the Jobs and accounts of runs that nobody measures now."""
    observation = situation.observation
    setting = setting_of(situation)
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


def _keep_serving(situation: Situation, draft: Draft) -> None:
    """Keep what serves, and its Service, as they were rendered, at the replicas that are wanted of it."""
    serving = situation.serving
    if serving is None or serving.is_being_deleted or serving.name not in draft.parts:
        return
    _keep_service(situation, draft)
    candidate = situation.candidate_of(serving)
    if candidate is None:
        return
    goal = goal_of(situation)
    is_goal = goal is not None and goal.revision == serving.revision
    wanted = replicas_of(situation, candidate) if is_goal else serving.replicas
    affordable = wanted
    if wanted > serving.replicas:
        room = gpu_budget(situation.model.spec) - draft.held + committed(serving)
        affordable = max(serving.replicas, min(wanted, room // candidate.gpus_per_replica))
    ensure(
        situation,
        draft,
        Wanted(candidate=candidate, role=ROLE_SERVE, replicas=affordable, why="what serves must be there"),
    )
    if affordable < wanted:
        no_budget(situation, draft, candidate, (wanted - affordable) * candidate.gpus_per_replica)
    report_pods(situation, draft, serving, candidate)


def _keep_service(situation: Situation, draft: Draft) -> None:
    """Mend the stable Service where someone changed it."""
    service = situation.observation.service
    live = situation.observation.objects.get(("Service", situation.model.name))
    if service is None or service.revision is None or live is None:
        return
    owner = owner_of(situation)
    moved = service.moved_at or situation.observation.now
    manifest = stable_service(owner, service.revision, moved_at=stamp(moved))
    difference = first_difference(manifest, live)
    if difference is not None:
        draft.actions.append(Apply(manifest=manifest, why=difference))


def _promote(situation: Situation, draft: Draft, promoted: Candidate, measured: Measured | None) -> None:
    """Bring the winner to its replicas, have every pod answer, move the selector. Nothing that serves is touched."""
    replicas = replicas_of(situation, promoted)
    name = name_of_server(situation, promoted, ROLE_SERVE)
    if measured is not None and measured.server == name:
        draft.do("Measuring", f"{promoted.shape} is promoted as soon as its measurement has ended.")
        return
    why = f"promote {promoted.shape} with {_count(replicas)}"
    step = ensure(situation, draft, Wanted(candidate=promoted, role=ROLE_SERVE, replicas=replicas, why=why))
    server = find_server(situation.observation, name)
    if step is Step.BLOCKED:
        return
    if server is None:
        draft.do("Promoting", f"{promoted.shape} starts with {_count(replicas)}; traffic moves when all have answered.")
        return
    pods = [pod for pod in server.pods if pod.is_active]
    ready = [pod for pod in pods if pod.is_ready]
    answered = [pod for pod in ready if pod.has_answered]
    report_pods(situation, draft, server, promoted)
    draft.do(
        "Promoting",
        f"{promoted.shape}: {len(ready)} of {_count(replicas)} Ready, {len(answered)} have answered; "
        "traffic moves when all have.",
    )
    _ask(draft, promoted, ready)
    if step is not Step.DONE or len(answered) < replicas or len(pods) != replicas:
        return
    owner = owner_of(situation)
    service = stable_service(owner, promoted.revision, moved_at=stamp(situation.observation.now))
    draft.actions.append(Apply(manifest=service, why=f"all of {_count(replicas)} of {promoted.shape} answered"))


def _count(replicas: int) -> str:
    return f"{replicas} replica" + ("s" if replicas != 1 else "")


def _ask(draft: Draft, promoted: Candidate, ready: list[Pod]) -> None:
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


def _blocked(situation: Situation) -> str | None:
    """Return why cells that are wanted are not being measured, or None when none are."""
    wanted = situation.measurements_wanted()
    if not wanted or situation.model.spec.suspend:
        return None
    failed = {
        run.name: run.failure
        for run in sorted(situation.observation.runs, key=lambda run: run.name)
        if run.failure is not None and run.candidate in {one.candidate.digest for one in wanted}
    }
    shapes = ", ".join(str(one.candidate.shape) for one in wanted)
    runs = f"; delete BenchmarkRun {', '.join(failed)} to try again" if failed else ""
    for reason, message in list(failed.values())[:1]:
        runs += f". {reason}: {message[:300]}"
    return f"{shapes}: cells are missing and cannot be measured{runs}."
