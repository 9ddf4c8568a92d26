"""One pass over a BenchmarkRun that a person made: the same account, Job, attempts and conditions as a model's run.

The target is the user's own; nothing is served, promoted or deleted here beside the run's Job and account.
"""

from __future__ import annotations

from datetime import datetime

from specmodel.domain.observation import Run
from specmodel.domain.settings import Settings
from specmodel.reconcile.action import Cluster, Key, Plan
from specmodel.reconcile.loop import Pass, carry_out, wake_after
from specmodel.reconcile.measuring import Setting, clean_up, is_finished, job_steps


def plan_run(run: Run, *, namespace: str, settings: Settings, now: datetime) -> Plan:
    """Return what to do now about a hand-made run."""
    setting = Setting(now=now, namespace=namespace, model=None, settings=settings, objects=run.objects)
    if is_finished(run):
        return Plan(actions=clean_up(run, setting, "the run has ended"))
    steps = job_steps(run, setting)
    doing = ("Measuring", steps.message or "the Job is measuring")
    return Plan(actions=steps.actions, wake_after=steps.wake_after, doing=doing)


async def reconcile_run(cluster: Cluster, key: Key, settings: Settings, *, now: datetime) -> Pass:
    """Make one pass over a hand-made run. Raises `TransientError` when the cluster could not be read.

    A run that a model owns is None for `get_run`, and that model's own pass sees to it.
    """
    run = await cluster.get_run(key)
    if run is None:
        return Pass(key=key, is_gone=True)
    todo = plan_run(run, namespace=key.namespace, settings=settings, now=now)
    outcome = await carry_out(todo, lambda action: cluster.apply_for_run(key, action))
    return Pass(key=key, plan=todo, outcome=outcome, wake_after=wake_after(todo, outcome))
