"""`SpeculativeModel` (short `specm`): what a user writes, and what the operator answers.

The CRD holds only fields that work. Rules that the API server can check are CEL rules beside the fields (`rule`); each
message says what to write instead.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from specmodel.api.benchmark import Dataset, Limit, SyntheticDataset, Temperature
from specmodel.api.conditions import Condition
from specmodel.api.wire import DecimalString, StatusWire, Timestamp, Wire

ModelUri = Annotated[
    str,
    StringConstraints(
        pattern=r"^(hf://[A-Za-z0-9][\w.-]*/[\w.-]+|pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/[\w.-]+)*)$", max_length=300
    ),
]
Revision = Annotated[str, StringConstraints(pattern=r"^[\w./-]+$", max_length=128)]


class Weights(StrEnum):
    """`None`: as in the checkpoint's own precision. `FP8`: quantised by the engine. `Checkpoint`: as stored."""

    NONE = "None"
    FP8 = "FP8"
    CHECKPOINT = "Checkpoint"


class KVCache(StrEnum):
    """The KV cache's type: the engine's choice, or FP8."""

    AUTO = "Auto"
    FP8 = "FP8"


class DrafterMethod(StrEnum):
    """How tokens are drafted."""

    EAGLE3 = "EAGLE3"
    NONE = "None"


class Objective(StrEnum):
    """What "better" means among eligible candidates."""

    LOWEST_COST = "LowestCost"
    HIGHEST_THROUGHPUT = "HighestThroughput"
    LOWEST_LATENCY = "LowestLatency"


class SelectionMode(StrEnum):
    """`Auto` promotes the winner; `Recommend` measures, proposes in status and changes nothing."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"


class RolloutMode(StrEnum):
    """`Auto` never drops below the wanted replicas; `Recreate` may, when GPUs are too few for both revisions."""

    AUTO = "Auto"
    RECREATE = "Recreate"


class SecretKey(Wire):
    """One key of a Secret in the same namespace."""

    name: str = Field(min_length=1, max_length=253)
    key: str = Field(min_length=1, max_length=253)


class Model(Wire):
    """The target model."""

    uri: ModelUri
    revision: Revision = "main"
    served_name: Annotated[str, StringConstraints(pattern=r"^[\w./:-]+$", max_length=128)] | None = None
    token_secret_ref: SecretKey | None = None


class Drafter(Wire):
    """The drafter, and the numbers of speculative tokens to try beside 0."""

    method: DrafterMethod = DrafterMethod.EAGLE3
    uri: ModelUri | None = None
    revision: Revision = "main"
    speculative_tokens: list[Annotated[int, Field(ge=1, le=8)]] = Field(default=[3], min_length=1, max_length=4)
    min_acceptance_rate_percent: int | None = Field(default=None, ge=1, le=99)


class Quantization(Wire):
    """Precisions to try."""

    weights: list[Weights] = Field(default=[Weights.NONE], min_length=1, max_length=3)
    kv_cache: KVCache = KVCache.AUTO


class Toleration(Wire):
    """A toleration as in a pod."""

    key: str | None = Field(default=None, max_length=317)
    operator: Annotated[str, StringConstraints(pattern=r"^(Exists|Equal)$", max_length=6)] | None = None
    value: str | None = Field(default=None, max_length=63)
    effect: Annotated[str, StringConstraints(pattern=r"^(NoSchedule|PreferNoSchedule|NoExecute)$", max_length=16)] | None = None
    toleration_seconds: int | None = Field(default=None, ge=0)


class Hardware(Wire):
    """Which GPUs, how many per replica, how many in all, and where."""

    gpu_products: list[Annotated[str, StringConstraints(pattern=r"^[\w.-]+$", max_length=63)]] | None = Field(
        default=None, min_length=1, max_length=8
    )
    gpus_per_replica: list[Annotated[int, Field(ge=1, le=8)]] = Field(default=[1, 2], min_length=1, max_length=4)
    gpu_budget: int | None = Field(default=None, ge=1, le=1024)
    gpu_hour_price: DecimalString | None = None
    node_selector: dict[str, str] = Field(default_factory=dict, max_length=16)
    tolerations: list[Toleration] = Field(default_factory=list, max_length=16)
    runtime_class_name: str | None = Field(default=None, max_length=253)
    priority_class_name: str | None = Field(default=None, max_length=253)


class EnvVar(Wire):
    """A literal environment variable of the engine's container."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    value: str = Field(default="", max_length=4096)


class Resources(Wire):
    """CPU and memory of the engine's container beside its GPUs. Absent: sized by GPUs per replica (docs)."""

    cpu: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?m?$", max_length=16)] | None = None
    memory: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$", max_length=16)] | None = None


