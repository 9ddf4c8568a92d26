"""From a BenchmarkRun to its end: the account and the Job, attempts, and the conditions that close it.

    no Job ──► account + Job ──► outcome Complete ────────────► Complete
                  ▲    │
                  │    ├── outcome or Job failed ──► attempt + 1, back-off, again; after 3: Failed
                  └────┘   the server's own fault ──► Failed at once (ServerFailed, StartupTimeout)

Shared by a model's runs and by hand-made ones. Pure. Finished cells stay in the run, so that another attempt resumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from specmodel.api.benchmark import RunPlacement
from specmodel.api.conditions import Condition, ConditionStatus, RunConditionType
from specmodel.api.labels import ENGINE_PROCESS
from specmodel.domain.observation import BenchmarkJob, Pod, Run
from specmodel.domain.settings import Settings
from specmodel.manifests.benchmark import benchmark_job, role, role_binding, service_account
from specmodel.manifests.difference import first_difference
from specmodel.manifests.names import job_name, run_owner
from specmodel.reconcile.action import Action, Apply, Delete, WriteRunStatus
from specmodel.reconcile.times import parse_stamp, stamp

ATTEMPTS_MAXIMUM = 3
BACKOFF_FIRST = timedelta(seconds=10)
BACKOFF_MAXIMUM = timedelta(minutes=5)
#: A Job that ended without a word is given this long beyond its deadline, then the attempt counts as failed.
SILENCE = timedelta(minutes=3)
#: A Job may notice a dead engine before the kubelet tells of it: an outcome is not judged before that. A real vLLM was
#: seen to take 9 s from its first 500 to a container started anew.
KUBELET_LAG = timedelta(seconds=30)
#: Outcomes that no further attempt would change.
FINAL_OUTCOMES = frozenset({"DeadlineExceeded", "ModelNotServed", "InvalidRun"})
#: Kinds of a run's own objects beside the Job, in the order in which they are made.
ACCOUNT_KINDS = ("ServiceAccount", "Role", "RoleBinding")

Objects = Mapping[tuple[str, str], Mapping[str, Any]]
Finding = tuple[ConditionStatus, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run's steps need to know beside the run."""

    now: datetime
    namespace: str
    #: The owning model's name, or None for a hand-made run.
    model: str | None
    settings: Settings
    objects: Objects
    #: GPU product by node, where known.
    products: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Actions for one run, what they wait for, and when to look again."""

    actions: tuple[Action, ...] = ()
    wake_after: timedelta | None = None
    message: str = ""


def is_finished(run: Run) -> bool:
    """Return whether a run has ended, well or not."""
    return run.is_complete or run.failure is not None


def outcome_of(run: Run) -> tuple[str, str]:
    """Return (outcome, message) that the run's present Job wrote; ("", "") while it works.

    An outcome older than the Job is an earlier attempt's; but what was complete once is complete.
    """
    progress = run.status.progress
    if progress is None or not progress.outcome:
        return "", ""
    if progress.outcome == "Complete":
        return progress.outcome, progress.message
    written = parse_stamp(progress.updated_at)
    if run.job is None or (written is not None and written < run.job.created_at.replace(microsecond=0)):
        return "", ""
    return progress.outcome, progress.message


def job_steps(run: Run, setting: Setting, *, engine: Pod | None = None, ready: str = "") -> Steps:
    """Return what brings a run whose server is Ready to its end: account, Job, attempts, conditions.

    `engine` is the server's pod where the operator knows it; `ready` says so in words.
    """
    server_ready: Finding = (ConditionStatus.TRUE, "TargetReady", ready or "The target is given by the user.")
    outcome, message = outcome_of(run)
    if run.job is not None and run.job.is_being_deleted:
        return Steps(message="the last attempt's Job is being deleted")
    if outcome == "Complete" and run.status.cells:
        done = f"{len(run.status.cells)} of {len(run.spec.cells)} cells measured; the others were not needed."
        if len(run.status.cells) >= len(run.spec.cells):
            done = f"All {len(run.spec.cells)} cells measured."
        complete = (ConditionStatus.TRUE, "CellsComplete", done)
        return Steps(actions=_write(run, setting, "all is measured", complete=complete))
    if run.job is None:
        return _start(run, setting, engine, server_ready)
    lag = _until_kubelet_told(run, setting.now) if outcome and engine is not None else None
    if lag is not None:
        return Steps(wake_after=lag, message=f"the load ended ({outcome}); was it the engine that died?")
    if outcome in FINAL_OUTCOMES:
        return Steps(actions=close(run, setting, outcome, message or outcome))
    fault = _fault(run, run.job, setting, engine, (outcome, message))
    if fault is not None:
        return _try_again(run, run.job, setting, *fault)
    running = (ConditionStatus.FALSE, "Running", f"Job {run.job.name} is measuring.")
    actions = _write(run, setting, "the Job runs", server_ready=server_ready, complete=running, engine=engine)
    return Steps(actions=actions, wake_after=_until(run.job.created_at + _patience(run), setting.now))


def _until_kubelet_told(run: Run, now: datetime) -> timedelta | None:
    """Return how long the kubelet may still take to tell that the engine died, or None when it has had its time."""
    written = parse_stamp(run.status.progress.updated_at) if run.status.progress else None
    return written + KUBELET_LAG - now if written is not None and now < written + KUBELET_LAG else None


def _start(run: Run, setting: Setting, engine: Pod | None, server_ready: Finding) -> Steps:
    again = next_attempt_at(run)
    if again is not None and again > setting.now:
        return Steps(wake_after=again - setting.now, message=_condition_message(run, RunConditionType.COMPLETE))
    pending = (ConditionStatus.FALSE, "Pending", "The Job is about to start.")
    actions = list(
        _write(run, setting, "the server answers", server_ready=server_ready, complete=pending, engine=engine)
    )
    owner = run_owner(run.name, run.uid)
    process = f"{engine.uid}/{engine.restarts}" if engine is not None else ""
    account = (
        service_account(owner, setting.model),
        role(owner, setting.model),
        role_binding(owner, setting.model, setting.namespace),
    )
    for manifest in account:
        live = _live(run, setting, manifest["kind"])
        if live is None or first_difference(manifest, live) is not None:
            actions.append(Apply(manifest=manifest, why=f"the account of BenchmarkRun {run.name}'s Job"))
    job = benchmark_job(
        owner,
        run.spec,
        model=setting.model,
        namespace=setting.namespace,
        settings=setting.settings,
        engine_process=process,
    )
    attempt = (run.status.attempts or 0) + 1
    actions.append(Apply(manifest=job, why=f"measure {len(run.spec.cells)} cells, attempt {attempt}"))
    return Steps(actions=tuple(actions), message="the Job is about to start")


def _fault(
    run: Run, job: BenchmarkJob, setting: Setting, engine: Pod | None, outcome: tuple[str, str]
) -> tuple[str, str] | None:
    """Return (reason, message) why this attempt is over without being complete, or None."""
    if outcome[0] == "Complete":
        return "JobFailed", "the Job says Complete and left no cell"
    if outcome[0]:
        return outcome[0], outcome[1] or outcome[0]
    words = _job_fault(run, job, engine, setting.now)
    return ("JobFailed", words) if words is not None else None


def _job_fault(run: Run, job: BenchmarkJob, engine: Pod | None, now: datetime) -> str | None:
    """Return why a Job that said nothing itself is over, or None."""
    if job.failure is not None:
        words = next((pod.last_words for pod in reversed(job.pods) if pod.last_words), "") or job.failure[1]
        return f"{job.failure[0]}: {words}"
    if job.is_complete:
        return "the Job ended without a word"
    process = job.annotations.get(ENGINE_PROCESS, "")
    if process and engine is not None and engine.uid != process.partition("/")[0]:
        return "the engine's pod was replaced during the measurement"
    return "the Job went silent beyond its deadline" if now > job.created_at + _patience(run) else None


def died_under_load(run: Run, engine: Pod | None) -> bool:
    """Return whether the engine's process is another than the one that the Job began to load, in the same pod."""
    process = run.job.annotations.get(ENGINE_PROCESS, "") if run.job else ""
    uid, _, restarts = process.partition("/")
    if engine is None or engine.uid != uid or not restarts.isdigit():
        return False
    return engine.restarts > int(restarts)


