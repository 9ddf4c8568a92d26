"""Every write of the operator: server-side apply, delete, status, a pod's annotation, an Event.

A PATCH is sent only when it would change something (difference). A write that the API server takes but does not keep
(a field that it drops, a webhook that changes it back) is sent once, not on every pass.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from specmodel.api import labels
from specmodel.api.benchmark import BenchmarkRunStatus
from specmodel.cluster import reading
from specmodel.cluster.ask import NoAnswerError, ask
from specmodel.cluster.client import APPLY, ApiError, Client, Request
from specmodel.cluster.difference import first_difference
from specmodel.cluster.faults import LATER, SOON, of_write, transient
from specmodel.cluster.kinds import KINDS
from specmodel.domain.candidate import digest_of
from specmodel.reconcile.action import Apply, Ask, Delete, RefusedError, TransientError, WriteRunStatus

#: Kinds whose pods must be gone before they are.
_FOREGROUND = frozenset({"Deployment", "Job"})
_APPLY_QUERY = (("fieldManager", labels.FIELD_MANAGER), ("force", "true"))
#: Kubernetes' limit for an Event's note.
NOTE_MAXIMUM = 1024
#: How many unkept writes are remembered; the oldest is forgotten, which costs one PATCH.
UNKEPT_MAXIMUM = 1000


@dataclass(slots=True)
class Writer:
    """Writes through one client."""

    client: Client
    #: By uid: digest of (manifest, object as the server stored it) of the last apply that the server did not keep.
    _unkept: dict[str, str] = field(default_factory=dict)

    async def apply(self, namespace: str, action: Apply) -> bool:
        """Apply an object if that changes anything; return whether it was sent. Raises TransientError, RefusedError."""
        manifest = {**action.manifest, "metadata": {**action.manifest["metadata"], "namespace": namespace}}
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        live = await self._read(kind, namespace, name)
        if live is not None and reading.is_terminating(live):
            raise TransientError(f"{kind}/{name} is being deleted; it is applied again when it is gone", after=SOON)
        if live is not None:
            _require_ours(manifest, live)
        if live is not None and self._is_kept(manifest, live):
            return False
        stored = await self._patch(KINDS[kind].path(namespace, name), manifest, f"{kind}/{name}", kind)
        if first_difference(manifest, stored) is not None:
            self._remember(manifest, stored)
        return True

    def _is_kept(self, manifest: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
        if first_difference(manifest, live) is None:
            return True
        return self._unkept.get(reading.text(live, "metadata", "uid")) == _fingerprint(manifest, live)

    def _remember(self, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        self._unkept[reading.text(stored, "metadata", "uid")] = _fingerprint(manifest, stored)
        while len(self._unkept) > UNKEPT_MAXIMUM:
            del self._unkept[next(iter(self._unkept))]

    async def delete(self, namespace: str, action: Delete) -> None:
        """Delete an object if it still has the uid; one that is gone or another is done. Raises as `apply`."""
        policy = "Foreground" if action.kind in _FOREGROUND else "Background"
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": action.uid},
            "propagationPolicy": policy,
        }
        path = KINDS[action.kind].path(namespace, action.name)
        try:
            await self.client.send(Request(method="DELETE", path=path, body=body))
        except ApiError as error:
            if error.status in (404, 409):
                return
            raise of_write(error, f"{action.kind}/{action.name}") from error
        self.client.hooks.on_write("delete", action.kind)

    async def ask(self, namespace: str, action: Ask) -> None:
        """Ask a pod; when it answered and its counters moved, annotate it. Raises as `apply`."""
        what = f"Pod/{action.pod}"
        pod = await self._read("Pod", namespace, action.pod)
        if pod is None or reading.text(pod, "metadata", "uid") != action.uid or reading.is_terminating(pod):
            return
        if reading.text(pod, "metadata", "annotations", labels.ANSWERED):
            return
        if reading.text(pod, "status", "podIP") != action.ip:
            raise TransientError(f"{what} has another address than {action.ip}", after=SOON)
        try:
            await ask(action.ip, action.served_name, expects_speculation=action.expects_speculation)
        except NoAnswerError as error:
            raise TransientError(f"{what}: {error}", after=LATER) from error
        annotations = {labels.ANSWERED: _now().replace(microsecond=0).isoformat().replace("+00:00", "Z")}
        metadata = {"name": action.pod, "namespace": namespace, "uid": action.uid, "annotations": annotations}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        await self._patch(KINDS["Pod"].path(namespace, action.pod), manifest, what, "Pod")

    async def run_status(self, namespace: str, action: WriteRunStatus) -> bool:
        """Write the operator's part of a run's status; return whether it was sent. Raises as `apply`."""
        run = await self._read(labels.RUN_KIND, namespace, action.run)
        if run is None or reading.text(run, "metadata", "uid") != action.uid:
            return False
        status = BenchmarkRunStatus(
            observed_generation=reading.count(run, "metadata", "generation"),
            conditions=list(action.conditions),
            attempts=action.attempts,
            placement=action.placement,
        ).to_wire()
        status.pop("cells", None)
        manifest = _status_manifest(labels.RUN_KIND, namespace, action.run, action.uid, status)
        if first_difference(manifest, run, subresource="status") is None:
            return False
        path = KINDS[labels.RUN_KIND].path(namespace, action.run, "status")
        await self._patch(path, manifest, f"{labels.RUN_KIND}/{action.run}", labels.RUN_KIND)
        return True

    async def model_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> bool:
        """Store a model's whole status; return whether it was sent: not when the model is gone. Raises as `apply`."""
        manifest = _status_manifest(labels.MODEL_KIND, namespace, name, uid, status)
        path = KINDS[labels.MODEL_KIND].path(namespace, name, "status")
        try:
            await self.client.send(_patch_request(path, manifest))
        except ApiError as error:
            if error.status == 404:
                return False
            raise of_write(error, f"{labels.MODEL_KIND}/{name}") from error
        self.client.hooks.on_write("patch", labels.MODEL_KIND)
        return True

    async def event(self, regarding: Mapping[str, Any], *, reason: str, message: str, is_warning: bool) -> None:
        """Post an Event. Raises `ApiError`."""
        namespace = regarding["namespace"]
        note = message if len(message) <= NOTE_MAXIMUM else f"{message[: NOTE_MAXIMUM - 1]}…"
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{regarding['name']}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "regarding": dict(regarding),
            "eventTime": _now().isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": "specmodel.dev/operator",
            "reportingInstance": "specmodel-operator",
            "action": "Reconcile",
            "reason": reason,
            "type": "Warning" if is_warning else "Normal",
            "note": note,
        }
        await self.client.send(Request(method="POST", path=KINDS["Event"].path(namespace), body=body))
        self.client.hooks.on_write("create", "Event")

    async def _read(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        try:
            return await self.client.get(kind, namespace, name)
        except ApiError as error:
            raise transient(error, f"{kind}/{name}") from error

    async def _patch(self, path: str, manifest: Mapping[str, Any], what: str, kind: str) -> dict[str, Any]:
        try:
            stored = await self.client.send(_patch_request(path, manifest))
        except ApiError as error:
            raise of_write(error, what) from error
        self.client.hooks.on_write("patch", kind)
        return stored


def _require_ours(manifest: Mapping[str, Any], live: Mapping[str, Any]) -> None:
    """Raise when the object that is there is not the owner's: taking it over would end what it is for."""
    owner = reading.controller(manifest)
    if not owner or not reading.is_anothers(live, reading.text(owner, "uid")):
        return
    what = f"{manifest['kind']}/{manifest['metadata']['name']}"
    found = reading.controller(live)
    if (found.get("kind"), found.get("name")) == (owner.get("kind"), owner.get("name")):
        raise TransientError(f"{what} is of a former {owner.get('kind')} of this name and goes with it", after=LATER)
    whose = f"belongs to {found.get('kind')} {found.get('name')}" if found else "was not made by this operator"
    raise RefusedError(
        "NameTaken", f"{what} is there and {whose}; it is left as it is. Delete it, or give the model another name."
    )


def _patch_request(path: str, manifest: Mapping[str, Any]) -> Request:
    return Request(method="PATCH", path=path, query=_APPLY_QUERY, body=manifest, content_type=APPLY)


def _status_manifest(kind: str, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "status": status,
    }


def _fingerprint(manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    metadata = reading.mapping(stored, "metadata")
    kept = {key: value for key, value in metadata.items() if key not in ("resourceVersion", "managedFields")}
    rest = {key: value for key, value in stored.items() if key not in ("status", "metadata", "apiVersion", "kind")}
    return digest_of([dict(manifest), kept, rest])


def _now() -> datetime:
    return datetime.now(UTC)
