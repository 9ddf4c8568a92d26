"""A measurement: the BenchmarkRun, and the Job with an account that may read that one run and patch its status.

The Job is told the run's name and namespace and nothing else; it reads what to measure from the run. Its
ServiceAccount, Role and RoleBinding are owned by the run and deleted with the Job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specmodel.api.benchmark import (
    BenchmarkRunSpec,
    CellRequest,
    MeasuredCandidate,
    StopRule,
    Target,
)
from specmodel.api.labels import API_VERSION, CANDIDATE, ENGINE_PROCESS, GROUP, MODEL, RUN_KIND, RUN_PLURAL, WORKLOAD
from specmodel.api.model import SpeculativeModel
from specmodel.domain.candidate import Candidate
from specmodel.domain.settings import Settings
from specmodel.manifests.engine_arguments import PORT
from specmodel.manifests.names import Owner, common_labels, job_name, run_labels, run_name

#: Where the prompts' ConfigMap is mounted in the Job's pod; the file is named like the key.
PROMPTS = "/prompts"
BENCHMARK_USER = 65532
#: Restarts of the Job's pod before the Job fails; finished cells are kept in the run, so a restart resumes.
BACKOFF_LIMIT = 2
#: What the Job gets beyond the run's own deadline, to write down that it passed, in seconds.
DEADLINE_SLACK = 60


def run_spec(
    model: SpeculativeModel,
    candidate: Candidate,
    *,
    server: str,
    cells: Sequence[CellRequest],
    dataset_digest: str | None,
) -> BenchmarkRunSpec:
    """Return what to measure of a candidate on the server of that name."""
    spec = model.spec
    return BenchmarkRunSpec(
        target=Target(url=f"http://{server}.{model.namespace}:{PORT}", model=candidate.placement.served_name),
        candidate=MeasuredCandidate(
            digest=candidate.digest,
            gpus_per_replica=candidate.gpus_per_replica,
            speculative_tokens=candidate.speculative_tokens,
            weights=candidate.weights,
        ),
        dataset=spec.workload.dataset,
        dataset_digest=dataset_digest,
        cells=list(cells),
        stop=StopRule(
            limits=spec.sla.limits,
            confidence_percent=spec.sla.confidence_percent,
            max_error_rate_percent=spec.sla.max_error_rate_percent,
        ),
    )


def target_server(spec: BenchmarkRunSpec) -> str:
    """Return the name of the Service (and Deployment) that a model's run loads."""
    return spec.target.url.partition("://")[2].partition(".")[0]


def benchmark_run(owner: Owner, spec: BenchmarkRunSpec, *, candidate: str, workload: str) -> dict[str, Any]:
    """Return the BenchmarkRun of a model's candidate."""
    return {
        "apiVersion": API_VERSION,
        "kind": RUN_KIND,
        "metadata": {
            "name": run_name(owner.name, target_server(spec), candidate, workload, spec.cells),
            "labels": common_labels(owner.name, "benchmark")
            | {MODEL: owner.name, CANDIDATE: candidate, WORKLOAD: workload},
            "ownerReferences": [owner.reference()],
        },
        "spec": spec.to_wire(),
    }


def service_account(owner: Owner, model: str | None) -> dict[str, Any]:
    """Return the account of a run's Job."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(owner, model),
        "automountServiceAccountToken": False,
    }


def role(owner: Owner, model: str | None) -> dict[str, Any]:
    """Return the Role of a run's Job: read this one run, patch its status."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": _metadata(owner, model),
        "rules": [
            {"apiGroups": [GROUP], "resources": [RUN_PLURAL], "resourceNames": [owner.name], "verbs": ["get"]},
            {
                "apiGroups": [GROUP],
                "resources": [f"{RUN_PLURAL}/status"],
                "resourceNames": [owner.name],
                "verbs": ["patch"],
            },
        ],
    }


def role_binding(owner: Owner, model: str | None, namespace: str) -> dict[str, Any]:
    """Return the RoleBinding of a run's Job."""
    name = job_name(owner.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(owner, model),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def benchmark_job(  # noqa: PLR0913 — what a Job consists of
    owner: Owner,
    spec: BenchmarkRunSpec,
    *,
    model: str | None,
    namespace: str,
    settings: Settings,
    engine_process: str = "",
) -> dict[str, Any]:
    """Return the Job of a run. A pod that fails is replaced (never restarted in place), so that its log stays."""
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 — a mount point
    if spec.dataset.prompts is not None:
        reference = spec.dataset.prompts.config_map_ref
        items = [{"key": reference.key, "path": reference.key}]
        volumes.append({"name": "prompts", "configMap": {"name": reference.name, "items": items}})
        mounts.append({"name": "prompts", "mountPath": PROMPTS, "readOnly": True})
    container = {
        "name": "benchmark",
        "image": settings.benchmark_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["--namespace", namespace, "--name", owner.name],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 — a mount point
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    metadata = _metadata(owner, model)
    if engine_process:
        metadata["annotations"] = {ENGINE_PROCESS: engine_process}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": BACKOFF_LIMIT,
            "activeDeadlineSeconds": spec.deadline_seconds + DEADLINE_SLACK,
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {"labels": run_labels(owner.name, model)},
                "spec": {
                    "restartPolicy": "Never",
                    "serviceAccountName": job_name(owner.name),
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": BENCHMARK_USER,
                        "runAsGroup": BENCHMARK_USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def _metadata(owner: Owner, model: str | None) -> dict[str, Any]:
    return {
        "name": job_name(owner.name),
        "labels": run_labels(owner.name, model),
        "ownerReferences": [owner.reference()],
    }
