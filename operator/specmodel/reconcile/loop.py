"""One pass over one model: gather everything, decide purely, write the difference, report honestly.

    get ─► observe ─► understand (decide) ─► plan ─► apply, one by one ─► report ─► write status ─► events

Level-triggered: nothing depends on what woke the pass, and being killed at any line is harmless. Knows no Kubernetes
client, no clock and no logger: what happened is returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from specmodel.api.model import SpeculativeModel, SpeculativeModelStatus
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.observation import Observation
from specmodel.domain.settings import Settings
from specmodel.reconcile.action import (
    Action,
    Cluster,
    Key,
    Outcome,
    Plan,
    RefusedError,
    TransientError,
    UnreadableModel,
)
from specmodel.reconcile.events import events
from specmodel.reconcile.plan import plan
from specmodel.reconcile.report import report, report_invalid, report_unreadable
from specmodel.reconcile.situation import understand
from specmodel.reconcile.times import stamp

#: After a write, look again at the latest then, even if nothing rings.
LOOK_AGAIN = timedelta(seconds=15)
#: After a refusal, try again: someone may have mended the role or the policy meanwhile.
AFTER_REFUSAL = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass did, for the log, the metrics and the next wake-up."""

    key: Key
    plan: Plan = field(default_factory=Plan)
    outcome: Outcome = field(default_factory=Outcome)
    #: When to look again even if nothing rings; None: only events matter.
    wake_after: timedelta | None = None
    is_gone: bool = False
    has_written_status: bool = False
    status: SpeculativeModelStatus | None = None

    @property
    def has_changed_something(self) -> bool:
        """Whether the pass wrote anything: passes that did not are not worth a line in the log."""
        return bool(self.outcome.done) or self.has_written_status


async def reconcile_model(cluster: Cluster, key: Key, settings: Settings, *, now: datetime) -> Pass:
    """Make one pass over a model. Raises `TransientError` when the cluster could not even be read.

    `now` stamps only objects that do not parse; everything else takes its time from the observation.
    """
    model = await cluster.get(key)
    if model is None:
        return Pass(key=key, is_gone=True)
    if isinstance(model, UnreadableModel):
        status = report_unreadable(model, stamp(now))
        return Pass(key=key, has_written_status=await cluster.write_status(model, status), status=status)
    if model.is_being_deleted:
        return Pass(key=key, is_gone=True)
    observation = await cluster.observe(model)
    try:
        situation = understand(model, observation, settings)
        todo = plan(situation)
    except InvalidModelError as error:
        return await _stalled(cluster, model, observation, error)
    outcome = await apply(cluster, model, todo)
    status = report(situation, todo, outcome)
    return await _finish(cluster, model, status, Pass(key=key, plan=todo, outcome=outcome))


async def apply(cluster: Cluster, model: SpeculativeModel, todo: Plan) -> Outcome:
    """Carry a plan out, action by action; stop at the first refusal or fault and remember what was done."""
    return await carry_out(todo, lambda action: cluster.apply(model, action))


async def carry_out(todo: Plan, perform: Callable[[Action], Awaitable[None]]) -> Outcome:
    """Perform a plan's actions in order; stop at the first refusal or fault and remember what was done."""
    for index, action in enumerate(todo.actions):
        try:
            await perform(action)
        except RefusedError as error:
            return Outcome(done=todo.actions[:index], refused=(error.reason, error.message))
        except TransientError as error:
            return Outcome(done=todo.actions[:index], fault=str(error), retry_after=error.after)
    return Outcome(done=todo.actions)


async def _stalled(
    cluster: Cluster, model: SpeculativeModel, observation: Observation, error: InvalidModelError
) -> Pass:
    status = report_invalid(model, observation, error.reason, error.message)
    key = Key(namespace=model.namespace, name=model.name)
    return await _finish(cluster, model, status, Pass(key=key))


async def _finish(cluster: Cluster, model: SpeculativeModel, status: SpeculativeModelStatus, made: Pass) -> Pass:
    """Store the status, then tell what changed. A status that cannot be stored is written by the next pass."""
    try:
        has_written = await cluster.write_status(model, status)
    except (TransientError, RefusedError) as error:
        after = error.after if isinstance(error, TransientError) else AFTER_REFUSAL
        outcome = Outcome(done=made.outcome.done, refused=made.outcome.refused, fault=str(error), retry_after=after)
        return Pass(
            key=made.key, plan=made.plan, outcome=outcome, wake_after=wake_after(made.plan, outcome), status=status
        )
    if has_written:
        for event in events(model.status, status):
            await cluster.post_event(model, reason=event.reason, message=event.message, is_warning=event.is_warning)
    return Pass(
        key=made.key,
        plan=made.plan,
        outcome=made.outcome,
        wake_after=wake_after(made.plan, made.outcome),
        has_written_status=has_written,
        status=status,
    )


def wake_after(todo: Plan, outcome: Outcome) -> timedelta | None:
    """Return when to look again after a pass even if nothing rings; None when only events matter."""
    wakes = [todo.wake_after] if todo.wake_after is not None else []
    if outcome.retry_after is not None:
        wakes.append(outcome.retry_after)
    if outcome.refused is not None:
        wakes.append(AFTER_REFUSAL)
    if outcome.done:
        wakes.append(LOOK_AGAIN)
    return min(wakes, default=None)
