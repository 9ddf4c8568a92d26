"""How long a request takes: stratified quantiles of the measured distributions, interpolated between concurrencies.

Pure: no clock, no input or output. Independent random draws would need hundreds of requests to show a P99;
here the draws of one level are a fixed set of evenly spaced quantiles (a *cycle*, as long as the measured
cell had requests), dealt in a seeded order, so that any dozen requests already show the whole distribution.

Order within a cycle: it is dealt in rounds of `concurrency` draws, each of which spans the distribution. In a
closed loop whoever finishes first asks first again. Every second round is therefore dealt longest first,
which makes up for the spread of the round before it: in a real engine too the requests share each step and so
cannot drift apart.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specmodel_replay.table import Configuration, Distribution, Level

_UPPER: Final = (0.5, 0.9, 0.95, 0.99, 1.0)
# An unmeasured lower end is never taken to lie below this share of the median.
_LOWEST_P0: Final = 0.25
# At least this share of a request's end-to-end latency is left for its tokens after the first.
_LEAST_DECODE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A piecewise linear quantile function, in milliseconds, whose mean over a cycle is the measured mean."""

    fractions: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, fraction: float) -> float:
        """Return the latency in milliseconds that this fraction of requests stays at or below."""
        right = min(max(bisect_left(self.fractions, fraction), 1), len(self.fractions) - 1)
        low, high = self.fractions[right - 1], self.fractions[right]
        weight = (fraction - low) / (high - low)
        return self.values[right - 1] + weight * (self.values[right] - self.values[right - 1])


def quantiles(distribution: Distribution, requests: int) -> Quantiles:
    """Return the quantile function of a measured distribution of `requests` requests.

    The upper end, where it was not measured, continues the slope from p95 to p99: with a dozen requests that
    is exactly what the measured percentiles (interpolated linearly between order statistics) imply. The lower
    end, where it was not measured, is the one that gives the cycle the measured mean.
    """
    top = distribution.p100 or distribution.p99 + (distribution.p99 - distribution.p95) / 4
    upper = (distribution.p50, distribution.p90, distribution.p95, distribution.p99, top)
    if distribution.p0 is not None:
        return Quantiles((0.0, *_UPPER), (distribution.p0, *upper))
    # The mean over a cycle is linear in the value at any one fraction: solve for the lower end ...
    solved = _solve(Quantiles((0.0, *_UPPER), (0.0, *upper)), 0, distribution.mean, requests)
    floor = _LOWEST_P0 * distribution.p50
    if solved >= floor:
        return Quantiles((0.0, *_UPPER), (min(solved, distribution.p50), *upper))
    # ... or, where that end would come too low, keep it at its floor and solve for the lower quartile.
    fractions = (0.0, 0.25, *_UPPER)
    quartile = _solve(Quantiles(fractions, (floor, 0.0, *upper)), 1, distribution.mean, requests)
    return Quantiles(fractions, (floor, min(max(quartile, floor), distribution.p50), *upper))


def _solve(function: Quantiles, node: int, mean: float, requests: int) -> float:
    """Return the value at `node`, 0 in `function`, that makes the mean over the strata of a cycle equal `mean`."""
    strata = [index / (requests - 1) for index in range(requests)]
    unit = Quantiles(function.fractions, tuple(float(index == node) for index in range(len(function.fractions))))
    missing = mean * requests - sum(function.at(stratum) for stratum in strata)
    return missing / sum(unit.at(stratum) for stratum in strata)


@dataclass(frozen=True, slots=True)
class Draw:
    """The place of one request in the distributions of end-to-end latency and time to first token, as fractions."""

    e2e: float
    ttft: float


