"""From the records of a cell's requests to the cell that is stored. Pure.

Percentiles are those of `domain.statistics`, as in `vllm bench serve`. Stored times are whole microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from specmodel.api.benchmark import (
    SAMPLES_MAXIMUM,
    AcceptanceCounters,
    Cell,
    CellFailure,
    CellRequest,
    Latency,
    Percentiles,
)
from specmodel.bench.load import RequestRecord
from specmodel.domain.statistics import percentile

ERRORS_SHOWN = 3
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that was seen of one cell: every request, the seconds under load, and the counters' differences."""

    records: Sequence[RequestRecord]
    seconds: float
    acceptance: AcceptanceCounters | None
    started_at: str
    finished_at: str


def cell_of(asked: CellRequest, measured: Measured) -> Cell:
    """Return the cell as stored. Without one completed request it is a failure with the commonest errors."""
    completed = [record for record in measured.records if not record.error]
    failed = len(measured.records) - len(completed)
    tokens = sum(record.output_tokens for record in completed)
    seconds = max(measured.seconds, 0.001)
    return Cell(
        concurrency=asked.concurrency,
        temperature=asked.temperature,
        completed=len(completed),
        failed=failed,
        duration_milliseconds=round(seconds * 1000),
        output_tokens=tokens,
        requests_per_second=_decimal(len(completed) / seconds),
        output_tokens_per_second=_decimal(tokens / seconds),
        e2e_latency=_latency([record.e2e for record in completed]),
        ttft=_latency([record.ttft for record in completed]),
        tpot=_latency([tpot for record in completed if (tpot := record.tpot) is not None]),
        itl=_percentiles([gap for record in completed for gap in record.gaps]),
        acceptance=measured.acceptance,
        failure=None if completed else _no_output(measured.records),
        started_at=measured.started_at,
        finished_at=measured.finished_at,
    )


def in_words(cell: Cell) -> str:
    """Return a cell in one line for people."""
    at = f"concurrency {cell.concurrency}, temperature {cell.temperature}"
    if cell.failure is not None:
        return f"{at}: {cell.failure.reason}: {cell.failure.message}"
    parts = [f"{cell.completed} completed", f"{float(cell.requests_per_second):.2f} req/s"]
    if cell.failed:
        parts.insert(1, f"{cell.failed} failed")
    latency = cell.e2e_latency
    if latency is not None:
        parts.append(f"E2E P50 {latency.p50_microseconds / 1000:.0f} P99 {latency.p99_microseconds / 1000:.0f} ms")
    counted = cell.acceptance
    if counted is not None and counted.draft_tokens:
        parts.append(f"{100 * counted.accepted_tokens / counted.draft_tokens:.0f} % accepted")
    return f"{at}: {', '.join(parts)}"


def errors_of(records: Sequence[RequestRecord]) -> str:
    """Return the commonest errors with their counts, or nothing."""
    counted = Counter(record.error for record in records if record.error)
    return "; ".join(f"{count} × {error}" for error, count in counted.most_common(ERRORS_SHOWN))


def _no_output(records: Sequence[RequestRecord]) -> CellFailure:
    message = f"none of {len(records)} requests was completed: {errors_of(records)}"
    return CellFailure(reason="NoOutput", message=message[:2048])


def thinned(ordered: Sequence[int]) -> list[int]:
    """Return at most SAMPLES_MAXIMUM of sorted values, evenly spaced by rank, the least and the greatest kept."""
    if len(ordered) <= SAMPLES_MAXIMUM:
        return list(ordered)
    step = (len(ordered) - 1) / (SAMPLES_MAXIMUM - 1)
    return [ordered[round(at * step)] for at in range(SAMPLES_MAXIMUM)]


def _latency(seconds: list[float]) -> Latency | None:
    if not seconds:
        return None
    samples = sorted(round(value * _MICROSECONDS) for value in seconds)
    return Latency(
        p50_microseconds=round(percentile(samples, 50)),
        p90_microseconds=round(percentile(samples, 90)),
        p95_microseconds=round(percentile(samples, 95)),
        p99_microseconds=round(percentile(samples, 99)),
        samples=thinned(samples),
    )


def _percentiles(seconds: list[float]) -> Percentiles | None:
    if not seconds:
        return None
    ordered = sorted(value * _MICROSECONDS for value in seconds)
    return Percentiles(p50_microseconds=round(percentile(ordered, 50)), p99_microseconds=round(percentile(ordered, 99)))


def _decimal(value: float) -> str:
    """Return a non-negative number as the wire's decimal string: six digits at most, no trailing zeros."""
    return f"{min(value, 999_999_999):.6f}".rstrip("0").rstrip(".")
