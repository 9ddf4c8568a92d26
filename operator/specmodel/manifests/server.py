"""A candidate's server: the Deployment, the pod that runs the engine, and the Service through which it is measured.

The pod is rendered from the candidate alone, so that what was measured is what serves. A rendered pod template is
written once and then left alone (annotation RENDERED): a new release of the operator restarts no GPU pod.
"""

from __future__ import annotations

from typing import Any

from specmodel.api.labels import CANDIDATE, CANDIDATE_JSON, MODEL, MOVED_AT, RENDERED, REVISION, ROLE, ROLE_SERVE
from specmodel.domain.candidate import Candidate, digest_of
from specmodel.domain.settings import Settings
from specmodel.manifests.engine_arguments import (
    HUB,
    PORT,
    Paths,
    claim_of,
    drain_seconds,
    engine_arguments,
    engine_environment,
)
from specmodel.manifests.names import Owner, common_labels, server_name
from specmodel.manifests.quantities import mebibytes

CACHE = "/cache"
SHM_MEBIBYTES = {1: 2048}
SHM_MEBIBYTES_MANY = 8192
#: How often the engine is asked whether it has started, in seconds.
STARTUP_PERIOD = 2
#: What the engine may take beyond its own ready timeout before the kubelet restarts it, in seconds.
STARTUP_SLACK = 30
ENGINE_CONTAINER = "engine"
#: vLLM's own non-root image and any other run as this user.
ENGINE_USER = 2000


def server_labels(model: str, candidate: Candidate, role: str) -> dict[str, str]:
    """Return the labels of a server's Deployment and pods."""
    own = {MODEL: model, REVISION: candidate.revision, CANDIDATE: candidate.digest, ROLE: role}
    return common_labels(model, "engine") | own


def selector(model: str, revision: str, role: str) -> dict[str, str]:
    """Return what Deployments and Services select pods by: the project's own labels only."""
    return {MODEL: model, REVISION: revision, ROLE: role}


def server_deployment(
    owner: Owner, candidate: Candidate, *, role: str, replicas: int, settings: Settings
) -> dict[str, Any]:
    """Return the Deployment of one candidate in one role.

    It never surges (`maxSurge: 0`): GPUs in use never exceed what was planned.
    """
    template = pod_template(owner.name, candidate, role=role, settings=settings)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": server_name(owner.name, candidate, role),
            "labels": server_labels(owner.name, candidate, role),
            "annotations": {CANDIDATE_JSON: candidate.to_json(), RENDERED: digest_of(template)},
            "ownerReferences": [owner.reference()],
        },
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": startup_budget_seconds(candidate) + 600,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": selector(owner.name, candidate.revision, role)},
            "template": template,
        },
    }


def rescaled(deployment: dict[str, Any], owner: Owner, *, replicas: int) -> dict[str, Any]:
    """Return a live Deployment with other replicas and nothing else changed, as a server-side apply of our fields.

    For a template that another release rendered: applying less would take the fields away that it applied.
    """
    metadata = deployment["metadata"]
    annotations = metadata.get("annotations", {})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": metadata["name"],
            "labels": dict(metadata.get("labels", {})),
            "annotations": {key: annotations[key] for key in (CANDIDATE_JSON, RENDERED) if key in annotations},
            "ownerReferences": [owner.reference()],
        },
        "spec": {**deployment["spec"], "replicas": replicas},
    }


def server_service(owner: Owner, candidate: Candidate, *, role: str) -> dict[str, Any]:
    """Return the Service through which one server is measured, named like its Deployment."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": server_name(owner.name, candidate, role),
            "labels": server_labels(owner.name, candidate, role),
            "ownerReferences": [owner.reference()],
        },
        "spec": {
            "type": "ClusterIP",
            "selector": selector(owner.name, candidate.revision, role),
            "ports": [_port()],
        },
    }


def stable_service(owner: Owner, revision: str, *, moved_at: str) -> dict[str, Any]:
    """Return the model's Service: clients use `http://<model>.<namespace>:8000/v1`.

    The port is the engine's own, 8000: what works against a pod works against the Service.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": owner.name,
            "labels": common_labels(owner.name, "endpoint") | {MODEL: owner.name},
            "annotations": {MOVED_AT: moved_at},
            "ownerReferences": [owner.reference()],
        },
        "spec": {
            "type": "ClusterIP",
            "selector": selector(owner.name, revision, ROLE_SERVE),
            "ports": [_port()],
        },
    }


def _port() -> dict[str, Any]:
    return {"name": "http", "port": PORT, "protocol": "TCP", "targetPort": PORT}


def startup_budget_seconds(candidate: Candidate) -> int:
    """Return how long the kubelet lets the engine start: its own ready timeout, and a little for its last words."""
    return candidate.placement.startup_timeout_seconds + STARTUP_SLACK


