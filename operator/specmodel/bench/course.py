"""In which order cells are measured, how large they are, when the rest is not worth measuring, and how long it takes.

Pure. The verdict of a cell is the operator's own code: the Job must never stop for a level that the operator would let
pass, nor go on past one that it would refuse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from specmodel.api.benchmark import Cell, CellRequest, StopRule
from specmodel.api.wire import canonical_decimal
from specmodel.domain.assessment import Verdict, judge_cell
from specmodel.domain.measurement import REQUESTS_PER_STREAM

#: A cell by which it is known: concurrency and canonical temperature.
Key = tuple[int, str]


def key_of(cell: CellRequest | Cell) -> Key:
    """Return what identifies a cell within a run."""
    return cell.concurrency, canonical_decimal(cell.temperature)


def in_order(cells: Sequence[CellRequest]) -> tuple[CellRequest, ...]:
    """Return the cells temperature by temperature as they are first named, levels ascending, each once."""
    unique = {key_of(cell): cell for cell in reversed(cells)}
    temperatures = list(dict.fromkeys(canonical_decimal(cell.temperature) for cell in cells))
    return tuple(sorted(unique.values(), key=lambda cell: (temperatures.index(key_of(cell)[1]), cell.concurrency)))


def first_size(cell: CellRequest) -> int:
    """Return with how many requests a cell begins: enough that its ramps weigh little, within its maximum."""
    return min(max(cell.min_requests, REQUESTS_PER_STREAM * cell.concurrency), cell.max_requests)


def extension(cell: CellRequest, measured: Cell, stop: StopRule) -> int:
    """Return how many requests more an undecided cell gets: as many again, within its maximum; 0 for a decided one."""
    sent = measured.completed + measured.failed
    if stop.confidence_percent == 0 or judge_cell(measured, stop).verdict is not Verdict.INCONCLUSIVE:
        return 0
    return max(0, min(sent, cell.max_requests - sent))


def needless(cells: Sequence[CellRequest], done: Mapping[Key, Cell], stop: StopRule) -> dict[Key, Key]:
    """Return the cells that need no measuring, each with the lower level of its temperature that failed."""
    failed: dict[str, int] = {}
    for (concurrency, temperature), cell in done.items():
        if judge_cell(cell, stop).verdict in (Verdict.FAILED, Verdict.VIOLATES):
            failed[temperature] = min(concurrency, failed.get(temperature, concurrency))
    keys = [key_of(cell) for cell in cells]
    return {
        (concurrency, temperature): (failed[temperature], temperature)
        for concurrency, temperature in keys
        if temperature in failed and concurrency > failed[temperature]
    }


def remaining_seconds(todo: Sequence[CellRequest], latencies: Mapping[Key, float], warmup_seconds: float) -> int | None:
    """Return an estimate for the cells in `todo`, or None while nothing is known.

    `latencies` holds the median seconds of a request for cells seen so far. A cell takes its warm-up and one such
    latency for each request of a stream; a cell unseen takes that of the level nearest to it.
    """
    if not todo:
        return 0
    if not latencies:
        return None
    total = 0.0
    for cell in todo:
        concurrency, temperature = key_of(cell)
        nearest = min(
            latencies,
            key=lambda seen: (abs(math.log2(seen[0] / concurrency)), seen[1] != temperature, seen),
        )
        total += warmup_seconds + math.ceil(first_size(cell) / concurrency) * latencies[nearest]
    return math.ceil(total)
