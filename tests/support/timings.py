"""What an engine's command line would measure: a small table after the H200 figures, for the scripted cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specmodel.api.benchmark import AcceptanceCounters, Cell, CellRequest, Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One cell: req/s and end-to-end latencies."""

    requests_per_second: float
    p50_milliseconds: float
    p99_milliseconds: float


#: (GPUs, γ, weights) -> concurrency -> (req/s, P50 ms, P99 ms); rounded from real measurements of an 8B model.
TABLE: dict[tuple[int, int, str], dict[int, tuple[float, float, float]]] = {
    (1, 0, "None"): {1: (0.6, 1650, 1700), 8: (4.3, 1800, 1950), 32: (12.4, 2450, 2700)},
    (1, 3, "None"): {1: (1.1, 880, 980), 8: (7.5, 980, 1150), 32: (17.2, 1850, 2386)},
    (2, 0, "None"): {1: (1.0, 980, 1000), 8: (7.3, 1080, 1150), 32: (20.1, 1560, 1624)},
    (2, 3, "None"): {1: (1.7, 570, 682), 8: (11.5, 690, 860), 32: (25.6, 1210, 1500)},
    (1, 0, "FP8"): {1: (0.9, 1100, 1120), 8: (6.2, 1250, 1350), 32: (15.9, 1950, 2100)},
    (1, 3, "FP8"): {1: (1.5, 650, 760), 8: (10.1, 770, 900), 32: (22.3, 1400, 1738)},
}


def shape_of(arguments: list[str]) -> tuple[int, int, str]:
    """Return (GPUs, γ, weights) of a command line."""
    gpus = int(arguments[arguments.index("--tensor-parallel-size") + 1])
    gamma = 0
    if "--speculative-config" in arguments:
        gamma = json.loads(arguments[arguments.index("--speculative-config") + 1])["num_speculative_tokens"]
    return gpus, gamma, "FP8" if "--quantization" in arguments else "None"


def timing_of(arguments: list[str], concurrency: int) -> Timing:
    """Return what one cell measures."""
    rate, median, tail = TABLE[shape_of(arguments)][concurrency]
    return Timing(requests_per_second=rate, p50_milliseconds=median, p99_milliseconds=tail)


def cell_of(request: CellRequest, timing: Timing, accepts: float) -> dict[str, Any]:
    """Return a whole cell in wire form: a few of its samples lie at the P99, the rest at the median."""
    count = request.min_requests
    output = 256
    drafts = output * count // 2
    cell = Cell(
        concurrency=request.concurrency,
        temperature=request.temperature,
        completed=count,
        failed=0,
        duration_milliseconds=int(1000 * count / timing.requests_per_second),
        output_tokens=output * count,
        requests_per_second=f"{timing.requests_per_second:.3f}",
        output_tokens_per_second=f"{timing.requests_per_second * output:.2f}",
        e2e_latency=_latency(timing, count, 1.0),
        ttft=_latency(timing, count, 0.1),
        tpot=_latency(timing, count, 0.9 / (output - 1)),
        acceptance=AcceptanceCounters(
            drafts=drafts,
            draft_tokens=3 * drafts,
            accepted_tokens=int(3 * drafts * accepts),
            accepted_per_position=[int(drafts * accepts)] * 3,
        ),
    )
    return cell.to_wire()


def _latency(timing: Timing, count: int, factor: float) -> Latency:
    median, high = (int(value * 1000 * factor) for value in (timing.p50_milliseconds, timing.p99_milliseconds))
    tail = max(2, -(-count * 3 // 200) + 1)
    return Latency(
        p50_microseconds=median,
        p90_microseconds=median,
        p95_microseconds=median,
        p99_microseconds=high,
        samples=([median] * (count - tail) + [high] * tail)[:600],
    )
