"""Marks what needs a cluster, so that `pytest -m "not cluster"` is everything that runs anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test under tests/e2e with `cluster`."""
    for item in items:
        if "e2e" in Path(item.path).parts:
            item.add_marker(pytest.mark.cluster)