def _try_again(run: Run, job: BenchmarkJob, setting: Setting, reason: str, message: str) -> Steps:
    attempts = (run.status.attempts or 0) + 1
    if attempts >= ATTEMPTS_MAXIMUM:
        text = f"{attempts} attempts failed; the last: {message}"
        return Steps(actions=close(run, setting, reason, text, attempts=attempts))
    pause = backoff(attempts)
    text = f"Attempt {attempts} of {ATTEMPTS_MAXIMUM} failed ({reason}: {message}); "
    text += f"the next follows after {pause.seconds} s."
    again = (ConditionStatus.FALSE, "JobFailed", text[:2000])
    actions = _write(run, setting, "an attempt failed", complete=again, attempts=attempts)
    delete = Delete(kind="Job", name=job.name, uid=job.uid, why="its attempt failed; another follows")
    return Steps(actions=(*actions, delete), wake_after=pause, message=text)


def backoff(attempts: int) -> timedelta:
    """Return the pause after that many failed attempts: 10 s, doubled each time."""
    return min(BACKOFF_MAXIMUM, BACKOFF_FIRST * int(2 ** (attempts - 1)))


def next_attempt_at(run: Run) -> datetime | None:
    """Return when the next attempt may begin, or None when nothing has failed yet."""
    for condition in run.status.conditions:
        if condition.type == RunConditionType.COMPLETE.value and condition.reason == "JobFailed":
            failed = parse_stamp(condition.last_transition_time)
            return failed + backoff(max(1, run.status.attempts or 1)) if failed else None
    return None


