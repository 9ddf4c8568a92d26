"""Drive the operator's loop over a scripted cluster and write down what a person would have seen.

Passes are made when something rang or a wake-up is due, as in the real process; between them time moves by seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from specmodel.api.conditions import ConditionStatus, ConditionType
from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec
from specmodel.reconcile.action import Key, TransientError
from specmodel.reconcile.loop import Pass, reconcile_model
from tests.support.scripted_cluster import BEGINNING, NAMESPACE, KilledError, ScriptedCluster

#: Nothing changed for so long and no wake-up is due: the cluster is at rest.
REST = timedelta(minutes=1)
#: Nothing changed for so long although the operator looks again and again: it waits for something from outside.
PATIENCE = timedelta(minutes=10)


def model_of(spec: dict[str, Any], *, name: str = "agent") -> SpeculativeModel:
    """Return a model for simulations: few cells, observed percentiles, E2E P99 within 2600 ms unless said otherwise."""
    given: dict[str, Any] = {
        "model": {"uri": "hf://example/target-8b"},
        "drafter": {"uri": "hf://example/eagle3-8b", "speculativeTokens": [3]},
        "engine": {"image": "vllm/vllm-openai:v0.25.1", "startupTimeoutSeconds": 120},
        "workload": {"concurrency": [1, 8, 32], "requestsPerCell": {"min": 24, "max": 200}},
        "sla": {
            "limits": [{"metric": "E2ELatency", "percentile": 99, "maxMilliseconds": 2600}],
            "confidencePercent": 0,
        },
        "serving": {"rollout": {"drainSeconds": 20}},
    }
    merged = _merged(given, spec)
    return SpeculativeModel(
        name=name,
        namespace=NAMESPACE,
        uid="uid-model",
        generation=1,
        spec=SpeculativeModelSpec.model_validate(merged),
    )


def within(milliseconds: int) -> dict[str, Any]:
    """Return an SLA of one limit, E2E P99."""
    limits = [{"metric": "E2ELatency", "percentile": 99, "maxMilliseconds": milliseconds}]
    return {"sla": {"limits": limits}}


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def rehearse(model: SpeculativeModel, **cluster: Any) -> Rehearsal:
    """Return a rehearsal of a model on a scripted cluster with the given script."""
    return Rehearsal(cluster=ScriptedCluster(model=model, **cluster))


def in_any_order(scenario: Callable[[int | None], Rehearsal]) -> Callable[[], None]:
    """Make a test of a scenario and its twin, to which the API server lists everything in another order."""

    def test() -> None:
        assert scenario(None).text() == scenario(11).text()

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


@dataclass(slots=True)
class Rehearsal:
    """One scripted cluster with the operator working on it."""

    cluster: ScriptedCluster
    history: list[str] = field(default_factory=list)
    passes: int = 0
    restarts: int = 0
    #: Make a pass every second, whether or not anything rang.
    is_impatient: bool = False
    _said: str = ""
    _wake: datetime | None = None

    def run(self, *, until: Callable[[], bool] | None = None, limit: timedelta = timedelta(hours=2)) -> None:
        """Let time pass until a statement holds, or (without one) until nothing happens any more.

        Fails with the history when that takes longer than the limit.
        """
        asyncio.run(self._run(until, limit))

    async def _run(self, until: Callable[[], bool] | None, limit: timedelta) -> None:
        cluster = self.cluster
        deadline = cluster.now + limit
        quiet_since = cluster.now
        is_due = True
        while cluster.now < deadline:
            if is_due:
                made = await self._pass()
                if made is None or made.has_changed_something:
                    quiet_since = cluster.now
            if until is not None and until():
                return
            quiet = cluster.now - quiet_since
            if until is None and quiet >= (REST if self._wake is None else PATIENCE):
                return
            has_rung = cluster.tick()
            if has_rung:
                quiet_since = cluster.now
            is_due = self.is_impatient or has_rung or (self._wake is not None and cluster.now >= self._wake)
        raise AssertionError(f"not there after {limit}:\n" + self.text())

    async def _pass(self) -> Pass | None:
        cluster = self.cluster
        name = cluster.model.name if cluster.model is not None else "agent"
        self.passes += 1
        self._wake = None
        try:
            made = await reconcile_model(
                cluster, Key(namespace=NAMESPACE, name=name), cluster.settings, now=cluster.now
            )
        except KilledError:
            self.restarts += 1
            self.history.append(f"{self._time()} the operator is killed and starts again")
            self._wake = cluster.now + timedelta(seconds=1)
            return None
        except TransientError as error:
            self._wake = cluster.now + error.after
            return None
        if made.wake_after is not None:
            self._wake = cluster.now + made.wake_after
        self._write_down(made)
        return made

    def _write_down(self, made: Pass) -> None:
        if made.outcome.done:
            for line in made.plan.describe().splitlines()[: len(made.outcome.done)]:
                self.history.append(f"{self._time()} {line}")
        if made.outcome.refused is not None:
            self.history.append(f"{self._time()} refused: {': '.join(made.outcome.refused)}")
        said = self.status_line()
        if said != self._said:
            self.history.append(f"{self._time()}   = {said}")
            self._said = said

    def _time(self) -> str:
        seconds = int((self.cluster.now - BEGINNING).total_seconds())
        return f"{seconds // 60:3d}:{seconds % 60:02d}"

    # ---- what a person sees

    def status_line(self) -> str:
        """Return phase and Ready in one line."""
        ready = self.condition(ConditionType.READY)
        if ready is None or self.cluster.model is None:
            return "no status"
        return f"{self.cluster.model.status.phase}: Ready={ready.status} {ready.reason}: {ready.message}"

    def condition(self, kind: ConditionType) -> Any:
        """Return a condition of the stored status, or None."""
        model = self.cluster.model
        return next((c for c in model.status.conditions if c.type == kind.value), None) if model is not None else None

    def is_ready(self) -> bool:
        """Return whether the model is Ready for its generation."""
        ready, model = self.condition(ConditionType.READY), self.cluster.model
        if ready is None or model is None:
            return False
        return ready.status is ConditionStatus.TRUE and ready.observed_generation == model.generation

    def serving(self) -> tuple[int, int, str] | None:
        """Return (GPUs per replica, γ, weights) of what serves."""
        serving = self.cluster.model.status.serving if self.cluster.model is not None else None
        if serving is None:
            return None
        return serving.gpus_per_replica, serving.speculative_tokens, serving.weights

    def text(self) -> str:
        """Return the history as text."""
        return "\n".join(self.history) + "\n"
