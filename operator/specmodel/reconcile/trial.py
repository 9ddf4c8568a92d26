"""A candidate's trial: its server comes up alone, its run is written down, its Job loads it, its end is noted.

What happens between the Job's start and the run's conditions is `measuring`'s work.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from specmodel.domain.candidate import Candidate
from specmodel.domain.observation import Pod, Run, Server
from specmodel.manifests.benchmark import benchmark_run, run_spec
from specmodel.manifests.difference import first_difference
from specmodel.manifests.server import server_service, startup_budget_seconds
from specmodel.reconcile.action import Apply
from specmodel.reconcile.draft import (
    LOOK_FOR_GPUS,
    STARTUP_SLACK,
    Draft,
    Step,
    Wanted,
    deadline_of,
    ensure,
    find_server,
    name_of_server,
    no_gpus,
    owner_of,
    refused_message,
)
from specmodel.reconcile.measuring import Setting, close, died_under_load, job_steps, next_attempt_at, note_server
from specmodel.reconcile.parts import Measured
from specmodel.reconcile.situation import Situation

#: A container that restarted this often before it was Ready will not become it.
RESTARTS_MAXIMUM = 3
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


def setting_of(situation: Situation) -> Setting:
    """Return what the steps of this model's runs need to know."""
    observation = situation.observation
    return Setting(
        now=observation.now,
        namespace=situation.model.namespace,
        model=situation.model.name,
        settings=situation.settings,
        objects=observation.objects,
        products={node.name: node.product for node in observation.supply.nodes},
    )


def measure(situation: Situation, draft: Draft, one: Measured) -> None:
    """Bring the measured server up alone, then its Job, then write down how it ended."""
    server = find_server(situation.observation, one.server)
    is_rendered = one.server == name_of_server(situation, one.candidate, one.role)
    if is_rendered:
        step = ensure(
            situation,
            draft,
            Wanted(candidate=one.candidate, role=one.role, replicas=1, why=f"measure {one.candidate.shape}"),
        )
        if step is Step.BLOCKED:
            return
        _ensure_service(situation, draft, one)
    if one.run is None:
        _create_run(situation, draft, one)
        return
    if server is None:
        draft.do("Measuring", starting_message(one.candidate))
        return
    _load(situation, draft, one, one.run, server)


def _ensure_service(situation: Situation, draft: Draft, one: Measured) -> None:
    owner = owner_of(situation)
    manifest = server_service(owner, one.candidate, role=one.role)
    live = situation.observation.objects.get(("Service", one.server))
    if live is None or first_difference(manifest, live) is not None:
        draft.actions.append(Apply(manifest=manifest, why=f"{one.candidate.shape} is measured through it"))


def _create_run(situation: Situation, draft: Draft, one: Measured) -> None:
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
    owner = owner_of(situation)
    manifest = benchmark_run(owner, spec, candidate=one.candidate.digest, workload=situation.workload)
    draft.actions.append(Apply(manifest=manifest, why=one.wanted.why))
    draft.do("Measuring", starting_message(one.candidate))


def _load(situation: Situation, draft: Draft, one: Measured, run: Run, server: Server) -> None:
    setting = setting_of(situation)
    now = situation.observation.now
    pods = [pod for pod in server.pods if pod.is_active]
    engine = _engine_of(pods)
    if engine is not None and died_under_load(run, engine):
        words = engine.last_words or f"exit code {engine.exit_code}"
        draft.actions += close(run, setting, "ServerFailed", f"The engine died under load: {words}")
        draft.do("Measuring", f"{one.candidate.shape}: the engine died under load.")
        return
    failure = None
    if run.job is None:
        failure = _startup_failure(engine, one.candidate, now, run) or _refusal(server, one.candidate, now, run)
    if failure is not None:
        draft.actions += close(run, setting, *failure)
        draft.do("Measuring", f"{one.candidate.shape}: {failure[1][:300]}")
        return
    is_going = any(pod.is_terminating for pod in server.pods)
    is_alone = engine is not None and engine.is_ready and len(pods) == 1 and not is_going
    if not is_alone and run.job is None:
        _starting(situation, draft, one, run, server)
        return
    ready = f"Pod {engine.name} is Ready." if engine is not None else ""
    steps = job_steps(run, setting, engine=engine, ready=ready)
    draft.actions += steps.actions
    draft.wake(steps.wake_after)
    draft.do("Measuring", _progress(one, run, steps.message))


