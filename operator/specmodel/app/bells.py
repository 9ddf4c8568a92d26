"""kopf's watches, which only ring: which object changed is noted, never what changed.

`@kopf.on.event` writes nothing on any object: no finalizer, no annotation. Handlers of other kinds would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import kopf

from specmodel.api import labels
from specmodel.app.loops import Kind, Work
from specmodel.cluster import reading
from specmodel.cluster.client import Client
from specmodel.cluster.port import is_owned_by_model
from specmodel.reconcile.action import Key

#: What is watched beside models, runs and nodes: (group, version, plural, label selector of the API server's).
CHILDREN = (
    ("apps", "v1", "deployments", labels.MODEL),
    ("batch", "v1", "jobs", labels.RUN),
    ("", "v1", "pods", labels.MODEL),
    ("discovery.k8s.io", "v1", "endpointslices", labels.MODEL),
)


@dataclass(slots=True)
class Bells:
    """Which loops to ring for an event, and which objects have been seen."""

    ring: Callable[[Work], None]
    forget: Callable[[Key], None]
    #: Called for every event that came: a sign of life.
    on_event: Callable[[], None]
    gpu_resource: str
    _known: set[Work] = field(default_factory=set)
    #: By node: what of it matters for free GPUs.
    _nodes: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def model(self, value: reading.Wire, *, is_deleted: bool) -> None:
        """Note that a model came, changed or went."""
        work = Work(kind=Kind.MODEL, key=_key(value))
        if is_deleted:
            self._known.discard(work)
            self.forget(work.key)
        else:
            self._known.add(work)
        self.ring(work)

    def run(self, value: reading.Wire, *, is_deleted: bool) -> None:
        """Note a BenchmarkRun: its model's loop sees to it, or its own where no model owns it."""
        owner = self._owner(value) if is_owned_by_model(value) else None
        work = owner or Work(kind=Kind.RUN, key=_key(value))
        if work.kind is Kind.RUN and not is_deleted:
            self._known.add(work)
        if work.kind is Kind.RUN and is_deleted:
            self._known.discard(work)
        self.ring(work)

    def child(self, value: reading.Wire) -> None:
        """Note that something changed that a model or a hand-made run owns."""
        owner = self._owner(value)
        if owner is not None:
            self.ring(owner)
            return
        namespace = reading.text(value, "metadata", "namespace")
        for reference in reading.items(value, "metadata", "ownerReferences"):
            if reference.get("kind") == labels.RUN_KIND:
                key = Key(namespace=namespace, name=reading.text(reference, "name"))
                self.ring(Work(kind=Kind.RUN, key=key))

    def node(self, value: reading.Wire, *, is_deleted: bool) -> None:
        """Note a node: when its GPUs or who may use them changed, every model looks again."""
        name = reading.name_of(value)
        now = () if is_deleted else self._fingerprint(value)
        if self._nodes.get(name, ()) == now:
            return
        self._nodes[name] = now
        if is_deleted:
            del self._nodes[name]
        self.all_models()

    def all_models(self) -> None:
        """Ring for every model that is known."""
        for work in self._known:
            if work.kind is Kind.MODEL:
                self.ring(work)

    def all_of(self, works: Sequence[Work]) -> None:
        """Ring for everything that a full look found, and know nothing else."""
        self._known = set(works)
        for work in works:
            self.ring(work)

    def _owner(self, value: reading.Wire) -> Work | None:
        model = reading.label(value, labels.MODEL)
        if not model:
            return None
        return Work(kind=Kind.MODEL, key=Key(namespace=reading.text(value, "metadata", "namespace"), name=model))

    def _fingerprint(self, node: reading.Wire) -> tuple[object, ...]:
        product = reading.product_of(node)
        gpus = reading.whole(reading.member(node, "status", "allocatable", self.gpu_resource))
        if not product and not gpus:
            return ()
        return (
            product,
            gpus,
            reading.true_condition(node, "Ready") is not None,
            reading.member(node, "spec", "unschedulable") is True,
            str(reading.items(node, "spec", "taints")),
            str(sorted(reading.mapping(node, "metadata", "labels").items())),
        )


def _key(value: reading.Wire) -> Key:
    return Key(namespace=reading.text(value, "metadata", "namespace"), name=reading.name_of(value))


def registry_of(bells: Bells, client: Client, *, can_watch_nodes: bool) -> kopf.OperatorRegistry:
    """Return kopf's registry: credentials from our own client, and a bell on every kind that matters."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=client.server, aiohttp_session=client.session())

    @kopf.on.event(labels.GROUP, labels.VERSION, labels.MODEL_PLURAL, registry=registry)
    async def on_model(event: kopf.RawEvent, **_: Any) -> None:
        bells.on_event()
        bells.model(event["object"], is_deleted=event["type"] == "DELETED")

    @kopf.on.event(labels.GROUP, labels.VERSION, labels.RUN_PLURAL, registry=registry)
    async def on_run(event: kopf.RawEvent, **_: Any) -> None:
        bells.on_event()
        bells.run(event["object"], is_deleted=event["type"] == "DELETED")

    async def on_child(event: kopf.RawEvent, **_: Any) -> None:
        bells.on_event()
        bells.child(event["object"])

    for group, version, plural, _selector in CHILDREN:
        kopf.on.event(group, version, plural, id=f"on_{plural}", registry=registry)(on_child)

    if can_watch_nodes:

        @kopf.on.event("", "v1", "nodes", registry=registry)
        async def on_node(event: kopf.RawEvent, **_: Any) -> None:
            bells.on_event()
            bells.node(event["object"], is_deleted=event["type"] == "DELETED")

    return registry


def watch_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: it posts nothing, peers with nobody, scans nothing, and notices dead streams."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = 10
    for group, version, plural, selector in CHILDREN:
        settings.watching.label_selectors[group, version, plural] = selector
    return settings
