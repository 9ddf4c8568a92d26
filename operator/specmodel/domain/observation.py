"""One snapshot of everything that decide, plan and report may know. The only reading of a pass.

Values here are what the cluster said, sorted, with names of this project; raw objects appear only where a difference
must be computed against them (`Server.deployment`, `objects`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from specmodel.api.benchmark import BenchmarkRunSpec, BenchmarkRunStatus
from specmodel.domain.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a server or of a benchmark Job."""

    name: str
    uid: str
    node: str | None = None
    ip: str | None = None
    phase: str = "Pending"
    is_ready: bool = False
    is_terminating: bool = False
    #: GPUs that the pod requests.
    gpus: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    restarts: int = 0
    #: True when it answered a request and its counters moved (annotation `answered`).
    has_answered: bool = False
    #: The scheduler's own words while unschedulable, else None.
    unschedulable: str | None = None
    #: Why the container waits (ImagePullBackOff, CrashLoopBackOff, ...), else None.
    waiting: str | None = None
    #: The last lines of the container's last termination (FallbackToLogsOnError), else None.
    last_words: str | None = None
    exit_code: int | None = None
    image_id: str = ""

    @property
    def is_active(self) -> bool:
        """Whether its controller counts it: neither terminating nor finished (an evicted pod stays as Failed)."""
        return not self.is_terminating and self.phase not in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A Deployment of one revision with its pods, sorted by name."""

    name: str
    uid: str
    revision: str
    #: None when the annotation does not hold a candidate (edited by someone).
    candidate: Candidate | None
    role: str
    replicas: int
    created_at: datetime
    rendered: str
    is_being_deleted: bool = False
    ready_replicas: int = 0
    updated_replicas: int = 0
    #: The API server's own words while it refuses to have pods made (a quota, a missing PriorityClass, an admission
    #: policy): condition `ReplicaFailure`, else None.
    replica_failure: str | None = None
    pods: tuple[Pod, ...] = ()
    deployment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refused_pods(self) -> str | None:
        """Why pods that it wants are not made, or None: a refusal matters only while a pod is missing."""
        is_short = sum(1 for pod in self.pods if pod.is_active) < self.replicas
        return self.replica_failure if is_short else None

    @property
    def gpus_held(self) -> int:
        """GPUs of all its pods, the terminating ones included."""
        return sum(pod.gpus for pod in self.pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkJob:
    """The Job of a run as the Job controller reports it. What the measuring said of itself is in the run's status."""

    name: str
    uid: str
    created_at: datetime
    is_being_deleted: bool = False
    #: True when condition `Complete` is true.
    is_complete: bool = False
    #: (reason, message) of a true `Failed` condition (BackoffLimitExceeded, DeadlineExceeded, ...), else None.
    failure: tuple[str, str] | None = None
    #: The Job's own annotations (not the pods'): the plan keeps there which engine process it loads.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Its pods, sorted by name; `last_words`, `waiting` and `unschedulable` explain a Job that does not get on.
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A BenchmarkRun of this model, with its Job's state."""

    name: str
    uid: str
    candidate: str
    workload: str
    created_at: datetime
    spec: BenchmarkRunSpec
    status: BenchmarkRunStatus
    is_complete: bool = False
    #: (reason, message) of a true `Failed` condition, else None.
    failure: tuple[str, str] | None = None
    #: The Job named by label `specmodel.dev/run`, or None while there is none.
    job: BenchmarkJob | None = None
    #: Live objects of this run by (kind, name): ServiceAccount, Role, RoleBinding, Job. For a hand-made run (`get_run`)
    #: the only source; for a model's runs they may also be in `Observation.objects`.
    objects: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightJob:
    """A Job of this model that reads checkpoints."""

    name: str
    uid: str
    #: Digest of what it reads.
    digest: str
    created_at: datetime
    is_being_deleted: bool = False
    #: (reason, message) of a true `Failed` condition, else None.
    failure: tuple[str, str] | None = None
    #: True when condition `Complete` is true.
    is_complete: bool = False
    #: The termination message of its pod that ended well, as written, else None. Anyone may have written it.
    answer: str | None = None
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StableService:
    """The model's Service: what it selects, and which pods its EndpointSlices hold (names, sorted)."""

    revision: str | None
    endpoints: tuple[str, ...] = ()
    #: When the selector last moved (annotation written with the move), else None.
    moved_at: datetime | None = None
    #: True when the slices hold only pods of the selected revision, and all its Ready ones.
    is_settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """One node with matching GPUs: what it can allocate and what pods on it (of anyone) have requested."""

    name: str
    product: str
    allocatable: int
    requested: int

    @property
    def free(self) -> int:
        """Unrequested GPUs, never below 0."""
        return max(0, self.allocatable - self.requested)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSupply:
    """The GPUs that this model's pods could use, and what products were seen at all (sorted)."""

    nodes: tuple[NodeGpus, ...] = ()
    products_seen: tuple[str, ...] = ()
    #: Product of each Ready, uncordoned node with whole GPUs, one entry a node, whatever its taints (sorted).
    products_ready: tuple[str, ...] = ()
    #: False when the operator may not read nodes: it then cannot know what is free and says so.
    is_known: bool = True

    @property
    def free(self) -> int:
        """Free matching GPUs over all nodes."""
        return sum(node.free for node in self.nodes)

    def fits(self, gpus_per_replica: int, replicas: int = 1) -> bool:
        """Return whether that many replicas can be placed, each whole on one node; True when supply is unknown."""
        if not self.is_known:
            return True
        return sum(node.free // gpus_per_replica for node in self.nodes) >= replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """What the dataset's ConfigMap key holds: a digest, or why it cannot be used (reason, message)."""

    digest: str | None = None
    problem: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One snapshot."""

    now: datetime
    servers: tuple[Server, ...] = ()
    runs: tuple[Run, ...] = ()
    #: The model's preflight Jobs, sorted by name.
    preflights: tuple[PreflightJob, ...] = ()
    service: StableService | None = None
    supply: GpuSupply = GpuSupply()
    prompts: PromptSource | None = None
    #: Pods with this model's label and a role label whose Deployment is gone (deleted by someone in the background, or
    #: not seen): they still hold GPUs. Sorted by name.
    stray_pods: tuple[Pod, ...] = ()
    #: Live objects that the plan may have to write or delete, by (kind, name), as read (with metadata.uid): every
    #: Service, ServiceAccount, Role, RoleBinding, Job, Deployment and BenchmarkRun that carries this model's label.
    #: Compared field by field before any write; an object with a deletionTimestamp is included.
    objects: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
