"""Wire objects to the values of the domain. Pure.

Objects are hostile input: anyone with the right can edit a status, an annotation or a label, and an older CRD may have
let odd specs in. What cannot be understood becomes an absent value; nothing here raises for the content of an object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specmodel.api import labels
from specmodel.api.benchmark import BenchmarkRunSpec, BenchmarkRunStatus, Cell
from specmodel.api.conditions import RunConditionType
from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec, SpeculativeModelStatus
from specmodel.domain.candidate import Candidate, candidate_from_json, digest_of
from specmodel.domain.last_words import explain
from specmodel.domain.observation import (
    BenchmarkJob,
    GpuSupply,
    NodeGpus,
    Pod,
    PreflightJob,
    PromptSource,
    Run,
    Server,
    StableService,
)
from specmodel.manifests.names import job_name
from specmodel.manifests.quantities import parse_quantity
from specmodel.reconcile.action import Key, UnreadableModel

Wire = Mapping[str, Any]
EPOCH = datetime.fromtimestamp(0, tz=UTC)
#: Label that GPU feature discovery puts on nodes.
GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_SHARING = "nvidia.com/gpu.sharing-strategy"
GPU_REPLICAS = "nvidia.com/gpu.replicas"
SERVICE_NAME = "kubernetes.io/service-name"
LAST_WORDS_MAXIMUM = 2048
#: More GPUs than any node has: a node that says more is not believed.
GPUS_MAXIMUM = 1024
_ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing", ""})

_M = TypeVar("_M", bound=BaseModel)


# What an object may lack -------------------------------------------------------------------------------------------


def member(value: Any, *path: str) -> Any:
    """Return what lies at a path of keys, or None."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def mapping(value: Any, *path: str) -> Wire:
    """Return the mapping at a path, or an empty one."""
    found = member(value, *path)
    return found if isinstance(found, Mapping) else {}


