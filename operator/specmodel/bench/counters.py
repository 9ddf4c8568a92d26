"""What an engine's /metrics says of speculation, and what changed between two readings.

Absolute counters say nothing of a cell: only differences count, summed over the engines of one server. The text is
hostile input: it is bounded, only the lines that are wanted are parsed, and what cannot be is an error, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from specmodel.api.benchmark import AcceptanceCounters

#: /metrics of one server is tens of kilobytes; several megabytes are no metrics.
TEXT_MAXIMUM_BYTES = 8 << 20
LINES_MAXIMUM = 5_000
POSITIONS_MAXIMUM = 16
COUNTER_MAXIMUM = 2**53

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"
CACHE_QUERIES = "vllm:prefix_cache_queries_total"
CACHE_HITS = "vllm:prefix_cache_hits_total"
#: When a counter or the process began: another value means another engine, even where the counters have caught up.
BIRTHS = ("process_start_time_seconds", "vllm:generation_tokens_created", "vllm:spec_decode_num_drafts_created")
COUNTERS = (
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    ACCEPTED_PER_POSITION,
    GENERATED_TOKENS,
    CACHE_QUERIES,
    CACHE_HITS,
)
_WANTED = COUNTERS + BIRTHS

#: One series: its name and its labels in order of their names.
Series = tuple[str, tuple[tuple[str, str], ...]]


class MetricsError(Exception):
    """The text is not what an engine exposes; the message says where."""


class EngineChangedError(Exception):
    """A counter went back, vanished or was born anew: another engine answered the second reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The wanted series of one reading. Empty for an engine that exposes none of them."""

    values: Mapping[Series, float] = field(default_factory=dict)


def read_counters(text: str) -> Counters:
    """Return the wanted series of a text in Prometheus' format. Raises MetricsError for one that cannot be parsed."""
    if len(text) > TEXT_MAXIMUM_BYTES:
        message = f"/metrics is longer than {TEXT_MAXIMUM_BYTES} bytes"
        raise MetricsError(message)
    lines = [line for line in text.split("\n") if line.startswith(_WANTED)]
    if len(lines) > LINES_MAXIMUM:
        message = f"/metrics repeats the wanted series {len(lines)} times"
        raise MetricsError(message)
    values: dict[Series, float] = {}
    for name, labels, value in _samples(lines):
        if name not in _WANTED:
            continue
        series = (name, tuple(sorted(labels.items())))
        if not math.isfinite(value) or not 0 <= value <= COUNTER_MAXIMUM:
            message = f"/metrics: {name} is {value}, which no counter is"
            raise MetricsError(message)
        if series in values:
            message = f"/metrics holds {name} twice with the same labels"
            raise MetricsError(message)
        values[series] = value
    return Counters(values=values)


def _samples(lines: list[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                yield sample.name, sample.labels, float(sample.value)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        message = f"/metrics cannot be parsed ({type(error).__name__}: {error})"[:300]
        raise MetricsError(message) from error


def check_same_engine(before: Counters, after: Counters) -> None:
    """Raise EngineChangedError where the second reading cannot come from the engine of the first."""
    for (name, labels), value in sorted(before.values.items()):
        shown = name + "".join(f" {key}={text}" for key, text in labels)
        later = after.values.get((name, labels))
        if later is None:
            message = f"{shown} is gone"
            raise EngineChangedError(message)
        if name in BIRTHS:
            if abs(later - value) > 1:
                message = f"{shown} went from {value:.0f} to {later:.0f}: the engine was started anew"
                raise EngineChangedError(message)
            continue
        if later < value:
            message = f"{shown} went back from {value:.0f} to {later:.0f}: the engine was started anew"
            raise EngineChangedError(message)


def acceptance(before: Counters, after: Counters) -> AcceptanceCounters | None:
    """Return what was drafted and accepted between two readings of one engine, or None where nothing says so."""
    if not any(name == DRAFTS for name, _ in after.values):
        return None
    positions: dict[int, float] = {}
    for (name, labels), value in after.values.items():
        position = dict(labels).get("position", "")
        if name == ACCEPTED_PER_POSITION and position.isdecimal() and int(position) < POSITIONS_MAXIMUM:
            gained = value - before.values.get((name, labels), 0)
            positions[int(position)] = positions.get(int(position), 0) + gained
    return AcceptanceCounters(
        drafts=difference(before, after, DRAFTS),
        draft_tokens=difference(before, after, DRAFT_TOKENS),
        accepted_tokens=difference(before, after, ACCEPTED_TOKENS),
        accepted_per_position=[round(positions.get(at, 0)) for at in range(max(positions, default=-1) + 1)],
    )


def difference(before: Counters, after: Counters, counter: str) -> int:
    """Return by how much a counter grew, summed over its series. Both readings must be of one engine."""
    gained = (value - before.values.get(series, 0) for series, value in after.values.items() if series[0] == counter)
    return max(0, round(sum(gained)))
