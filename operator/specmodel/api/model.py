"""`SpeculativeModel` (short `specm`): what a user writes, and what the operator answers.

The CRD holds only fields that work. Rules over several members stand beside them (`rules`), in CEL for the API
server and in Python for manifests read without one; each message says what to write instead.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from specmodel.api.benchmark import (
    ERROR_RATE_IS_A_PERCENTAGE,
    LIMITS_WITHOUT_DUPLICATES,
    Dataset,
    Limit,
    Temperature,
    default_dataset,
)
from specmodel.api.conditions import Condition
from specmodel.api.labels import NAME_MAXIMUM
from specmodel.api.rule import Rule, RuledWire, is_ascending, is_dns_label, is_without_duplicates
from specmodel.api.wire import DecimalString, StatusWire, Timestamp, Wire, canonical_decimal

ModelUri = Annotated[
    str,
    StringConstraints(
        pattern=r"^(hf://[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+"
        r"|pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/[A-Za-z0-9_.-]+)*)$",
        max_length=300,
    ),
]
Revision = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./-]+$", max_length=128)]
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$", max_length=63)]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]


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


class OnIncompatible(StrEnum):
    """`Baseline` serves without a drafter that does not fit, and says so; `Fail` starts nothing new."""

    BASELINE = "Baseline"
    FAIL = "Fail"


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

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, description="Key in its data.")


class Model(Wire):
    """The target model."""

    uri: ModelUri = Field(description="hf://organisation/name, or pvc://claim/path for files on a volume.")
    revision: Revision = Field(default="main", description="Branch, tag or commit on the hub.")
    served_name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./:-]+$", max_length=128)] | None = Field(
        default=None, description="The name that clients ask for. Default: metadata.name."
    )
    token_secret_ref: SecretKey | None = Field(default=None, description="The hub's token, for gated models.")


class Drafter(RuledWire):
    """The drafter, and the numbers of speculative tokens to try beside 0."""

    method: DrafterMethod = Field(default=DrafterMethod.EAGLE3, description="EAGLE3, or None for no drafter.")
    uri: ModelUri | None = Field(default=None, description="Where the drafter is. Required unless method is None.")
    revision: Revision = Field(default="main", description="Branch, tag or commit on the hub.")
    speculative_tokens: list[Annotated[int, Field(ge=1, le=8)]] = Field(
        default=[3],
        min_length=1,
        max_length=4,
        description="Numbers of tokens to draft per step; each is a candidate. 0 is always measured as the reference.",
    )
    min_acceptance_rate_percent: int | None = Field(
        default=None, ge=1, le=99, description="A candidate whose drafted tokens are accepted less often cannot win."
    )
    on_incompatible: OnIncompatible = Field(
        default=OnIncompatible.BASELINE,
        description="When the drafter does not fit the target: Baseline serves without it and says so;"
        " Fail starts nothing new, and what serves goes on serving.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.method == 'None' || has(self.uri)",
            message="drafter.uri is required: write hf://organisation/name or pvc://claim/path,"
            " or remove drafter to serve without one",
            holds=lambda it: it.method is DrafterMethod.NONE or it.uri is not None,
        ),
        Rule(
            cel="self.method != 'None' || (!has(self.uri) && !has(self.minAcceptanceRatePercent))",
            message="drafter.method None takes no uri and no minAcceptanceRatePercent: remove them,"
            " or write method: EAGLE3",
            holds=lambda it: (
                it.method is not DrafterMethod.NONE or (it.uri is None and it.min_acceptance_rate_percent is None)
            ),
        ),
        Rule(
            cel="self.speculativeTokens.all(a, self.speculativeTokens.exists_one(b, a == b))",
            message="speculativeTokens holds a number twice: write each once",
            holds=lambda it: is_without_duplicates(it.speculative_tokens),
            member="speculativeTokens",
        ),
    )


class Quantization(RuledWire):
    """Precisions to try."""

    weights: list[Weights] = Field(
        default=[Weights.NONE], min_length=1, max_length=3, description="Each value is a candidate."
    )
    kv_cache: KVCache = Field(default=KVCache.AUTO, description="Type of the KV cache, for every candidate.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.weights.all(a, self.weights.exists_one(b, a == b))",
            message="weights holds a value twice: write each once",
            holds=lambda it: is_without_duplicates(it.weights),
            member="weights",
        ),
        Rule(
            cel="!('None' in self.weights && 'Checkpoint' in self.weights)",
            message="None and Checkpoint both load the weights as they are stored: write only one of them",
            holds=lambda it: not {Weights.NONE, Weights.CHECKPOINT} <= set(it.weights),
            member="weights",
        ),
    )


class Toleration(RuledWire):
    """A toleration as in a pod."""

    key: str | None = Field(default=None, max_length=317, description="Taint key; absent matches every taint.")
    operator: Annotated[str, StringConstraints(pattern=r"^(Exists|Equal)$", max_length=6)] | None = Field(
        default=None, description="Exists or Equal. Absent: Equal."
    )
    value: LabelValue | None = Field(default=None, description="Taint value, with operator Equal.")
    effect: (
        Annotated[str, StringConstraints(pattern=r"^(NoSchedule|PreferNoSchedule|NoExecute)$", max_length=16)] | None
    ) = Field(default=None, description="NoSchedule, PreferNoSchedule or NoExecute; absent matches all.")
    toleration_seconds: int | None = Field(
        default=None, ge=0, le=2_147_483_647, description="How long a NoExecute taint is tolerated."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            message="a toleration without key matches every taint and needs operator: Exists",
            holds=lambda it: it.key is not None or it.operator == "Exists",
        ),
        Rule(
            cel="!(has(self.operator) && self.operator == 'Exists' && has(self.value))",
            message="operator Exists takes no value: remove value, or write operator: Equal",
            holds=lambda it: not (it.operator == "Exists" and it.value is not None),
        ),
        Rule(
            cel="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            message="tolerationSeconds needs effect: NoExecute",
            holds=lambda it: it.toleration_seconds is None or it.effect == "NoExecute",
        ),
    )


class Hardware(RuledWire):
    """Which GPUs, how many per replica, how many in all, and where."""

    gpu_products: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$", max_length=63)]] | None = Field(
        default=None,
        min_length=1,
        max_length=8,
        description="Exact values of the node label nvidia.com/gpu.product. Default: the H100 family.",
    )
    gpus_per_replica: list[Annotated[int, Field(ge=1, le=8)]] = Field(
        default=[1, 2], min_length=1, max_length=4, description="Tensor parallel sizes; each is a candidate."
    )
    gpu_budget: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="GPUs that this model may hold at any moment, measuring included."
        " Default: twice the largest gpusPerReplica.",
    )
    gpu_hour_price: DecimalString | None = Field(
        default=None, description="Price of one GPU for one hour, in your currency. Default: cost is in GPU-hours."
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=16, description="Labels that a node must carry beside the GPU product."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=16, description="Taints of the GPU nodes that the engine's pods accept."
    )
    runtime_class_name: str | None = Field(default=None, max_length=253, description="RuntimeClass of the pods.")
    priority_class_name: str | None = Field(default=None, max_length=253, description="PriorityClass of the pods.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.gpuBudget) || self.gpusPerReplica.all(g, g <= self.gpuBudget)",
            message="gpuBudget is below the largest gpusPerReplica: raise gpuBudget or remove that gpusPerReplica",
            holds=lambda it: it.gpu_budget is None or max(it.gpus_per_replica) <= it.gpu_budget,
            member="gpuBudget",
        ),
        Rule(
            cel="self.gpusPerReplica.all(a, self.gpusPerReplica.exists_one(b, a == b))",
            message="gpusPerReplica holds a number twice: write each once",
            holds=lambda it: is_without_duplicates(it.gpus_per_replica),
            member="gpusPerReplica",
        ),
        Rule(
            cel="!has(self.gpuProducts) || self.gpuProducts.all(p, !p.endsWith('-SHARED') && !p.contains('-MIG-'))",
            message="a shared or partitioned GPU cannot be measured: name whole GPUs,"
            " for example NVIDIA-H100-80GB-HBM3",
            holds=lambda it: not any(p.endswith("-SHARED") or "-MIG-" in p for p in it.gpu_products or ()),
            member="gpuProducts",
        ),
        Rule(
            cel="!has(self.gpuProducts) || self.gpuProducts.all(a, self.gpuProducts.exists_one(b, a == b))",
            message="gpuProducts holds a product twice: write each once",
            holds=lambda it: is_without_duplicates(it.gpu_products or []),
            member="gpuProducts",
        ),
        Rule(
            cel="!has(self.gpuHourPrice) || double(self.gpuHourPrice) > 0.0",
            message="gpuHourPrice must be above 0: remove it to compare GPU-hours",
            holds=lambda it: it.gpu_hour_price is None or float(it.gpu_hour_price) > 0,
            member="gpuHourPrice",
        ),
        Rule(
            cel="!has(self.nodeSelector) || !('nvidia.com/gpu.product' in self.nodeSelector)",
            message="nodeSelector may not hold nvidia.com/gpu.product: name the product in gpuProducts",
            holds=lambda it: "nvidia.com/gpu.product" not in it.node_selector,
            member="nodeSelector",
        ),
    )


class EnvVar(RuledWire):
    """A literal environment variable of the engine's container."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] = Field(
        description="Name of the variable."
    )
    value: str = Field(default="", max_length=4096, description="Its value. Not for secrets: anyone may read it here.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(self.name in ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'])",
            message="a token does not belong in a manifest: put it in a Secret and name it in model.tokenSecretRef",
            holds=lambda it: it.name not in {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"},
            member="name",
        ),
    )