def items(value: Any, *path: str) -> list[Wire]:
    """Return the mappings of the list at a path."""
    found = member(value, *path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def text(value: Any, *path: str) -> str:
    """Return the string at a path, or an empty one."""
    found = member(value, *path)
    return found if isinstance(found, str) else ""


def count(value: Any, *path: str) -> int:
    """Return the whole number at a path, 0 for anything else or below 0."""
    found = member(value, *path)
    return max(0, found) if isinstance(found, int) and not isinstance(found, bool) else 0


def time(value: Any, *path: str) -> datetime | None:
    """Return the RFC 3339 time at a path with its zone, or None."""
    try:
        parsed = datetime.fromisoformat(text(value, *path))
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None


def whole(value: Any) -> int:
    """Return a quantity as a whole number rounded up (GPUs are whole), 0 for what is none or not above 0."""
    if isinstance(value, bool) or not isinstance(value, int | str) or len(str(value)) > 32:
        return 0
    try:
        number = parse_quantity(value)
    except ValueError:
        return 0
    return min(math.ceil(number), GPUS_MAXIMUM) if number.is_finite() and number > 0 else 0


def label(value: Wire, name: str) -> str:
    """Return a label's value, or an empty string."""
    return text(value, "metadata", "labels", name)


def name_of(value: Wire) -> str:
    """Return metadata.name."""
    return text(value, "metadata", "name")


def controller(value: Wire) -> Wire:
    """Return the reference to the object's controller, or an empty one."""
    return next((o for o in items(value, "metadata", "ownerReferences") if o.get("controller") is True), {})


def is_anothers(value: Wire, owner: str) -> bool:
    """Return whether an object is somebody else's: of another controller than this uid, or made by hand.

    An orphan that the operator made is its owner's again.
    """
    found = controller(value)
    return text(found, "uid") != owner if found else label(value, labels.MANAGED_BY) != labels.FIELD_MANAGER


def is_terminating(value: Wire) -> bool:
    """Return whether the object has a deletionTimestamp."""
    return member(value, "metadata", "deletionTimestamp") is not None


def true_condition(value: Wire, kind: str) -> Wire | None:
    """Return the status condition of a type when it is true."""
    found = (c for c in items(value, "status", "conditions") if c.get("type") == kind and c.get("status") == "True")
    return next(found, None)


# Models ------------------------------------------------------------------------------------------------------------


def read_model(value: Wire) -> SpeculativeModel | UnreadableModel:
    """Return the model, or what is wrong with it, for people: the first few faults with their paths."""
    key = Key(namespace=text(value, "metadata", "namespace"), name=name_of(value))
    uid, generation = text(value, "metadata", "uid"), count(value, "metadata", "generation")
    try:
        spec = SpeculativeModelSpec.model_validate(mapping(value, "spec"))
    except ValidationError as error:
        return UnreadableModel(key=key, generation=generation, uid=uid, message=_faults(error))
    return SpeculativeModel(
        name=key.name,
        namespace=key.namespace,
        uid=uid,
        generation=generation,
        is_being_deleted=is_terminating(value),
        spec=spec,
        status=_read_members(SpeculativeModelStatus, mapping(value, "status")),
    )


def _faults(error: ValidationError) -> str:
    faults = [f"spec.{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()]
    more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
    return "; ".join(faults[:3]) + more


def _read_members(kind: type[_M], value: Wire) -> _M:
    """Return a value of a type with a default for each member that does not parse."""
    try:
        return kind.model_validate(dict(value))
    except ValidationError:
        pass
    kept: dict[str, Any] = {}
    for name, inner in value.items():
        try:
            kind.model_validate({name: inner})
        except ValidationError:
            continue
        kept[name] = inner
    return kind.model_validate(kept)


# Pods --------------------------------------------------------------------------------------------------------------


def gpus_of(pod: Wire, resource: str) -> int:
    """Return how many GPUs the scheduler counts for a pod: init containers run one by one, before the others."""
    total = sum(_requested(container, resource) for container in items(pod, "spec", "containers"))
    sidecars, peak = 0, 0
    for container in items(pod, "spec", "initContainers"):
        wanted = _requested(container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += wanted
            peak = max(peak, sidecars)
            continue
        peak = max(peak, sidecars + wanted)
    return max(total + sidecars, peak)


def _requested(container: Wire, resource: str) -> int:
    requests = mapping(container, "resources", "requests")
    return whole(requests.get(resource, mapping(container, "resources", "limits").get(resource)))


def ended_state(status: Wire) -> Wire:
    """Return how a container ended last, by its status; empty while it never has."""
    return mapping(status, "state", "terminated") or mapping(status, "lastState", "terminated")


def read_pod(value: Wire, resource: str, why: str = "") -> Pod:
    """Return the pod. Container states are those of its main container: the one with GPUs, else the first.

    `why` is in words why that container ended, where its log was read.
    """
    statuses = {text(s, "name"): s for s in items(value, "status", "containerStatuses")}
    containers = items(value, "spec", "containers")
    main = next((c for c in containers if _requested(c, resource)), containers[0] if containers else {})
    status = statuses.get(text(main, "name"), {})
    ended = ended_state(status)
    code = ended.get("exitCode")
    scheduled = next((c for c in items(value, "status", "conditions") if c.get("type") == "PodScheduled"), {})
    is_unschedulable = scheduled.get("status") == "False" and text(scheduled, "reason") == "Unschedulable"
    return Pod(
        name=name_of(value),
        uid=text(value, "metadata", "uid"),
        node=text(value, "spec", "nodeName") or None,
        ip=text(value, "status", "podIP") or None,
        phase=text(value, "status", "phase") or "Pending",
        is_ready=true_condition(value, "Ready") is not None,
        is_terminating=is_terminating(value),
        gpus=0 if text(value, "status", "phase") in ("Succeeded", "Failed") else gpus_of(value, resource),
        created_at=time(value, "metadata", "creationTimestamp"),
        started_at=time(value, "status", "startTime"),
        restarts=count(status, "restartCount"),
        has_answered=bool(text(value, "metadata", "annotations", labels.ANSWERED)),
        unschedulable=(text(scheduled, "message") or "unschedulable") if is_unschedulable else None,
        waiting=_waiting(value, status),
        last_words=_last_words(value, ended, why),
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        image_id=text(status, "imageID"),
    )


def _waiting(pod: Wire, status: Wire) -> str | None:
    for each in (status, *items(pod, "status", "initContainerStatuses")):
        reason = text(each, "state", "waiting", "reason")
        if reason not in _ORDINARY_WAITS:
            return reason
    return None


def _last_words(pod: Wire, ended: Wire, why: str) -> str | None:
    """Return why the container ended: of an engine by its log or explained, of another as the kubelet kept it."""
    message, reason = text(ended, "message").strip(), text(ended, "reason")
    if not ended:
        reason, message = text(pod, "status", "reason"), text(pod, "status", "message").strip()
    elif label(pod, labels.ROLE):
        message = why or explain(message)
    if reason in ("", "Error", "Completed", "ContainerCannotRun"):
        return message[-LAST_WORDS_MAXIMUM:] or None
    return f"{reason}: {message[-LAST_WORDS_MAXIMUM:]}" if message else reason


# Servers -----------------------------------------------------------------------------------------------------------


def read_servers(
    deployments: Iterable[Wire], pods: Iterable[Wire], resource: str, whys: Mapping[str, str] | None = None
) -> tuple[tuple[Server, ...], tuple[Pod, ...]]:
    """Return the servers with their pods, and the server pods whose Deployment is gone; each sorted by name.

    `whys` says in words why engines ended, by their pods' uid, where their logs were read.
    """
    known = whys or {}
    rest = [pod for pod in pods if label(pod, labels.ROLE)]
    servers = []
    for deployment in sorted(deployments, key=name_of):
        if not label(deployment, labels.ROLE):
            continue
        selector = mapping(deployment, "spec", "selector", "matchLabels")
        mine = [pod for pod in rest if selector and _selects(selector, pod)]
        rest = [pod for pod in rest if not any(pod is other for other in mine)]
        servers.append(_server(deployment, [_server_pod(pod, resource, known) for pod in mine]))
    strays = sorted((_server_pod(pod, resource, known) for pod in rest), key=lambda pod: pod.name)
    return tuple(servers), tuple(strays)


def _server_pod(pod: Wire, resource: str, whys: Mapping[str, str]) -> Pod:
    return read_pod(pod, resource, whys.get(text(pod, "metadata", "uid"), ""))


def _selects(selector: Wire, pod: Wire) -> bool:
    return all(label(pod, key) == value for key, value in selector.items())


def _server(deployment: Wire, pods: Sequence[Pod]) -> Server:
    generation = count(deployment, "metadata", "generation")
    is_current = count(deployment, "status", "observedGeneration") >= generation
    replicas = member(deployment, "spec", "replicas")
    return Server(
        name=name_of(deployment),
        uid=text(deployment, "metadata", "uid"),
        revision=label(deployment, labels.REVISION),
        candidate=_candidate(deployment),
        role=label(deployment, labels.ROLE),
        replicas=replicas if isinstance(replicas, int) and not isinstance(replicas, bool) else 1,
        created_at=time(deployment, "metadata", "creationTimestamp") or EPOCH,
        rendered=text(deployment, "metadata", "annotations", labels.RENDERED),
        is_being_deleted=is_terminating(deployment),
        ready_replicas=count(deployment, "status", "readyReplicas"),
        updated_replicas=count(deployment, "status", "updatedReplicas") if is_current else 0,
        replica_failure=_replica_failure(deployment),
        pods=tuple(sorted(pods, key=lambda pod: pod.name)),
        deployment=deployment,
    )


def _replica_failure(deployment: Wire) -> str | None:
    failed = true_condition(deployment, "ReplicaFailure")
    if failed is None:
        return None
    words = ": ".join(part for part in (text(failed, "reason"), text(failed, "message").strip()) if part)
    return words[:LAST_WORDS_MAXIMUM] or "ReplicaFailure"


def _candidate(deployment: Wire) -> Candidate | None:
    try:
        return candidate_from_json(text(deployment, "metadata", "annotations", labels.CANDIDATE_JSON))
    except ValueError:
        return None


# Runs --------------------------------------------------------------------------------------------------------------


def read_run(
    value: Wire, jobs: Iterable[Wire], pods: Iterable[Wire], resource: str, objects: Sequence[Wire] = ()
) -> Run | None:
    """Return the run with its Job, or None when its spec does not parse. Cells that do not parse are left out."""
    try:
        spec = BenchmarkRunSpec.model_validate(mapping(value, "spec"))
    except ValidationError:
        return None
    name = name_of(value)
    status = dict(mapping(value, "status"))
    cells = status.get("cells")
    if isinstance(cells, list):
        status["cells"] = [cell for cell in cells if _is_valid(Cell, cell)][: len(spec.cells)]
    failed = true_condition(value, RunConditionType.FAILED.value)
    job = next(iter(sorted((j for j in jobs if label(j, labels.RUN) == job_name(name)), key=_newest_first)), None)
    return Run(
        name=name,
        uid=text(value, "metadata", "uid"),
        candidate=label(value, labels.CANDIDATE),
        workload=label(value, labels.WORKLOAD),
        created_at=time(value, "metadata", "creationTimestamp") or EPOCH,
        spec=spec,
        status=_read_members(BenchmarkRunStatus, status),
        is_complete=true_condition(value, RunConditionType.COMPLETE.value) is not None,
        failure=(text(failed, "reason") or "JobFailed", text(failed, "message")) if failed else None,
        job=_job(job, [pod for pod in pods if label(pod, labels.RUN) == job_name(name)], resource) if job else None,
        objects=index(objects),
    )


def _newest_first(job: Wire) -> tuple[bool, float, str]:
    created = time(job, "metadata", "creationTimestamp") or EPOCH
    return is_terminating(job), -created.timestamp(), name_of(job)


def _is_valid(kind: type[BaseModel], value: Any) -> bool:
    try:
        kind.model_validate(value)
    except ValidationError:
        return False
    return True


def _job(job: Wire, pods: Sequence[Wire], resource: str) -> BenchmarkJob:
    failed = true_condition(job, "Failed")
    annotations = mapping(job, "metadata", "annotations")
    return BenchmarkJob(
        name=name_of(job),
        uid=text(job, "metadata", "uid"),
        created_at=time(job, "metadata", "creationTimestamp") or EPOCH,
        is_being_deleted=is_terminating(job),
        is_complete=true_condition(job, "Complete") is not None,
        failure=(text(failed, "reason") or "JobFailed", text(failed, "message")) if failed else None,
        annotations={key: value for key, value in annotations.items() if isinstance(value, str)},
        pods=tuple(sorted((read_pod(pod, resource) for pod in pods), key=lambda pod: pod.name)),
    )


# Preflights --------------------------------------------------------------------------------------------------------


def read_preflights(jobs: Iterable[Wire], pods: Iterable[Wire], owner: str, resource: str) -> tuple[PreflightJob, ...]:
    """Return the preflight Jobs that belong to the model of that uid, sorted by name: a label alone can be anyone's."""
    found = [job for job in jobs if label(job, labels.PREFLIGHT) and text(controller(job), "uid") == owner]
    listed = list(pods)
    return tuple(_preflight(job, listed, resource) for job in sorted(found, key=name_of))


def _preflight(job: Wire, pods: Sequence[Wire], resource: str) -> PreflightJob:
    uid = text(job, "metadata", "uid")
    mine = sorted((pod for pod in pods if text(controller(pod), "uid") == uid), key=name_of)
    failed = true_condition(job, "Failed")
    return PreflightJob(
        name=name_of(job),
        uid=uid,
        digest=label(job, labels.PREFLIGHT),
        created_at=time(job, "metadata", "creationTimestamp") or EPOCH,
        is_being_deleted=is_terminating(job),
        failure=(text(failed, "reason") or "JobFailed", text(failed, "message")) if failed else None,
        is_complete=true_condition(job, "Complete") is not None,
        answer=next((answer for pod in mine if (answer := _answer(pod)) is not None), None),
        pods=tuple(read_pod(pod, resource) for pod in mine),
    )


def _answer(pod: Wire) -> str | None:
    """Return the termination message of a container that ended well."""
    for status in items(pod, "status", "containerStatuses"):
        ended = mapping(status, "state", "terminated")
        if ended and ended.get("exitCode") == 0:
            return text(ended, "message")
    return None


def index(objects: Iterable[Wire]) -> dict[tuple[str, str], Wire]:
    """Return objects by (kind, name)."""
    return {(text(each, "kind"), name_of(each)): each for each in objects}


# The stable Service ------------------------------------------------------------------------------------------------


def read_service(service: Wire | None, slices: Iterable[Wire], pods: Iterable[Wire]) -> StableService | None:
    """Return the stable Service with the pods in its slices, or None when there is no Service."""
    if service is None:
        return None
    selector = mapping(service, "spec", "selector")
    held: dict[str, bool] = {}
    for each in slices:
        if label(each, SERVICE_NAME) != name_of(service):
            continue
        for endpoint in items(each, "endpoints"):
            pod = text(endpoint, "targetRef", "name") if text(endpoint, "targetRef", "kind") == "Pod" else ""
            ready = member(endpoint, "conditions", "ready") is not False
            name = pod or f"unknown-{len(held)}"
            held[name] = held.get(name, False) or ready
    selected = [pod for pod in pods if selector and _selects(selector, pod)]
    names = {name_of(pod) for pod in selected}
    ready_pods = {name_of(p) for p in selected if true_condition(p, "Ready") is not None and not is_terminating(p)}
    return StableService(
        revision=text(selector, labels.REVISION) or None,
        endpoints=tuple(sorted(held)),
        moved_at=time(service, "metadata", "annotations", labels.MOVED_AT),
        is_settled=set(held) <= names and all(held.get(name, False) for name in ready_pods),
    )


# GPUs --------------------------------------------------------------------------------------------------------------


def product_of(node: Wire) -> str:
    """Return the GPU product that GPU feature discovery found on a node, or an empty string."""
    return label(node, GPU_PRODUCT)


def can_host(node: Wire, model: SpeculativeModel, products: Iterable[str], resource: str) -> bool:
    """Return whether the model's pods could run on a node by product, readiness, selector and taints."""
    if product_of(node) not in set(products) or not _is_usable(node):
        return False
    hardware = model.spec.hardware
    if any(label(node, key) != value for key, value in hardware.node_selector.items()):
        return False
    tolerations = [toleration.to_wire() for toleration in hardware.tolerations]
    tolerations.append({"key": resource, "operator": "Exists", "effect": "NoSchedule"})  # as in every rendered pod
    taints = items(node, "spec", "taints")
    return all(
        any(_tolerates(t, taint) for t in tolerations) for taint in taints if taint.get("effect") != "PreferNoSchedule"
    )


def _is_usable(node: Wire) -> bool:
    """Return whether a node runs new pods on whole GPUs, as far as its labels and taints let them in."""
    if is_terminating(node) or true_condition(node, "Ready") is None or member(node, "spec", "unschedulable") is True:
        return False
    return not _is_shared(node)


def _is_shared(node: Wire) -> bool:
    """Return whether GPUs are cut (MIG) or lent to several pods at once (time slicing, MPS)."""
    product = product_of(node)
    if product.endswith("-SHARED") or "-MIG-" in product:
        return True
    if label(node, GPU_SHARING) not in ("", "none"):
        return True
    replicas = label(node, GPU_REPLICAS)
    return replicas.isdigit() and int(replicas) > 1


def _tolerates(toleration: Wire, taint: Wire) -> bool:
    effect = toleration.get("effect")
    if effect and effect != taint.get("effect"):
        return False
    key = toleration.get("key")
    if key and key != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(key) and toleration.get("value", "") == (taint.get("value") or "")


def requests_by_node(pods: Iterable[Wire], resource: str) -> dict[str, int]:
    """Return how many GPUs the pods that are not finished have requested on each node, whoever owns them."""
    requested: dict[str, int] = {}
    for pod in pods:
        node = text(pod, "spec", "nodeName")
        if node and text(pod, "status", "phase") not in ("Succeeded", "Failed"):
            requested[node] = requested.get(node, 0) + gpus_of(pod, resource)
    return requested


def read_supply(nodes: Iterable[Wire], hosts: Iterable[Wire], requested: Mapping[str, int], resource: str) -> GpuSupply:
    """Return the supply: `hosts` are the nodes that can host the model, `nodes` all (for the products seen)."""
    everyone = list(nodes)
    return GpuSupply(
        nodes=tuple(
            NodeGpus(
                name=name_of(node),
                product=product_of(node),
                allocatable=whole(member(node, "status", "allocatable", resource)),
                requested=requested.get(name_of(node), 0),
            )
            for node in sorted(hosts, key=name_of)
        ),
        products_seen=tuple(sorted({product_of(node) for node in everyone} - {""})),
        products_ready=tuple(sorted(product_of(node) for node in everyone if product_of(node) and _is_usable(node))),
    )


# Prompts -----------------------------------------------------------------------------------------------------------


def read_prompts(config_map: Wire | None, *, name: str, key: str) -> PromptSource:
    """Return a digest of the prompts (canonical, blank lines aside), or why they cannot be used."""
    if config_map is None:
        return PromptSource(problem=("DatasetNotFound", f"ConfigMap {name} does not exist in the model's namespace"))
    content = member(config_map, "data", key)
    if not isinstance(content, str):
        present = ", ".join(sorted(mapping(config_map, "data"))[:5]) or "none"
        return PromptSource(
            problem=("DatasetNotFound", f"ConfigMap {name} has no text under key {key}; its keys: {present}")
        )
    prompts: list[object] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        prompt = _prompt(line)
        if prompt is None:
            wanted = 'want {"prompt": "..."} or {"messages": [{"role": "...", "content": "..."}]}'
            return PromptSource(problem=("DatasetInvalid", f"ConfigMap {name}, key {key}, line {number}: {wanted}"))
        prompts.append(prompt)
    if not prompts:
        return PromptSource(problem=("DatasetInvalid", f"ConfigMap {name}, key {key} holds no line"))
    return PromptSource(digest=digest_of(prompts))


def _prompt(line: str) -> object | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("prompt"), str) and value["prompt"]:
        return {"prompt": value["prompt"]}
    messages = value.get("messages")
    if (
        isinstance(messages, list)
        and messages
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages)
    ):
        return {"messages": messages}
    return None
