"""The replay engine's pace: draws that reproduce the measured distributions exactly, at any number of requests."""

import statistics
from collections import Counter
from itertools import pairwise

import pytest

from specmodel_replay import table
from specmodel_replay.pace import Acceptance, Cycle, Pace, quantiles
from specmodel_replay.table import Configuration, Level

CONFIGURATIONS = list(table.load().configurations.values())
CELLS = [
    pytest.param(configuration, level, id=f"{configuration.name}-{level.concurrency}")
    for configuration in CONFIGURATIONS
    for level in configuration.levels
]


def percentile(values: list[float], fraction: float) -> float:
    """Return a percentile, interpolated between order statistics as the client does it."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * fraction
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@pytest.mark.parametrize(("configuration", "level"), CELLS)
def test_a_cycle_of_draws_has_the_measured_mean_and_percentiles(configuration: Configuration, level: Level) -> None:
    function = quantiles(level.e2e, level.requests)
    cycle = Cycle(level, seed=0)
    values = [function.at(cycle.draw().e2e) for _ in range(level.requests)]
    assert statistics.fmean(values) == pytest.approx(level.e2e.mean, rel=0.005)
    assert percentile(values, 0.50) == pytest.approx(level.e2e.p50, rel=0.01)
    assert percentile(values, 0.90) == pytest.approx(level.e2e.p90, rel=0.01)
    assert percentile(values, 0.99) == pytest.approx(level.e2e.p99, rel=0.005)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_draw_of_a_cycle_comes_once_and_the_next_cycle_repeats_the_order(seed: int) -> None:
    level = CONFIGURATIONS[0].levels[-1]
    cycle = Cycle(level, seed)
    first = [cycle.draw() for _ in range(level.requests)]
    second = [cycle.draw() for _ in range(level.requests)]
    assert first == second
    assert len({draw.e2e for draw in first}) == len({draw.ttft for draw in first}) == level.requests


def test_the_order_depends_on_the_seed_alone() -> None:
    level = CONFIGURATIONS[0].levels[2]
    orders = [
        [cycle.draw() for _ in range(level.requests)] for cycle in (Cycle(level, 7), Cycle(level, 7), Cycle(level, 8))
    ]
    assert orders[0] == orders[1] != orders[2]


def test_every_round_of_a_cycle_spans_the_distribution() -> None:
    level = CONFIGURATIONS[0].levels[-1]
    cycle = Cycle(level, seed=0)
    for _ in range(level.requests // level.concurrency):
        fractions = sorted(cycle.draw().e2e for _ in range(level.concurrency))
        assert fractions[0] < 1 / level.concurrency
        assert fractions[-1] > 1 - 1 / level.concurrency
        assert max(later - earlier for earlier, later in pairwise(fractions)) < 2 / level.concurrency


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def test_latency_between_levels_lies_between_theirs_and_goes_on_above_the_last(configuration: Configuration) -> None:
    pace, draw = Pace(configuration), Cycle(configuration.levels[0], seed=0).draw()

    def e2e(in_flight: int) -> float:
        return pace.ttft(draw, in_flight) + pace.decode(draw, in_flight, configuration.output_tokens)

    assert e2e(8) <= e2e(12) <= e2e(16)
    assert e2e(12) == pytest.approx((e2e(8) + e2e(16)) / 2)
    assert e2e(0) == e2e(1)
    assert e2e(64) > e2e(32)


def test_the_time_after_the_first_token_grows_with_the_number_of_tokens() -> None:
    pace, draw = Pace(CONFIGURATIONS[0]), Cycle(CONFIGURATIONS[0].levels[0], seed=0).draw()
    assert pace.decode(draw, 4, 1) == 0
    assert pace.decode(draw, 4, 511) == pytest.approx(2 * pace.decode(draw, 4, 256))


@pytest.mark.parametrize("rates", [(1.0, 0.065, 0.0), (0.8, 0.5, 0.2), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)])
def test_accepted_tokens_meet_the_rate_of_every_position(rates: tuple[float, ...]) -> None:
    acceptance, steps = Acceptance(), 2000
    accepted = Counter(acceptance.step(rates) for _ in range(steps))
    for position, rate in enumerate(rates):
        reached = sum(count for tokens, count in accepted.items() if tokens > position)
        assert reached / steps == pytest.approx(rate, abs=0.002)
