"""What the import contracts cannot say: pure layers read no clock, and every reason in use is documented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specmodel.api.conditions import REASONS, RUN_REASONS

SOURCE = Path(__file__).resolve().parents[2] / "operator" / "specmodel"
IMPURE = {"asyncio", "logging", "os", "time", "random", "socket", "subprocess"}
PURE = [
    *(SOURCE / "api").rglob("*.py"),
    *(SOURCE / "domain").rglob("*.py"),
    *(SOURCE / "manifests").rglob("*.py"),
    SOURCE / "reconcile" / "plan.py",
    SOURCE / "reconcile" / "report.py",
    SOURCE / "reconcile" / "summary.py",
]


def imports_of(path: Path) -> Iterator[str]:
    """Yield the top-level name of everything that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_pure_layers_read_no_clock_and_talk_to_nobody(path: Path) -> None:
    assert set(imports_of(path)) & IMPURE == set()


@pytest.mark.parametrize(("package", "owners"), [("kopf", {"app"}), ("kubernetes", {"cluster"})])
def test_each_foreign_client_has_one_home(package: str, owners: set[str]) -> None:
    users = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py") if package in set(imports_of(path))}
    assert users <= owners


def test_every_module_opens_with_why_it_exists() -> None:
    silent = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_every_reason_says_what_it_means_and_what_to_do() -> None:
    for reason in (*REASONS.values(), *RUN_REASONS.values()):
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", reason.name), reason
        assert reason.meaning.endswith("."), reason
        assert reason.what_to_do.endswith("."), reason
