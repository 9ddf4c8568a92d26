"""`BenchmarkRun` (short `bench`): what is measured, and what was.

The spec is immutable: a run that needs more cells is another run. In the status the Job owns `cells`, `progress` and
`provenance`; the operator owns `conditions`, `attempts`, `placement` and `observedGeneration`, and treats cells as
hostile input.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from specmodel.api.conditions import Condition
from specmodel.api.rule import Rule, RuledWire, is_without_duplicates
from specmodel.api.wire import DecimalString, StatusWire, Timestamp, Wire, canonical_decimal

CELLS_MAXIMUM = 40
SAMPLES_MAXIMUM = 600
CONCURRENCY_MAXIMUM = 1024

Temperature = Annotated[str, StringConstraints(pattern=r"^[0-2](\.[0-9]{1,3})?$", max_length=5)]


class Metric(StrEnum):
    """The latencies of one request. TPOT is (E2E - TTFT) / (output tokens - 1)."""

    E2E_LATENCY = "E2ELatency"
    TTFT = "TTFT"
    TPOT = "TPOT"


class Limit(Wire):
    """One line of an SLA: percentile p of a metric must not exceed a bound."""

    metric: Metric = Field(description="E2ELatency, TTFT or TPOT = (E2E - TTFT) / (output tokens - 1).")
    percentile: int = Field(ge=1, le=99, description="Which percentile of the requests of a cell, in percent.")
    max_milliseconds: int = Field(ge=1, le=3_600_000, description="The bound in milliseconds; equal passes.")


LIMITS_WITHOUT_DUPLICATES = Rule(
    cel="!has(self.limits) || self.limits.all(a, self.limits.exists_one(b, a.metric == b.metric"
    " && a.percentile == b.percentile))",
    message="limits holds two bounds for one metric and percentile: keep the lower one",
    holds=lambda it: is_without_duplicates([(limit.metric, limit.percentile) for limit in it.limits]),
    member="limits",
)

ERROR_RATE_IS_A_PERCENTAGE = Rule(
    cel="double(self.maxErrorRatePercent) <= 100.0",
    message='maxErrorRatePercent is a percentage: write a value from "0" to "100"',
    holds=lambda it: float(it.max_error_rate_percent) <= 100,
    member="maxErrorRatePercent",
)


class SyntheticDataset(Wire):
    """Random prompts of a fixed length: honest for speed and memory, meaningless for a real drafter's acceptance."""

    input_tokens: int = Field(default=1024, ge=1, le=131_072, description="Length of each prompt in tokens.")
    output_tokens: int = Field(default=256, ge=2, le=16_384, description="Tokens asked for per request.")


