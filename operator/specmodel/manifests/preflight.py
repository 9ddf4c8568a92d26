"""The Job that reads the checkpoints' files before a GPU is taken.

It has no right in the cluster, not even a token: its answer is its pod's termination message. It sees what the engine
would see: the same claims, read-only, the hub's token and the variables that say where the hub is.
"""

from __future__ import annotations

from typing import Any

from specmodel.api.labels import MODEL, PREFLIGHT
from specmodel.domain.candidate import Candidate
from specmodel.domain.preflight import Question
from specmodel.domain.settings import Settings
from specmodel.manifests.benchmark import BENCHMARK_USER
from specmodel.manifests.engine_arguments import claim_of
from specmodel.manifests.names import Owner, common_labels, preflight_name

WEIGHTS = "/weights"
#: Seconds until Kubernetes ends the Job, pulling its image and mounting its volumes included. The reading itself ends
#: after 30 s.
DEADLINE_SECONDS = 120
#: Seconds after which an ended Job goes by itself, should no operator be there to take it away.
KEEP_SECONDS = 3600


def preflight_job(owner: Owner, question: Question, like: Candidate, *, settings: Settings) -> dict[str, Any]:
    """Return the Job that answers a question. `like` is a candidate: claims may be bound to nodes with GPUs only."""
    labels = common_labels(owner.name, "preflight") | {MODEL: owner.name, PREFLIGHT: question.digest}
    uris = [uri for uri in (question.model_uri, question.drafter_uri) if uri is not None]
    claims = sorted({found[0] for uri in uris if (found := claim_of(uri)) is not None})
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": BENCHMARK_USER,
            "runAsGroup": BENCHMARK_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(question, claims, settings)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            *(
                {"name": f"weights-{number}", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
                for number, claim in enumerate(claims)
            ),
        ],
    }
    if claims:
        spec["tolerations"] = [
            {"key": settings.gpu_resource, "operator": "Exists", "effect": "NoSchedule"},
            *(dict(toleration) for toleration in like.placement.tolerations),
        ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": preflight_name(owner.name, question.digest),
            "labels": labels,
            "ownerReferences": [owner.reference()],
        },
        "spec": {
            "backoffLimit": 1,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _container(question: Question, claims: list[str], settings: Settings) -> dict[str, Any]:
    arguments = ["--model", question.model_uri, "--model-revision", question.model_revision]
    if question.drafter_uri is not None:
        arguments += ["--drafter", question.drafter_uri, "--drafter-revision", question.drafter_revision or "main"]
    environment: list[dict[str, Any]] = [{"name": "HOME", "value": "/tmp"}]  # noqa: S108 — a mount point
    environment += [{"name": name, "value": value} for name, value in question.env]
    if question.token_secret is not None:
        name, key = question.token_secret
        # Optional: without it the hub is asked all the same, and its refusal says more than a pod that waits.
        reference = {"name": name, "key": key, "optional": True}
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return {
        "name": "preflight",
        "image": settings.benchmark_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python3", "-m", "specmodel.preflight"],
        "args": [*arguments, "--weights", WEIGHTS],
        "env": environment,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "768Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 — a mount point
            *(
                {"name": f"weights-{number}", "mountPath": f"{WEIGHTS}/{claim}", "readOnly": True}
                for number, claim in enumerate(claims)
            ),
        ],
    }