class Resources(Wire):
    """CPU and memory beside the GPUs. Absent: 4 CPUs + 2 a GPU, 24 GiB + 8 GiB a GPU + /dev/shm."""

    cpu: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?m?$", max_length=16)] | None = Field(
        default=None, description='CPUs, for example "8" or "500m".'
    )
    memory: (
        Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$", max_length=16)] | None
    ) = Field(default=None, description='Memory, for example "64Gi".')


class Engine(RuledWire):
    """The vLLM image and what is passed to it beside what the operator renders."""

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=300,
        pattern=r"^\S+$",
        description="Image of vLLM's server. Default: the operator's, kept for what already serves.",
    )
    version: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$", max_length=32)] | None = Field(
        default=None, description="Version of vLLM in the image. Required when the image's tag is not vX.Y.Z."
    )
    extra_args: list[Annotated[str, StringConstraints(max_length=1024)]] = Field(
        default_factory=list,
        max_length=64,
        description="Further arguments, for example --max-model-len=4096. Flags that the operator owns are refused.",
    )
    env: list[EnvVar] = Field(default_factory=list, max_length=64, description="Environment of the container.")
    resources: Resources = Resources()
    startup_timeout_seconds: int = Field(
        default=1800, ge=10, le=14_400, description="A candidate that is not Ready after this time has failed."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.extraArgs) || self.extraArgs.size() == 0 || self.extraArgs[0].startsWith('--')",
            message="extraArgs must begin with a flag: write --flag=value, for example --max-model-len=4096",
            holds=lambda it: not it.extra_args or it.extra_args[0].startswith("--"),
            member="extraArgs",
        ),
        Rule(
            cel="!has(self.extraArgs) || self.extraArgs.all(a, !a.matches('^--?[A-Za-z0-9_.-]+[ \\t]'))",
            message="extraArgs holds a flag and its value in one item with a space between: write --flag=value",
            holds=lambda it: not any(re.match(r"--?[A-Za-z0-9_.-]+[ \t]", argument) for argument in it.extra_args),
            member="extraArgs",
        ),
        Rule(
            cel="!has(self.env) || self.env.all(a, self.env.exists_one(b, a.name == b.name))",
            message="env holds a name twice: write each once",
            holds=lambda it: is_without_duplicates([variable.name for variable in it.env]),
            member="env",
        ),
    )


