"""Names, labels and owner references of every child.

A user's labels and annotations are never copied: GitOps tools track by them.

    <model>-<revision>                 Deployment and Service of a candidate's own server (role `serve`)
    <model>-<digest(revision,measure)> the same for a twin that is measured while the original serves (role `measure`)
    <model>-<digest(run)>              a BenchmarkRun, its Job, ServiceAccount, Role and RoleBinding
    <model>-<digest(what is read)>     the Job that reads the checkpoints before a GPU is taken
    <model>                            the stable Service
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specmodel.api.benchmark import CellRequest
from specmodel.api.labels import (
    API_VERSION,
    COMPONENT,
    INSTANCE,
    MANAGED_BY,
    MODEL,
    MODEL_KIND,
    NAME,
    PART_OF,
    ROLE_MEASURE,
    RUN,
    RUN_KIND,
)
from specmodel.domain.candidate import Candidate, digest_of

#: Kubernetes' limit for label values and for the names of Services, Jobs' pods and containers.
LABEL_MAXIMUM = 63
#: What the Job controller and pods append to a Job's name, with room to spare.
JOB_NAME_MAXIMUM = 52


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The object that a child belongs to: gone with it."""

    kind: str
    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """Return the controller owner reference."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def model_owner(name: str, uid: str) -> Owner:
    """Return a SpeculativeModel as an owner."""
    return Owner(kind=MODEL_KIND, name=name, uid=uid)


def run_owner(name: str, uid: str) -> Owner:
    """Return a BenchmarkRun as an owner."""
    return Owner(kind=RUN_KIND, name=name, uid=uid)


def server_name(model: str, candidate: Candidate, role: str) -> str:
    """Return the name of a candidate's Deployment and Service in a role."""
    digits = digest_of([candidate.revision, "measure"]) if role == ROLE_MEASURE else candidate.revision
    return f"{model}-{digits}"


def run_name(model: str, server: str, candidate: str, workload: str, cells: Sequence[CellRequest]) -> str:
    """Return the name of a BenchmarkRun: a digest of what is measured, and on which server."""
    return f"{model}-{digest_of([server, candidate, workload, [cell.to_wire() for cell in cells]])}"


def preflight_name(model: str, digest: str) -> str:
    """Return the name of the Job that reads checkpoints; the digest is of what it reads."""
    return f"{model}-{digest}"


def job_name(run: str) -> str:
    """Return the name of a run's Job, ServiceAccount, Role and RoleBinding: the run's own, shortened where too long.

    Runs made by hand may have names of up to 253 characters with dots; a Job's pods then need a shorter one.
    """
    if len(run) <= JOB_NAME_MAXIMUM and "." not in run:
        return run
    head = run.replace(".", "-")[: JOB_NAME_MAXIMUM - 11].rstrip("-")
    return f"{head}-{digest_of(run)}"


def common_labels(instance: str, component: str) -> dict[str, str]:
    """Return the recommended labels of one object. Never selected on."""
    return {
        NAME: "specmodel",
        INSTANCE: instance[:LABEL_MAXIMUM].rstrip("-."),
        COMPONENT: component,
        PART_OF: "specmodel",
        MANAGED_BY: "specmodel-operator",
    }


def run_labels(run: str, model: str | None) -> dict[str, str]:
    """Return the labels of a run's Job and its pods, ServiceAccount, Role and RoleBinding."""
    own = {RUN: job_name(run)} | ({MODEL: model} if model else {})
    return common_labels(model or run, "benchmark") | own