def pod_template(model: str, candidate: Candidate, *, role: str, settings: Settings) -> dict[str, Any]:
    """Return the pod template of one candidate in one role."""
    placement = candidate.placement
    grace = drain_seconds(candidate)[2]
    volumes, mounts, paths = _volumes(candidate)
    spec: dict[str, Any] = {
        "affinity": {"nodeAffinity": _node_affinity(candidate)},
        "tolerations": [
            {"key": settings.gpu_resource, "operator": "Exists", "effect": "NoSchedule"},
            *(dict(toleration) for toleration in placement.tolerations),
        ],
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": ENGINE_USER,
            "runAsGroup": ENGINE_USER,
            "fsGroup": ENGINE_USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_engine_container(candidate, paths, mounts, settings)],
        "volumes": volumes,
    }
    if placement.node_selector:
        spec["nodeSelector"] = dict(placement.node_selector)
    if placement.runtime_class_name:
        spec["runtimeClassName"] = placement.runtime_class_name
    if placement.priority_class_name:
        spec["priorityClassName"] = placement.priority_class_name
    return {"metadata": {"labels": server_labels(model, candidate, role)}, "spec": spec}


def _node_affinity(candidate: Candidate) -> dict[str, Any]:
    """Exact products only: `-SHARED` and `-MIG-` names and GPUs split by time slicing are other things."""
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "nvidia.com/gpu.product", "operator": "In", "values": sorted(candidate.gpu_products)},
                        {
                            "key": "nvidia.com/gpu.sharing-strategy",
                            "operator": "NotIn",
                            "values": ["time-slicing", "mps"],
                        },
                    ]
                }
            ]
        }
    }


_HEALTH = {"path": "/health", "port": PORT, "scheme": "HTTP"}


def _engine_container(
    candidate: Candidate, paths: Paths, mounts: list[dict[str, Any]], settings: Settings
) -> dict[str, Any]:
    sleep = drain_seconds(candidate)[0]
    environment: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, value in sorted(engine_environment(candidate, cache=CACHE).items())
    ]
    if candidate.placement.token_secret is not None:
        name, key = candidate.placement.token_secret
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}})
    return {
        "name": ENGINE_CONTAINER,
        "image": candidate.engine_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": engine_arguments(candidate, paths),
        "env": environment,
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": engine_resources(candidate, settings),
        "startupProbe": {
            "httpGet": dict(_HEALTH),
            "periodSeconds": STARTUP_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": -(-startup_budget_seconds(candidate) // STARTUP_PERIOD),
        },
        "readinessProbe": {"httpGet": dict(_HEALTH), "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {"httpGet": dict(_HEALTH), "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": sleep}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def shared_memory_mebibytes(candidate: Candidate) -> int:
    """Return the size of /dev/shm: NCCL needs more with several GPUs; within the user's own memory limit, a quarter."""
    wanted = SHM_MEBIBYTES.get(candidate.gpus_per_replica, SHM_MEBIBYTES_MANY)
    if candidate.memory is None:
        return wanted
    return min(wanted, max(64, mebibytes(candidate.memory) // 4))


def engine_resources(candidate: Candidate, settings: Settings) -> dict[str, dict[str, str]]:
    """Return requests and limits: N GPUs, CPU 4 + 2 N, memory 24 GiB + 8 GiB N + /dev/shm, unless the user set them.

    /dev/shm is charged to the pod, so it is counted in the limit. CPU is requested, not limited: the engine's Python
    loop starves under a quota.
    """
    gpus = candidate.gpus_per_replica
    default = (24 + 8 * gpus) * 1024 + shared_memory_mebibytes(candidate)
    memory = candidate.memory or f"{default}Mi"
    return {
        "requests": {"cpu": candidate.cpu or str(4 + 2 * gpus), "memory": memory, settings.gpu_resource: str(gpus)},
        "limits": {"memory": memory, settings.gpu_resource: str(gpus)},
    }


def _volumes(candidate: Candidate) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Paths]:
    """Return volumes, mounts and the paths of the weights. The root is read-only: these are all that can be written."""
    volumes: list[dict[str, Any]] = [
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_memory_mebibytes(candidate)}Mi"}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": CACHE},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 — a mount point
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 — a mount point
    ]
    uris = [candidate.model_uri]
    if candidate.speculative_tokens and candidate.drafter_uri:
        uris.append(candidate.drafter_uri)
    claims = sorted({found[0] for uri in uris if (found := claim_of(uri)) is not None})
    for number, claim in enumerate(claims):
        source = {"claimName": claim, "readOnly": True}
        volumes.append({"name": f"weights-{number}", "persistentVolumeClaim": source})
        mounts.append({"name": f"weights-{number}", "mountPath": f"/weights/{claim}", "readOnly": True})
    places = [_path(uri) for uri in uris]
    return volumes, mounts, Paths(model=places[0], drafter=places[1] if len(places) > 1 else None)


def _path(uri: str) -> str:
    claim = claim_of(uri)
    if claim is None:
        return uri.removeprefix(HUB)
    return f"/weights/{claim[0]}/{claim[1]}".rstrip("/")