class RequestsPerCell(RuledWire):
    """A cell runs max(min, 6 x concurrency) requests, and is extended up to max while a limit is undecided."""

    min: int = Field(default=50, ge=1, le=600, description="Requests to run at least.")
    max: int = Field(default=600, ge=1, le=600, description="Requests up to which an undecided cell is extended.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.min <= self.max",
            message="requestsPerCell.min is above requestsPerCell.max: raise max or lower min",
            holds=lambda it: it.min <= it.max,
        ),
    )


class Demand(RuledWire):
    """The load to carry: exactly one of requests per second and concurrent requests."""

    requests_per_second: DecimalString | None = Field(default=None, description='For example "12" or "0.5".')
    concurrency: int | None = Field(default=None, ge=1, le=100_000, description="Requests in flight at once.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.requestsPerSecond) != has(self.concurrency)",
            message="demand takes exactly one of requestsPerSecond and concurrency: remove the other",
            holds=lambda it: (it.requests_per_second is None) != (it.concurrency is None),
        ),
        Rule(
            cel="!has(self.requestsPerSecond) || double(self.requestsPerSecond) > 0.0",
            message="demand.requestsPerSecond must be above 0: remove demand to compare candidates per GPU",
            holds=lambda it: it.requests_per_second is None or float(it.requests_per_second) > 0,
            member="requestsPerSecond",
        ),
    )


