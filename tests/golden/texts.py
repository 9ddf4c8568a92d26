"""Compare with a golden file, or write it anew where the environment says so."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
HEADER = "# Written by `SPECMODEL_GOLDEN=write pytest tests/golden`: read it before it is committed.\n"


def assert_golden(name: str, text: str) -> None:
    """Assert that the golden file of that name holds the text."""
    path = HERE / name
    if os.environ.get("SPECMODEL_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEADER + text, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing: SPECMODEL_GOLDEN=write pytest tests/golden"
    assert HEADER + text == path.read_text(encoding="utf-8")
