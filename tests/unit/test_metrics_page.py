"""docs/metrics.md lists the metrics that there are, in their own words."""

from __future__ import annotations

from pathlib import Path

from specmodel.app.metrics import METRICS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_has_one_row_for_each_metric_and_no_other() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `specmodel_")]
    assert rows == [
        f"| `{metric.name}` | {metric.type} | {', '.join(f'`{name}`' for name in metric.labels) or '–'} | {metric.help} |"
        for metric in METRICS
    ]
