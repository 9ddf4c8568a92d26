"""One snapshot of all that concerns a model: list everything with its label, and the GPUs that its pods could use.

Reads only. Lists run side by side; each page has its own deadline (client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from specmodel.api import labels
from specmodel.api.model import SpeculativeModel
from specmodel.cluster import reading
from specmodel.cluster.client import ApiError, Client
from specmodel.cluster.engine_logs import EngineLogs
from specmodel.cluster.kinds import KINDS
from specmodel.domain.observation import GpuSupply, Observation, PromptSource, Run
from specmodel.domain.settings import Settings
from specmodel.manifests.names import job_name

#: The kinds that the plan may have to write or delete (Observation.objects).
OBJECT_KINDS = ("Deployment", "Job", labels.RUN_KIND, "Service", "ServiceAccount", "Role", "RoleBinding")
#: Kinds that the model itself owns, and that are deleted when they have no part: whoever else labels his is not heard.
OWNED_KINDS = ("Deployment", "Service", labels.RUN_KIND)
#: Kinds of a hand-made run's objects.
RUN_OBJECT_KINDS = ("Job", "ServiceAccount", "Role", "RoleBinding")
#: Up to so many nodes, their pods are listed node by node (an index of the API server); above, all pods page by page.
NODES_ONE_BY_ONE = 16
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"


async def observe(
    client: Client, model: SpeculativeModel, settings: Settings, logs: EngineLogs | None = None
) -> Observation:
    """Return the snapshot, with why engines ended where their logs are given. Raises `ApiError`."""
    selector = f"{labels.MODEL}={model.name}"
    kinds = (*OBJECT_KINDS, "Pod", "EndpointSlice")
    lists = (list_kind(client, kind, model.namespace, selector) for kind in kinds)
    supply, prompts, *listed = await _together(_supply(client, model, settings), _prompts(client, model), *lists)
    found = dict(zip(kinds, listed, strict=True))
    for kind in OWNED_KINDS:
        found[kind] = [each for each in found[kind] if not reading.is_anothers(each, model.uid)]
    objects = reading.index(each for kind in OBJECT_KINDS for each in found[kind])
    whys = await logs.of(found["Pod"]) if logs is not None else {}
    servers, strays = reading.read_servers(found["Deployment"], found["Pod"], settings.gpu_resource, whys)
    runs = (
        reading.read_run(each, found["Job"], found["Pod"], settings.gpu_resource)
        for each in sorted(found[labels.RUN_KIND], key=reading.name_of)
    )
    return Observation(
        now=datetime.now(UTC),
        servers=servers,
        runs=tuple(run for run in runs if run is not None),
        preflights=reading.read_preflights(found["Job"], found["Pod"], model.uid, settings.gpu_resource),
        service=reading.read_service(objects.get(("Service", model.name)), found["EndpointSlice"], found["Pod"]),
        supply=supply,
        prompts=prompts,
        stray_pods=strays,
        objects=objects,
    )


async def list_kind(client: Client, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
    """Return the objects of one kind, each with its kind and version (which lists leave out). Raises `ApiError`."""
    identity = {"apiVersion": KINDS[kind].api_version, "kind": kind}
    return [{**identity, **item} for item in await client.list(kind, namespace, labels=selector)]


async def observe_run(client: Client, value: Mapping[str, Any], settings: Settings) -> Run | None:
    """Return a hand-made run with its Job and objects, or None when its spec does not parse. Raises `ApiError`."""
    namespace = reading.text(value, "metadata", "namespace")
    selector = f"{labels.RUN}={job_name(reading.name_of(value))}"
    kinds = (*RUN_OBJECT_KINDS, "Pod")
    *objects, pods = await _together(*(list_kind(client, kind, namespace, selector) for kind in kinds))
    flat = [each for listed in objects for each in listed]
    return reading.read_run(value, objects[0], pods, settings.gpu_resource, flat)


async def _supply(client: Client, model: SpeculativeModel, settings: Settings) -> GpuSupply:
    products = model.spec.hardware.gpu_products or settings.gpu_products
    resource = settings.gpu_resource
    try:
        nodes = await client.list("Node", None)
        hosts = [node for node in nodes if reading.can_host(node, model, products, resource)]
        requested = await _requested(client, [reading.name_of(node) for node in hosts], resource)
    except ApiError as error:
        if error.status == 403:
            return GpuSupply(is_known=False)
        raise
    return reading.read_supply(nodes, hosts, requested, resource)


async def _requested(client: Client, names: Sequence[str], resource: str) -> dict[str, int]:
    if not names:
        return {}
    if len(names) > NODES_ONE_BY_ONE:
        return await _requested_of(client, UNFINISHED, resource)
    fields = [f"spec.nodeName={name},{UNFINISHED}" for name in names]
    requested: dict[str, int] = {}
    for each in await _together(*(_requested_of(client, field, resource) for field in fields)):
        requested.update(each)
    return requested


async def _requested_of(client: Client, fields: str, resource: str) -> dict[str, int]:
    requested: dict[str, int] = {}
    async for page in client.pages("Pod", None, fields=fields):
        for node, gpus in reading.requests_by_node(page, resource).items():
            requested[node] = requested.get(node, 0) + gpus
    return requested


async def _prompts(client: Client, model: SpeculativeModel) -> PromptSource | None:
    prompts = model.spec.workload.dataset.prompts
    if prompts is None:
        return None
    reference = prompts.config_map_ref
    config_map = await client.get("ConfigMap", model.namespace, reference.name)
    return reading.read_prompts(config_map, name=reference.name, key=reference.key)


async def _together(*works: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run side by side; the first error ends the others and is raised itself."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
