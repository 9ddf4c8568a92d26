"""`BenchmarkRun` (short `bench`): what is measured, and what was.

The spec is immutable: a run that needs more cells is another run. In the status the Job owns `cells`, `progress` and
`provenance`; the operator owns `conditions`, `attempts`, `placement` and `observedGeneration`, and treats cells as
hostile input.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from specmodel.api.conditions import Condition
from specmodel.api.wire import DecimalString, StatusWire, Timestamp, Wire

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

    metric: Metric
    percentile: int = Field(ge=1, le=99)
    max_milliseconds: int = Field(ge=1, le=3_600_000)


class SyntheticDataset(Wire):
    """Random prompts of a fixed length: honest for speed and memory, meaningless for a real drafter's acceptance."""

    input_tokens: int = Field(default=1024, ge=1, le=131_072)
    output_tokens: int = Field(default=256, ge=2, le=16_384)


class ConfigMapKey(Wire):
    """One key of a ConfigMap in the same namespace."""

    name: str = Field(min_length=1, max_length=253)
    key: str = Field(min_length=1, max_length=253)


class PromptDataset(Wire):
    """Real prompts: a ConfigMap key of JSON lines, each `{"prompt": "..."}` or `{"messages": [...]}`."""

    config_map_ref: ConfigMapKey
    output_tokens: int = Field(default=256, ge=2, le=16_384)


class Dataset(Wire):
    """Exactly one of `synthetic` and `prompts`."""

    synthetic: SyntheticDataset | None = None
    prompts: PromptDataset | None = None


class CellRequest(Wire):
    """One cell to measure: how many streams, at which temperature, with how many requests at least and at most."""

    concurrency: int = Field(ge=1, le=CONCURRENCY_MAXIMUM)
    temperature: Temperature
    min_requests: int = Field(ge=1, le=6 * CONCURRENCY_MAXIMUM)
    max_requests: int = Field(ge=1, le=6 * CONCURRENCY_MAXIMUM)


class StopRule(Wire):
    """When more load would be wasted: a level that fails ends its temperature, an undecided cell is extended."""

    limits: list[Limit] = Field(default_factory=list, max_length=16)
    confidence_percent: int = Field(default=0, ge=0, le=99)
    max_error_rate_percent: DecimalString = "0.5"


class Target(Wire):
    """The one server that a run loads. `url` has no path: `/v1/...` and `/metrics` are appended."""

    url: str = Field(pattern=r"^https?://[^/\s]+$", max_length=300)
    model: str = Field(min_length=1, max_length=253, description="The served model name; listed by /v1/models.")


class MeasuredCandidate(Wire):
    """What serves behind the target, for people and for `specmodel decide`; absent for a foreign endpoint."""

    digest: str = Field(max_length=64)
    gpus_per_replica: int = Field(ge=1, le=16)
    speculative_tokens: int = Field(ge=0, le=16)
    weights: str = Field(max_length=16)


class BenchmarkRunSpec(Wire):
    """What to measure. Immutable."""

    target: Target
    candidate: MeasuredCandidate | None = None
    dataset: Dataset = Field(default_factory=lambda: Dataset(synthetic=SyntheticDataset()))
    dataset_digest: str | None = Field(default=None, max_length=64)
    cells: list[CellRequest] = Field(min_length=1, max_length=CELLS_MAXIMUM)
    stop: StopRule = Field(default_factory=StopRule)
    seed: int = Field(default=0, ge=0, le=2_147_483_647)
    warmup_seconds: int = Field(default=2, ge=0, le=600)
    stall_seconds: int = Field(default=120, ge=10, le=3600)
    deadline_seconds: int = Field(default=7200, ge=60, le=86_400)


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

    observed_generation: int | None = None
    conditions: list[Condition] = Field(default_factory=list, max_length=8)
    attempts: int | None = Field(default=None, ge=0, le=1000)
    placement: RunPlacement | None = None
    progress: RunProgress | None = None
    provenance: Provenance | None = None
    cells: list[Cell] = Field(default_factory=list, max_length=CELLS_MAXIMUM)