class Cycle:
    """The draws of one level, dealt over and over in one seeded order."""

    def __init__(self, level: Level, seed: int) -> None:
        self._draws = _deal(level, random.Random(f"{seed}/{level.concurrency}"))  # noqa: S311 - reproducible, not secret
        self._next = 0

    def restart(self) -> None:
        """Begin again with the first draw; for a load that starts after silence."""
        self._next = 0

    def draw(self) -> Draw:
        """Return the next draw."""
        result = self._draws[self._next]
        self._next = (self._next + 1) % len(self._draws)
        return result


def _deal(level: Level, order: random.Random) -> Sequence[Draw]:
    strata = [index / (level.requests - 1) for index in range(level.requests)]
    rounds = max(1, level.requests // level.concurrency)
    dealt: list[Draw] = []
    for index, start in enumerate(order.sample(range(rounds), rounds)):
        spans, first_tokens = strata[start::rounds], strata[start::rounds]
        order.shuffle(spans)
        order.shuffle(first_tokens)
        if index % 2:
            spans.sort(reverse=True)
        dealt.extend(Draw(e2e, ttft) for e2e, ttft in zip(spans, first_tokens, strict=True))
    if level.concurrency == 1:
        order.shuffle(dealt)
    return dealt


class Pace:
    """What the table says about one configuration: latencies for a draw at any number of requests in flight."""

    def __init__(self, configuration: Configuration) -> None:
        self._output_tokens = configuration.output_tokens
        self._levels = configuration.levels
        self._e2e = [quantiles(level.e2e, level.requests) for level in configuration.levels]
        self._ttft = [quantiles(level.ttft, level.requests) for level in configuration.levels]

    def nearest(self, in_flight: int) -> Level:
        """Return the measured level nearest to a number of requests in flight (the higher one of two equally near)."""
        return min(self._levels, key=lambda level: (abs(level.concurrency - in_flight), -level.concurrency))

    def ttft(self, draw: Draw, in_flight: int) -> float:
        """Return the time to first token in seconds."""
        return self._between(self._ttft, draw.ttft, in_flight)

    def decode(self, draw: Draw, in_flight: int, tokens: int) -> float:
        """Return the time in seconds from the first to the last of `tokens` tokens."""
        measured = self._between(self._e2e, draw.e2e, in_flight)
        decode = max(measured - self.ttft(draw, in_flight), _LEAST_DECODE_SHARE * measured)
        return decode * (tokens - 1) / (self._output_tokens - 1)

    def least_ttft(self, in_flight: int) -> float:
        """Return the shortest time to first token at this load, in seconds."""
        return self._between(self._ttft, 0.0, in_flight)

    def acceptance(self, in_flight: int) -> tuple[float, ...]:
        """Return the acceptance per draft position at the nearest measured level; empty without speculation."""
        return self.nearest(in_flight).acceptance

    def _between(self, functions: Sequence[Quantiles], fraction: float, in_flight: int) -> float:
        """Interpolate between levels; above the highest one the last slope goes on, below the lowest it is flat."""
        concurrencies = [level.concurrency for level in self._levels]
        if len(functions) == 1 or in_flight <= concurrencies[0]:
            return functions[0].at(fraction) / 1000
        right = min(bisect_left(concurrencies, in_flight), len(concurrencies) - 1)
        low, high = concurrencies[right - 1], concurrencies[right]
        below, above = functions[right - 1].at(fraction), functions[right].at(fraction)
        return max(below + (above - below) * (in_flight - low) / (high - low), min(below, above)) / 1000


class Acceptance:
    """Deals how many draft tokens each step accepts, so that the counters follow the table without drifting.

    One low-discrepancy sequence for the whole engine: position p is accepted where the step's number lies
    below the rate of p, hence a token is accepted only when all before it are, and every position meets its
    own rate.
    """

    _STEP: Final = 0.6180339887498949  # the golden ratio's fraction: the most even of all such sequences

    def __init__(self) -> None:
        self._place = 0.5

    def step(self, rates: Sequence[float]) -> int:
        """Return the number of accepted draft tokens of the next step."""
        self._place = (self._place + self._STEP) % 1.0
        return sum(self._place < rate for rate in rates)