class Workload(RuledWire):
    """The load that candidates are measured under, and the demand to carry."""

    concurrency: list[Annotated[int, Field(ge=1, le=256)]] = Field(
        default=[1, 4, 8, 16, 32],
        min_length=1,
        max_length=10,
        description="Requests in flight per replica; a level above one that fails is not measured.",
    )
    temperature: list[Temperature] = Field(
        default=["0"], min_length=1, max_length=4, description='Sampling temperatures, for example ["0", "0.5"].'
    )
    #: Made by a factory, so that it is no schema default: the API server would store `synthetic`, and a user who later
    #: writes `prompts` would be told to remove what they never wrote.
    dataset: Dataset = Field(
        default_factory=default_dataset, description="Default: synthetic prompts of 1024 tokens, 256 tokens out."
    )
    requests_per_cell: RequestsPerCell = RequestsPerCell()
    demand: Demand | None = None
    target_utilization_percent: int = Field(
        default=80, ge=1, le=100, description="How much of a replica's measured throughput the demand may use."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.concurrency.isSorted() && self.concurrency.all(a, self.concurrency.exists_one(b, a == b))",
            message="concurrency must ascend without duplicates: write for example [1, 4, 8, 16, 32]",
            holds=lambda it: is_ascending(it.concurrency),
            member="concurrency",
        ),
        Rule(
            cel="self.temperature.all(a, self.temperature.exists_one(b, double(a) == double(b)))",
            message='temperature holds a value twice ("0" and "0.0" are one): write each once',
            holds=lambda it: is_without_duplicates([canonical_decimal(value) for value in it.temperature]),
            member="temperature",
        ),
    )


class Sla(RuledWire):
    """What must hold, and how sure the measurement must be. Confidence 0 judges the observed percentile."""

    limits: list[Limit] = Field(
        default_factory=list, max_length=16, description="Bounds that a candidate must keep at its capacity and below."
    )
    max_error_rate_percent: DecimalString = Field(
        default="0.5", description="A level at which more requests fail than this violates the SLA, in percent."
    )
    confidence_percent: int = Field(
        default=90, ge=0, le=99, description="How sure a bound must be decided; 0 judges the observed percentile."
    )

    rules: ClassVar[tuple[Rule, ...]] = (LIMITS_WITHOUT_DUPLICATES, ERROR_RATE_IS_A_PERCENTAGE)


class Selection(Wire):
    """How the winner is chosen and what is done about it."""

    objective: Objective = Field(default=Objective.LOWEST_COST, description="What is best among those within the SLA.")
    min_gain_percent: int = Field(
        default=5, ge=0, le=100, description="What serves is replaced only by a candidate better by this much."
    )
    mode: SelectionMode = Field(
        default=SelectionMode.AUTO, description="Auto promotes the winner; Recommend only proposes it in status."
    )


class Rollout(Wire):
    """How traffic moves from one revision to the next."""

    mode: RolloutMode = Field(
        default=RolloutMode.AUTO,
        description="Auto keeps the wanted replicas throughout; Recreate accepts an outage when GPUs are too few.",
    )
    drain_seconds: int = Field(
        default=60, ge=0, le=3600, description="Time for the old revision's requests to end after traffic has moved."
    )


class Serving(Wire):
    """`replicas` is a minimum: wanted = max(replicas, what the demand needs). Autoscalers write it through /scale."""

    replicas: int = Field(default=1, ge=0, le=1000, description="Replicas to serve with at least.")
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
    suspend: bool = Field(default=False, description="What serves goes on serving; nothing else is done.")


class ServingStatus(StatusWire):
    """What the stable Service selects."""

    revision: str = Field(default="", description="Names the Deployment: <model>-<revision>.")
    candidate: str = Field(default="", description="Digest of the candidate; its measurements are kept under it.")
    gpus_per_replica: int = Field(description="Tensor parallel size.")
    speculative_tokens: int = Field(description="Tokens drafted per step; 0 without a drafter.")
    weights: str = Field(description="None, FP8 or Checkpoint.")
    replicas: int = Field(description="Replicas wanted.")
    ready_replicas: int = Field(default=0, description="Replicas that are Ready.")
    capacity: int | None = Field(default=None, description="Requests in flight per replica within the SLA.")
    requests_per_second: DecimalString | None = Field(default=None, description="Of one replica at capacity.")
    p99_milliseconds: int | None = Field(default=None, description="P99 of the end-to-end latency at capacity.")
    acceptance_rate_percent: int | None = Field(default=None, description="Accepted of drafted tokens, measured.")
    cost_per_million_tokens: DecimalString | None = Field(
        default=None, description="Of output tokens at capacity, in the currency of gpuHourPrice, else in GPU-hours."
    )
    engine: str = Field(default="", description="vllm, or replay: then the figures are no GPU's of this cluster.")
    engine_image: str = Field(default="", description="Image of the engine.")
    endpoint: str = Field(default="", description="URL of the stable Service.")
    since: Timestamp | None = Field(default=None, description="When traffic moved here.")


