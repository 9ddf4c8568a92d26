"""The two pieces of statistics that the decision rests on: sample percentiles, and bounds on a rate of exceedance.

No dependency: the operator's image carries no numerical library for two functions. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_TINY = 1e-300
_TERMS_MAXIMUM = 10_000


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the sample percentile (0..100) of ascending, non-empty values, interpolated linearly between ranks.

    The definition of numpy's default, which `vllm bench serve` uses: rank = percent / 100 x (n - 1). An infinite value
    (a request that never ended) makes every percentile that touches it infinite.
    """
    return at_rank(ordered, percent * (len(ordered) - 1) / 100)


def at_rank(ordered: Sequence[float], rank: float) -> float:
    """Return the value at a rank from 0 to n - 1, interpolated linearly between its neighbours."""
    low = math.floor(rank)
    part = rank - low
    if part == 0:
        return ordered[low]
    if math.isinf(ordered[low + 1]):
        return math.inf
    return ordered[low] + (ordered[low + 1] - ordered[low]) * part


def upper_bound(exceeding: int, total: int, confidence: float) -> float:
    """Return the one-sided Clopper-Pearson upper bound on a rate, given `exceeding` of `total` and 0 < confidence < 1.

    The largest rate at which seeing so few is still as likely as 1 - confidence: the quantile `confidence` of
    Beta(x + 1, n - x). 1 when all exceed or nothing was seen. Source: Clopper and Pearson, Biometrika 26 (1934).
    """
    if exceeding >= total:
        return 1.0
    return _beta_quantile(confidence, exceeding + 1, total - exceeding)


def lower_bound(exceeding: int, total: int, confidence: float) -> float:
    """Return the one-sided Clopper-Pearson lower bound on a rate: the quantile 1 - confidence of Beta(x, n - x + 1)."""
    if exceeding <= 0:
        return 0.0
    return _beta_quantile(1 - confidence, exceeding, total - exceeding + 1)


def regularised_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b), the regularised incomplete beta function, for 0 <= x <= 1 and a, b > 0.

    By the continued fraction of DLMF 8.17.22, evaluated with Lentz's method on the side where it converges fast.
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - regularised_beta(1 - x, b, a)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d1/(1 + d2/(1 + ...)) with the coefficients of DLMF 8.17.23."""
    value, numerator, denominator = 1.0, 1.0, 0.0
    for term in range(1, _TERMS_MAXIMUM):
        m = term // 2
        if term % 2:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / (1 + coefficient * denominator or _TINY)
        numerator = 1 + coefficient / numerator or _TINY
        step = numerator * denominator
        value *= step
        if abs(step - 1) < 1e-15:
            break
    return value


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """Return x with I_x(a, b) = probability, by bisection to the resolution of a float."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if regularised_beta(middle, a, b) < probability:
            low = middle
        else:
            high = middle