def _engine_of(pods: Iterable[Pod]) -> Pod | None:
    return max(pods, key=lambda pod: (pod.is_ready, pod.name), default=None)


def _startup_failure(engine: Pod | None, candidate: Candidate, now: datetime, run: Run) -> tuple[str, str] | None:
    """Return (reason, message) when an engine will not become Ready.

    A container that never ran (its image, a volume or a Secret is missing) is not held against the candidate. After
    an attempt that failed, the time to become Ready again counts from there.
    """
    if engine is None or engine.is_ready or engine.unschedulable is not None:
        return None
    words = engine.last_words or (f"exit code {engine.exit_code}" if engine.exit_code is not None else "no last words")
    if engine.restarts >= RESTARTS_MAXIMUM:
        return (
            "ServerFailed",
            f"The engine of {candidate.shape} ended {engine.restarts} times before it was Ready: {words}",
        )
    deadline = _latest(engine, candidate, run)
    if deadline is None or now < deadline:
        return None
    if engine.waiting in NOT_ITS_FAULT or (engine.phase == "Pending" and not engine.restarts):
        why = engine.waiting or "its container was never created; see the pod's events"
        return "TargetUnreachable", f"Pod {engine.name} could not start within its deadline: {why}"
    limit = candidate.placement.startup_timeout_seconds
    return "StartupTimeout", f"The engine of {candidate.shape} was not Ready within {limit} s: {words}"


def _latest(engine: Pod, candidate: Candidate, run: Run) -> datetime | None:
    """Return when the engine must be Ready: by its pod's start, or by the next attempt when one has failed."""
    deadline, again = deadline_of(engine, candidate), next_attempt_at(run)
    if deadline is None or again is None:
        return deadline
    return max(deadline, again + timedelta(seconds=startup_budget_seconds(candidate)))


def _refusal(server: Server, candidate: Candidate, now: datetime, run: Run) -> tuple[str, str] | None:
    """Return (reason, message) when no pod could be made in time. A quota is not held against the candidate."""
    if server.refused_pods is None or now < _refused_until(server, candidate, run):
        return None
    return "TargetUnreachable", f"No pod could be made within its deadline. {_refused(server, candidate)}"


def _refused(server: Server, candidate: Candidate) -> str:
    return refused_message(server, candidate, server.refused_pods or "")


def _refused_until(server: Server, candidate: Candidate, run: Run) -> datetime:
    """Return when a server must have its pod: as long after it was wanted as a pod gets to become Ready."""
    since = max(server.created_at, run.created_at, next_attempt_at(run) or run.created_at)
    return since + timedelta(seconds=startup_budget_seconds(candidate)) + STARTUP_SLACK


def _starting(situation: Situation, draft: Draft, one: Measured, run: Run, server: Server) -> None:
    setting = setting_of(situation)
    engine = _engine_of(pod for pod in server.pods if pod.is_active)
    if server.refused_pods is not None:
        message = _refused(server, one.candidate)
        draft.actions += note_server(run, setting, "ServerStarting", message)
        until = _refused_until(server, one.candidate, run)
        draft.wait("MeasurementBlocked", message, until - situation.observation.now)
        return
    limit = one.candidate.placement.startup_timeout_seconds
    if engine is not None and engine.unschedulable is not None:
        no_gpus(situation, draft, one.candidate, engine, 1)
        draft.actions += note_server(run, setting, "ServerStarting", "The pod waits for GPUs; there is no time limit.")
        return
    draft.actions += note_server(run, setting, "ServerStarting", f"The server gets {limit} s to become Ready.")
    why = (
        f" ({engine.waiting})" if engine is not None and engine.waiting in NOT_ITS_FAULT - {"ContainerCreating"} else ""
    )
    draft.do("Measuring", starting_message(one.candidate, why))
    deadline = _latest(engine, one.candidate, run) if engine is not None else None
    draft.wake(deadline - situation.observation.now if deadline is not None else LOOK_FOR_GPUS)


def starting_message(candidate: Candidate, why: str = "") -> str:
    """Return that a server starts, and how long it may."""
    return f"{candidate.shape}: its server starts, {candidate.placement.startup_timeout_seconds} s at most{why}."


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
