"""The verdict of one cell under a run's stop rule."""

from __future__ import annotations

from specmodel.api.benchmark import Cell, Metric, StopRule
from specmodel.bench.figures import percentile
from specmodel.domain.assessment import Verdict


def judge_cell(cell: Cell, stop: StopRule) -> Verdict:
    """Return the verdict of a cell."""
    if cell.failure is not None:
        return Verdict.FAILED
    if cell.failed * 100 > float(stop.max_error_rate_percent) * (cell.completed + cell.failed):
        return Verdict.VIOLATES
    for limit in stop.limits:
        latency = {Metric.E2E_LATENCY: cell.e2e_latency, Metric.TTFT: cell.ttft, Metric.TPOT: cell.tpot}[limit.metric]
        if latency is None or percentile(latency.samples, limit.percentile) > limit.max_milliseconds * 1000:
            return Verdict.VIOLATES
    return Verdict.ELIGIBLE
