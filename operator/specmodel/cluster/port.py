"""The port, for real: what `reconcile` asks of a cluster, by way of observe and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_never

from specmodel.api import labels
from specmodel.api.model import SpeculativeModel, SpeculativeModelStatus
from specmodel.cluster import reading
from specmodel.cluster.client import ApiError, Client
from specmodel.cluster.engine_logs import EngineLogs
from specmodel.cluster.faults import transient
from specmodel.cluster.observe import observe, observe_run
from specmodel.cluster.write import Writer
from specmodel.domain.observation import Observation, Run
from specmodel.domain.settings import Settings
from specmodel.reconcile.action import Action, Apply, Ask, Delete, Key, UnreadableModel, WriteRunStatus


@dataclass(slots=True)
class KubernetesCluster:
    """Implements `specmodel.reconcile.action.Cluster` over one client."""

    client: Client
    settings: Settings
    _writer: Writer = field(init=False)
    _logs: EngineLogs = field(init=False)

    def __post_init__(self) -> None:
        self._writer = Writer(self.client)
        self._logs = EngineLogs(self.client)

    async def get(self, key: Key) -> SpeculativeModel | UnreadableModel | None:
        """Return the model, or None when it is gone. Raises TransientError."""
        value = await self._get(labels.MODEL_KIND, key)
        return None if value is None else reading.read_model(value)

    async def observe(self, model: SpeculativeModel) -> Observation:
        """Return one snapshot of all that concerns the model. Raises TransientError."""
        try:
            return await observe(self.client, model, self.settings, self._logs)
        except ApiError as error:
            raise transient(error, f"observe {model.namespace}/{model.name}") from error

    async def apply(self, model: SpeculativeModel, action: Action) -> None:
        """Carry out one action, idempotently. Raises TransientError, RefusedError."""
        await self._carry_out(model.namespace, action)

    async def apply_for_run(self, key: Key, action: Action) -> None:
        """Carry out one action of a run that no model owns, in its namespace. Raises TransientError, RefusedError."""
        await self._carry_out(key.namespace, action)

    async def _carry_out(self, namespace: str, action: Action) -> None:
        match action:
            case Apply():
                await self._writer.apply(namespace, action)
            case Delete():
                await self._writer.delete(namespace, action)
            case Ask():
                await self._writer.ask(namespace, action)
            case WriteRunStatus():
                await self._writer.run_status(namespace, action)
            case _:
                assert_never(action)

    async def write_status(self, model: SpeculativeModel | UnreadableModel, status: SpeculativeModelStatus) -> bool:
        """Store the status; nothing is sent when it equals the stored one. Return whether it was sent.

        Raises TransientError, RefusedError.
        """
        wire = status.to_wire()
        if isinstance(model, UnreadableModel):
            key = model.key
            stored = await self._get(labels.MODEL_KIND, key)
            if stored is None or reading.mapping(stored, "status") == wire:
                return False
            return await self._writer.model_status(key.namespace, key.name, model.uid, wire)
        if model.status.to_wire() == wire:
            return False
        return await self._writer.model_status(model.namespace, model.name, model.uid, wire)

    async def post_event(self, model: SpeculativeModel, *, reason: str, message: str, is_warning: bool) -> None:
        """Post a Kubernetes Event on the model. Failures are swallowed: events are a courtesy."""
        regarding = _reference(model)
        try:
            await self._writer.event(regarding, reason=reason, message=message, is_warning=is_warning)
        except ApiError:
            return

    async def get_run(self, key: Key) -> Run | None:
        """Return a BenchmarkRun that no model owns, or None. Raises TransientError."""
        value = await self._get(labels.RUN_KIND, key)
        if value is None or is_owned_by_model(value):
            return None
        try:
            return await observe_run(self.client, value, self.settings)
        except ApiError as error:
            raise transient(error, f"observe {labels.RUN_KIND} {key.namespace}/{key.name}") from error

    async def _get(self, kind: str, key: Key) -> dict[str, Any] | None:
        try:
            return await self.client.get(kind, key.namespace, key.name)
        except ApiError as error:
            raise transient(error, f"{kind}/{key.name}") from error


def is_owned_by_model(run: reading.Wire) -> bool:
    """Return whether a model asked for the run: its owner says so, a label alone can be anyone's."""
    owners = reading.items(run, "metadata", "ownerReferences")
    return any(owner.get("kind") == labels.MODEL_KIND for owner in owners)


def _reference(model: SpeculativeModel) -> dict[str, Any]:
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.MODEL_KIND,
        "namespace": model.namespace,
        "name": model.name,
        "uid": model.uid,
    }