def close(run: Run, setting: Setting, reason: str, message: str, *, attempts: int | None = None) -> tuple[Action, ...]:
    """Return the writing down that a run failed for good. Finished cells stay."""
    kept = f" {len(run.status.cells)} finished cells are kept." if run.status.cells else ""
    failed = (ConditionStatus.TRUE, reason, f"{message[:3800]}{kept}")
    complete = (ConditionStatus.FALSE, reason, "See condition Failed.")
    return _write(run, setting, f"it failed: {reason}", complete=complete, failed=failed, attempts=attempts)


def note_server(run: Run, setting: Setting, reason: str, message: str) -> tuple[Action, ...]:
    """Return the writing down of what the run's server waits for."""
    pending = (ConditionStatus.FALSE, "Pending", "The server is not Ready yet.")
    starting = (ConditionStatus.FALSE, reason, message)
    return _write(run, setting, reason, server_ready=starting, complete=pending)


def clean_up(run: Run, setting: Setting, why: str) -> tuple[Action, ...]:
    """Return the deletion of a run's Job and account; the run itself is never deleted."""
    actions: list[Action] = []
    if run.job is not None and not run.job.is_being_deleted:
        actions.append(Delete(kind="Job", name=run.job.name, uid=run.job.uid, why=why))
    for kind in reversed(ACCOUNT_KINDS):
        live = _live(run, setting, kind)
        if live is not None and not live["metadata"].get("deletionTimestamp"):
            uid = str(live["metadata"].get("uid", ""))
            actions.append(Delete(kind=kind, name=job_name(run.name), uid=uid, why=why))
    return tuple(actions)


def _live(run: Run, setting: Setting, kind: str) -> Mapping[str, Any] | None:
    key = (kind, job_name(run.name))
    return run.objects.get(key) or setting.objects.get(key)


def _patience(run: Run) -> timedelta:
    return timedelta(seconds=run.spec.deadline_seconds) + SILENCE


def _until(time: datetime, now: datetime) -> timedelta:
    return max(timedelta(seconds=1), time - now)


def _condition_message(run: Run, kind: RunConditionType) -> str:
    return next((c.message for c in run.status.conditions if c.type == kind.value), "")


def _write(  # noqa: PLR0913 — the members of a status
    run: Run,
    setting: Setting,
    why: str,
    *,
    server_ready: Finding | None = None,
    complete: Finding | None = None,
    failed: Finding | None = None,
    attempts: int | None = None,
    engine: Pod | None = None,
) -> tuple[Action, ...]:
    """Return the write of a run's status, or nothing when it says so already. What is not given stays."""
    had = {condition.type: condition for condition in run.status.conditions}
    given = {
        RunConditionType.SERVER_READY: server_ready,
        RunConditionType.COMPLETE: complete,
        RunConditionType.FAILED: failed,
    }
    conditions: list[Condition] = []
    for kind, finding in given.items():
        before = had.get(kind.value)
        if finding is None:
            conditions += [before] if before is not None else []
            continue
        conditions.append(_condition(kind, finding, before, setting.now))
    placement = run.status.placement
    if engine is not None:
        node = engine.node or ""
        product = setting.products.get(node, "")
        placement = RunPlacement(node=node, gpu_product=product, engine_image_id=engine.image_id)
    counted = run.status.attempts or 0 if attempts is None else attempts
    is_same = (
        conditions == list(run.status.conditions)
        and placement == run.status.placement
        and counted == (run.status.attempts or 0)
    )
    if is_same:
        return ()
    return (
        WriteRunStatus(
            run=run.name, uid=run.uid, conditions=tuple(conditions), attempts=counted, placement=placement, why=why
        ),
    )


def _condition(kind: RunConditionType, finding: Finding, before: Condition | None, now: datetime) -> Condition:
    status, reason, message = finding
    if before is not None and before.status == status and before.reason == reason:
        if before.message == message:
            return before
        return before.model_copy(update={"message": message})
    return Condition(type=kind.value, status=status, reason=reason, message=message, last_transition_time=stamp(now))