class Engine(Wire):
    """The vLLM image and what is passed to it beside what the operator renders."""

    image: str | None = Field(default=None, min_length=1, max_length=300, pattern=r"^\S+$")
    version: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$", max_length=32)] | None = None
    extra_args: list[Annotated[str, StringConstraints(max_length=1024)]] = Field(default_factory=list, max_length=64)
    env: list[EnvVar] = Field(default_factory=list, max_length=64)
    resources: Resources = Resources()
    startup_timeout_seconds: int = Field(default=1800, ge=10, le=14_400)


class RequestsPerCell(Wire):
    """A cell runs max(min, 6 x concurrency) requests, and is extended up to max while a limit is undecided."""

    min: int = Field(default=50, ge=1, le=600)
    max: int = Field(default=600, ge=1, le=600)


class Demand(Wire):
    """The load to carry: exactly one of requests per second and concurrent requests."""

    requests_per_second: DecimalString | None = None
    concurrency: int | None = Field(default=None, ge=1, le=100_000)


class Workload(Wire):
    """The load that candidates are measured under, and the demand to carry."""

    concurrency: list[Annotated[int, Field(ge=1, le=256)]] = Field(default=[1, 4, 8, 16, 32], min_length=1, max_length=10)
    temperature: list[Temperature] = Field(default=["0"], min_length=1, max_length=4)
    dataset: Dataset = Dataset(synthetic=SyntheticDataset())
    requests_per_cell: RequestsPerCell = RequestsPerCell()
    demand: Demand | None = None
    target_utilization_percent: int = Field(default=80, ge=1, le=100)


class Sla(Wire):
    """What must hold, and how sure the measurement must be. Confidence 0 judges the observed percentile."""

    limits: list[Limit] = Field(default_factory=list, max_length=16)
    max_error_rate_percent: DecimalString = "0.5"
    confidence_percent: int = Field(default=90, ge=0, le=99)


class Selection(Wire):
    """How the winner is chosen and what is done about it."""

    objective: Objective = Objective.LOWEST_COST
    min_gain_percent: int = Field(default=5, ge=0, le=100)
    mode: SelectionMode = SelectionMode.AUTO


class Rollout(Wire):
    """How traffic moves from one revision to the next."""

    mode: RolloutMode = RolloutMode.AUTO
    drain_seconds: int = Field(default=60, ge=0, le=3600)


class Serving(Wire):
    """`replicas` is a minimum: wanted = max(replicas, what the demand needs). Autoscalers write it through /scale."""

    replicas: int = Field(default=1, ge=0, le=1000)
    rollout: Rollout = Rollout()


class SpeculativeModelSpec(Wire):
    """What a user writes. Only `model.uri` is required."""

    model: Model
    drafter: Drafter | None = None
    quantization: Quantization = Quantization()
    hardware: Hardware = Hardware()
    engine: Engine = Engine()
    workload: Workload = Workload()
    sla: Sla = Sla()
    selection: Selection = Selection()
    serving: Serving = Serving()
    suspend: bool = False


class ServingStatus(StatusWire):
    """What the stable Service selects."""

    revision: str = ""
    candidate: str = ""
    gpus_per_replica: int
    speculative_tokens: int
    weights: str
    replicas: int
    ready_replicas: int = 0
    capacity: int | None = None
    requests_per_second: DecimalString | None = None
    p99_milliseconds: int | None = None
    acceptance_rate_percent: int | None = None
    cost_per_million_tokens: DecimalString | None = None
    engine: str = ""
    engine_image: str = ""
    endpoint: str = ""
    since: Timestamp | None = None


class CandidateStatus(StatusWire):
    """One candidate, its verdict and the figures behind it."""

    candidate: str
    gpus_per_replica: int
    speculative_tokens: int
    weights: str
    verdict: str
    reason: str
    message: str = ""
    capacity: int | None = None
    requests_per_second: DecimalString | None = None
    p50_milliseconds: int | None = None
    p99_milliseconds: int | None = None
    acceptance_rate_percent: int | None = None
    mean_acceptance_length: DecimalString | None = None
    replicas_needed: int | None = None
    gpus_needed: int | None = None
    cost_per_million_tokens: DecimalString | None = None
    engine: str = ""
    runs: list[str] = Field(default_factory=list, max_length=16)


class DecisionStatus(StatusWire):
    """What was decided, in one sentence with the numbers that decided it."""

    reason: str
    message: str
    candidate: str = ""
    runner_up: str = ""
    time: Timestamp | None = None


class SpeculativeModelStatus(StatusWire):
    """What the operator answers."""

    observed_generation: int | None = None
    phase: str = ""
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    serving: ServingStatus | None = None
    candidates: list[CandidateStatus] = Field(default_factory=list, max_length=64)
    decision: DecisionStatus | None = None
    replicas: int | None = None
    ready_replicas: int | None = None
    selector: str = ""


class SpeculativeModel(Wire):
    """A SpeculativeModel as read from the API server: identity, generation, spec and the last status."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    is_being_deleted: bool = False
    spec: SpeculativeModelSpec
    status: SpeculativeModelStatus = SpeculativeModelStatus()
