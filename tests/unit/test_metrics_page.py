"""docs/metrics.md lists the metrics that there are, in their own words."""

from __future__ import annotations

from pathlib import Path

from specmodel.app.metrics import METRICS, Metric

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_has_one_row_for_each_metric_and_no_other() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `specmodel_")]
    assert rows == [row_of(metric) for metric in METRICS]


def row_of(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |"