class CandidateStatus(StatusWire):
    """One candidate, its verdict and the figures behind it."""

    candidate: str = Field(description="Digest of the candidate.")
    gpus_per_replica: int = Field(description="Tensor parallel size.")
    speculative_tokens: int = Field(description="Tokens drafted per step; 0 is the reference without a drafter.")
    weights: str = Field(description="None, FP8 or Checkpoint.")
    verdict: str = Field(description="Eligible, Inconclusive, Unmeasured, Violates or Failed.")
    reason: str = Field(description="Why, as one word; see docs/conditions.md.")
    message: str = Field(default="", description="Why, with the numbers.")
    capacity: int | None = Field(default=None, description="Requests in flight per replica within the SLA.")
    requests_per_second: DecimalString | None = Field(default=None, description="Of one replica at capacity.")
    p50_milliseconds: int | None = Field(default=None, description="Median end-to-end latency at capacity.")
    p99_milliseconds: int | None = Field(default=None, description="P99 of the end-to-end latency at capacity.")
    acceptance_rate_percent: int | None = Field(default=None, description="Accepted of drafted tokens, measured.")
    mean_acceptance_length: DecimalString | None = Field(
        default=None, description="Tokens per step, the engine's included."
    )
    replicas_needed: int | None = Field(default=None, description="Replicas that the demand needs.")
    gpus_needed: int | None = Field(default=None, description="GPUs that the demand needs.")
    cost_per_million_tokens: DecimalString | None = Field(
        default=None, description="Of output tokens at capacity, in the currency of gpuHourPrice, else in GPU-hours."
    )
    engine: str = Field(default="", description="vllm, or replay: then the figures are no GPU's of this cluster.")
    runs: list[str] = Field(default_factory=list, max_length=16, description="The BenchmarkRuns that were judged.")


class DecisionStatus(StatusWire):
    """What was decided, in one sentence with the numbers that decided it."""

    reason: str = Field(description="Why, as one word; see docs/conditions.md.")
    message: str = Field(description="Why, with the numbers.")
    candidate: str = Field(default="", description="Digest of what should serve.")
    runner_up: str = Field(default="", description="What came second, and why it lost.")
    time: Timestamp | None = Field(default=None, description="When it was first decided so.")


class PreflightStatus(StatusWire):
    """What was read of the target's and the drafter's files before a GPU was taken. Read once for each digest."""

    digest: str = Field(max_length=64, description="Of the URIs and revisions that were read.")
    result: str = Field(max_length=4096, description="What was read, as JSON: shapes, types and sizes, or why not.")
    time: Timestamp = Field(description="When it was read.")


class SpeculativeModelStatus(StatusWire):
    """What the operator answers."""

    observed_generation: int | None = Field(default=None, description="The generation that the status speaks of.")
    phase: str = Field(default="", description="A summary for people; nothing depends on it.")
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    serving: ServingStatus | None = None
    candidates: list[CandidateStatus] = Field(
        default_factory=list,
        max_length=64,
        description="Every candidate: fewest GPUs first, then weights, then tokens.",
    )
    decision: DecisionStatus | None = None
    preflight: PreflightStatus | None = None
    replicas: int | None = Field(default=None, description="Replicas that exist; read by autoscalers.")
    ready_replicas: int | None = Field(default=None, description="Replicas that are Ready.")
    selector: str = Field(default="", description="Label selector of the serving pods; read by autoscalers.")


#: Children are named `<name>-<10 hex digits>` with pod suffixes, and the Service `<name>` must begin with a letter:
#: what is let in here would be refused where nobody looks.
NAME_RULE = Rule(
    cel=f"size(self.metadata.name) <= {NAME_MAXIMUM} && self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')",
    message=f"metadata.name must be a DNS label of at most {NAME_MAXIMUM} characters:"
    " lower-case letters, digits and '-', beginning with a letter, for example commerce-agent",
    holds=lambda it: is_dns_label(it.name, longest=NAME_MAXIMUM),
)


class SpeculativeModel(RuledWire):
    """A SpeculativeModel as read from the API server: identity, generation, spec and the last status."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    is_being_deleted: bool = False
    spec: SpeculativeModelSpec
    status: SpeculativeModelStatus = SpeculativeModelStatus()

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)
