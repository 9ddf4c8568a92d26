"""Percentiles and bounds against closed forms and against the numbers that the rule names."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.domain.statistics import lower_bound, percentile, regularised_beta, upper_bound


def test_a_percentile_lies_between_ranks_as_numpy_puts_it() -> None:
    # What numpy gives for the same five percentiles.
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, p) for p in (0, 25, 50, 90, 100)] == pytest.approx([1.0, 1.75, 2.5, 3.7, 4.0])
    assert percentile([7.0], 99) == 7.0


def test_a_percentile_that_touches_a_request_without_end_is_infinite() -> None:
    values = [*(float(i) for i in range(99)), math.inf]
    assert percentile(values, 99) == math.inf
    assert percentile(values, 50) == 49.5


@pytest.mark.parametrize(("exceeding", "enough"), [(0, 230), (1, 388)])
def test_a_p99_at_90_percent_needs_the_samples_that_the_rule_names(exceeding: int, enough: int) -> None:
    assert upper_bound(exceeding, enough, 0.9) <= 0.01
    assert upper_bound(exceeding, enough - 1, 0.9) > 0.01


@pytest.mark.parametrize("n", [1, 2, 10, 100, 600])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_bounds_of_none_and_of_all_are_the_closed_forms(n: int, confidence: float) -> None:
    assert upper_bound(0, n, confidence) == pytest.approx(1 - (1 - confidence) ** (1 / n), abs=1e-12)
    assert lower_bound(n, n, confidence) == pytest.approx((1 - confidence) ** (1 / n), abs=1e-12)
    assert lower_bound(0, n, confidence) == 0
    assert upper_bound(n, n, confidence) == 1


@settings(derandomize=True, max_examples=40, deadline=None)
@given(n=st.integers(1, 300), data=st.data(), confidence=st.integers(1, 99))
def test_at_a_bound_the_binomial_tail_is_what_the_confidence_leaves(
    n: int, data: st.DataObject, confidence: int
) -> None:
    x = data.draw(st.integers(0, n - 1))
    rate = upper_bound(x, n, confidence / 100)
    tail = math.fsum(math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(x + 1))
    assert tail == pytest.approx(1 - confidence / 100, abs=1e-9)
    assert lower_bound(x, n, confidence / 100) <= rate or confidence < 50


def test_the_beta_function_is_a_polynomial_for_whole_numbers() -> None:
    for x in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert regularised_beta(x, 2, 3) == pytest.approx(6 * x**2 - 8 * x**3 + 3 * x**4, abs=1e-14)
