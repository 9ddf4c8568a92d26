"""Models, cells and measurements for tests of the decision, and the measured H200 table as measurements."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from specmodel.api.benchmark import AcceptanceCounters, Cell, CellFailure, Latency
from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec
from specmodel.cli.results import read_results
from specmodel.domain.candidate import Candidate, enumerate_candidates
from specmodel.domain.decision import Decision, decide_model
from specmodel.domain.engine import resolve_engine
from specmodel.domain.measurement import Measurement
from specmodel.domain.settings import Settings
from specmodel.domain.statistics import percentile

DATA = Path(__file__).parents[1] / "data"
H200 = DATA / "h200-llama-8b"
H200_SAMPLES = DATA / "h200-llama-8b-samples"

Json = dict[str, Any]


def limit(milliseconds: int, *, percent: int = 99, metric: str = "E2ELatency") -> Json:
    """Return one line of an SLA."""
    return {"metric": metric, "percentile": percent, "maxMilliseconds": milliseconds}


def model_of(*limits: Json, confidence: int = 0, **changes: Json) -> SpeculativeModel:
    """Return a model with γ 0 and 3 on 1 and 2 GPUs; `changes` replaces members of the spec."""
    spec: Json = {
        "model": {"uri": "hf://example/target"},
        "drafter": {"uri": "hf://example/drafter", "speculativeTokens": [3]},
        "sla": {"confidencePercent": confidence, "limits": list(limits)},
        **changes,
    }
    return SpeculativeModel(name="agent", namespace="shop", spec=SpeculativeModelSpec.model_validate(spec))


def candidates_of(model: SpeculativeModel) -> tuple[Candidate, ...]:
    """Return what the model's spec enumerates."""
    return enumerate_candidates(model, resolve_engine(model, None, Settings()), Settings())


def candidate_of(model: SpeculativeModel, gpus: int, gamma: int, weights: str = "None") -> Candidate:
    """Return one candidate by its shape."""
    shapes = {(c.shape.gpus_per_replica, c.shape.speculative_tokens, c.shape.weights): c for c in candidates_of(model)}
    return shapes[gpus, gamma, weights]


def h200(model: SpeculativeModel, folder: Path = H200) -> dict[str, Measurement]:
    """Return the measured table as measurements of the model's candidates."""
    return dict(read_results(folder, model, candidates_of(model)).measurements)


def decide_h200(model: SpeculativeModel, incumbent: Candidate | None = None, folder: Path = H200) -> Decision:
    """Return the decision on the measured table."""
    return decide_model(model, candidates_of(model), h200(model, folder), incumbent)


def shape_of(candidate: Candidate | None) -> tuple[int, int, str] | None:
    """Return (GPUs per replica, γ, weights)."""
    if candidate is None:
        return None
    return candidate.gpus_per_replica, candidate.speculative_tokens, candidate.weights


def latency(samples: Iterable[float]) -> Latency:
    """Return a latency from samples in milliseconds."""
    ordered = sorted(round(value * 1000) for value in samples)
    return Latency(
        p50_microseconds=round(percentile(ordered, 50)),
        p90_microseconds=round(percentile(ordered, 90)),
        p95_microseconds=round(percentile(ordered, 95)),
        p99_microseconds=round(percentile(ordered, 99)),
        samples=ordered,
    )


def cell(  # noqa: PLR0913 — each is a part of a cell that some test varies
    concurrency: int = 1,
    samples: Sequence[float] = (100.0,) * 50,
    *,
    rate: float = 10.0,
    failed: int = 0,
    temperature: str = "0",
    gamma: int = 0,
    **changes: Any,
) -> Cell:
    """Return a plausible cell whose E2E latencies are `samples`, in milliseconds."""
    n = len(samples)
    drafts = 100 * n
    made = Cell(
        concurrency=concurrency,
        temperature=temperature,
        completed=n,
        failed=failed,
        duration_milliseconds=max(1, round(1000 * n / rate)),
        output_tokens=256 * n,
        requests_per_second=f"{rate:.4f}",
        output_tokens_per_second=f"{256 * rate:.4f}",
        e2e_latency=latency(samples),
        ttft=latency([value / 10 for value in samples]),
        tpot=latency([value / 300 for value in samples]),
        acceptance=AcceptanceCounters(drafts=drafts, draft_tokens=gamma * drafts, accepted_tokens=drafts)
        if gamma
        else None,
    )
    return made.model_copy(update=changes)


def failed_cell(concurrency: int, reason: str, message: str = "it broke") -> Cell:
    """Return a cell that has no figures."""
    return cell(concurrency).model_copy(update={"failure": CellFailure(reason=reason, message=message)})


def measured(candidate: Candidate, *cells: Cell, **changes: Any) -> Measurement:
    """Return a measurement of a candidate."""
    return Measurement(candidate=candidate.digest, cells=cells, **{"engine": "vllm", **changes})


def everywhere(
    candidate: Candidate, milliseconds: float, rate: float, levels: Sequence[int] = (1, 4, 8, 16, 32), n: int = 300
) -> Measurement:
    """Return a measurement with the same latency at every level and a rate at the highest one."""
    gamma = candidate.speculative_tokens
    return measured(
        candidate, *(cell(level, (milliseconds,) * n, rate=rate * level / max(levels), gamma=gamma) for level in levels)
    )


def raw_result(**changes: Any) -> Json:
    """Return one raw result of the measured table (1 GPU, γ=3, concurrency 1), changed."""
    results: list[Json] = json.loads((H200 / "bf16-tp1-g3.json").read_text())
    return {**results[0], **changes}