class ConfigMapKey(Wire):
    """One key of a ConfigMap in the same namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the ConfigMap.")
    key: str = Field(min_length=1, max_length=253, description="Key in its data.")


class PromptDataset(Wire):
    """Real prompts: a ConfigMap key of JSON lines, each `{"prompt": "..."}` or `{"messages": [...]}`."""

    config_map_ref: ConfigMapKey
    output_tokens: int = Field(default=256, ge=2, le=16_384, description="Tokens asked for per request.")


class Dataset(RuledWire):
    """Exactly one of `synthetic` and `prompts`."""

    synthetic: SyntheticDataset | None = None
    prompts: PromptDataset | None = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.synthetic) != has(self.prompts)",
            message="dataset takes exactly one of synthetic and prompts: remove the other",
            holds=lambda it: (it.synthetic is None) != (it.prompts is None),
        ),
    )


def default_dataset() -> Dataset:
    """Return what is measured with unless a user says otherwise."""
    return Dataset(synthetic=SyntheticDataset())


class CellRequest(RuledWire):
    """One cell to measure: how many streams, at which temperature, with how many requests at least and at most."""

    concurrency: int = Field(ge=1, le=CONCURRENCY_MAXIMUM, description="Requests in flight, held constant.")
    temperature: Temperature = Field(description='Sampling temperature, for example "0" or "0.5".')
    min_requests: int = Field(ge=1, le=6 * CONCURRENCY_MAXIMUM, description="Requests to run at least.")
    max_requests: int = Field(
        ge=1, le=6 * CONCURRENCY_MAXIMUM, description="Requests to run at most while a limit is undecided."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minRequests <= self.maxRequests",
            message="minRequests is above maxRequests: raise maxRequests or lower minRequests",
            holds=lambda it: it.min_requests <= it.max_requests,
        ),
    )


class StopRule(RuledWire):
    """When more load would be wasted: a level that fails ends its temperature, an undecided cell is extended."""

    limits: list[Limit] = Field(default_factory=list, max_length=16, description="Bounds that end a temperature.")
    confidence_percent: int = Field(
        default=0, ge=0, le=99, description="How sure a bound must be decided; 0 judges the observed percentile."
    )
    max_error_rate_percent: DecimalString = Field(
        default="0.5", description="A cell with more failed requests than this fails, in percent."
    )

    rules: ClassVar[tuple[Rule, ...]] = (LIMITS_WITHOUT_DUPLICATES, ERROR_RATE_IS_A_PERCENTAGE)


class Target(Wire):
    """The one server that a run loads. `url` has no path: `/v1/...` and `/metrics` are appended."""

    url: str = Field(
        pattern=r"^https?://[^/\s]+$", max_length=300, description="Scheme, host and port, without a path."
    )
    model: str = Field(min_length=1, max_length=253, description="The served model name; listed by /v1/models.")


class MeasuredCandidate(Wire):
    """What serves behind the target, for people and for `specmodel decide`; absent for a foreign endpoint."""

    digest: str = Field(max_length=64, description="Digest of the candidate.")
    gpus_per_replica: int = Field(ge=1, le=16, description="Tensor parallel size.")
    speculative_tokens: int = Field(ge=0, le=16, description="Speculative tokens per step; 0 without a drafter.")
    weights: str = Field(max_length=16, description="None, FP8 or Checkpoint.")


class BenchmarkRunSpec(RuledWire):
    """What to measure. Immutable."""

    target: Target
    candidate: MeasuredCandidate | None = None
    dataset: Dataset = Field(
        default_factory=default_dataset, description="Default: synthetic prompts of 1024 tokens, 256 tokens out."
    )
    dataset_digest: str | None = Field(
        default=None, max_length=64, description="Digest of the prompts' content; written by the operator."
    )
    cells: list[CellRequest] = Field(
        min_length=1, max_length=CELLS_MAXIMUM, description="The cells to measure, in this order."
    )
    stop: StopRule = StopRule()
    seed: int = Field(default=0, ge=0, le=2_147_483_647, description="Seed of prompts and sampling.")
    warmup_seconds: int = Field(default=2, ge=0, le=600, description="Load that is discarded before each cell.")
    stall_seconds: int = Field(
        default=120, ge=10, le=3600, description="The run fails when no request ends for this long."
    )
    deadline_seconds: int = Field(
        default=7200, ge=60, le=86_400, description="The run ends after this time; finished cells are kept."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self == oldSelf",
            message="the spec of a BenchmarkRun cannot change once created: create another run under a new name",
            holds=None,
        ),
        Rule(
            cel="self.cells.all(a, self.cells.exists_one(b, a.concurrency == b.concurrency"
            " && double(a.temperature) == double(b.temperature)))",
            message="cells holds one concurrency and temperature twice: keep one of them",
            holds=lambda it: is_without_duplicates(
                [(cell.concurrency, canonical_decimal(cell.temperature)) for cell in it.cells]
            ),
            member="cells",
        ),
    )


class Latency(StatusWire):
    """One metric of a cell, in microseconds. `samples` is sorted and empty where the source held percentiles only."""

    p50_microseconds: int = Field(ge=0)
    p90_microseconds: int | None = Field(default=None, ge=0)
    p95_microseconds: int | None = Field(default=None, ge=0)
    p99_microseconds: int = Field(ge=0)
    samples: list[int] = Field(default_factory=list, max_length=SAMPLES_MAXIMUM)


class Percentiles(StatusWire):
    """A metric that is kept as percentiles only (ITL: several tokens arrive in a chunk), in microseconds."""

    p50_microseconds: int = Field(ge=0)
    p99_microseconds: int = Field(ge=0)


class AcceptanceCounters(StatusWire):
    """Differences of the engine's speculation counters over a cell. Rate = accepted / draft tokens."""

    drafts: int = Field(ge=0)
    draft_tokens: int = Field(ge=0)
    accepted_tokens: int = Field(ge=0)
    accepted_per_position: list[int] = Field(default_factory=list, max_length=16)


class CellFailure(StatusWire):
    """Why a cell has no figures, in words for people."""

    reason: str = Field(max_length=64)
    message: str = Field(max_length=2048)


class Cell(StatusWire):
    """One (concurrency, temperature) measured on one replica of one candidate."""

    concurrency: int = Field(ge=1, le=CONCURRENCY_MAXIMUM)
    temperature: Temperature
    completed: int = Field(ge=0)
    failed: int = Field(ge=0)
    duration_milliseconds: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    requests_per_second: DecimalString
    output_tokens_per_second: DecimalString
    e2e_latency: Latency | None = None
    ttft: Latency | None = None
    tpot: Latency | None = None
    itl: Percentiles | None = None
    acceptance: AcceptanceCounters | None = None
    failure: CellFailure | None = None
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None


class RunProgress(StatusWire):
    """Where the Job is: cell i of n, and an estimate of what remains."""

    cell: int = Field(ge=0)
    cells: int = Field(ge=0)
    doing: str = Field(default="", max_length=256)
    remaining_seconds: int | None = Field(default=None, ge=0)
    #: The Job's own last word: empty while it works, else Complete, Stalled, DeadlineExceeded, TargetUnreachable, ...
    outcome: str = Field(default="", max_length=64)
    message: str = Field(default="", max_length=2048)
    updated_at: Timestamp | None = None


class Provenance(StatusWire):
    """What produced the numbers. `engine` is `vllm` or `replay`; replayed figures are never a GPU's."""

    engine: str = Field(max_length=64)
    engine_version: str = Field(default="", max_length=64)
    replay_table: str = Field(default="", max_length=253)
    load_generator: str = Field(default="", max_length=128)
    instrument_version: str = Field(default="", max_length=64)
    model: str = Field(default="", max_length=253)
    started_at: Timestamp | None = None


class RunPlacement(StatusWire):
    """Where the measured server ran, as the operator saw it."""

    node: str = Field(default="", max_length=253)
    gpu_product: str = Field(default="", max_length=128)
    engine_image_id: str = Field(default="", max_length=300)


class BenchmarkRunStatus(StatusWire):
    """What was measured."""

    observed_generation: int | None = Field(default=None, description="The generation that the status speaks of.")
    conditions: list[Condition] = Field(default_factory=list, max_length=8)
    attempts: int | None = Field(default=None, ge=0, le=1000, description="Jobs started for this run.")
    placement: RunPlacement | None = None
    progress: RunProgress | None = None
    provenance: Provenance | None = None
    cells: list[Cell] = Field(default_factory=list, max_length=CELLS_MAXIMUM, description="What was measured.")
