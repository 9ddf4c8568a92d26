"""What is pinned agrees with what is asked for, and every command of the Makefile is told and starts."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from specmodel.api.conditions import REASONS, RUN_REASONS

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
ASKED = sorted(REQUIREMENTS.glob("*.in"))
SCRIPTS = [*sorted((ROOT / "tools").glob("*.sh")), ROOT / ".ci" / "run"]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def lines_of(path: Path) -> list[Requirement]:
    """Return the requirements of a file that people write or that uv wrote, without what it includes."""
    text = path.read_text(encoding="utf-8").replace(" \\\n", " ")
    found = [line.partition("#")[0].partition(" --hash")[0].strip() for line in text.splitlines()]
    return [Requirement(line) for line in found if line and not line.startswith("-")]


def pins(path: Path) -> dict[str, str]:
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in lines_of(path)}


def is_pinned(asked: Requirement, resolved: dict[str, str]) -> bool:
    version = resolved.get(canonicalize_name(asked.name))
    return version is not None and version in asked.specifier


@pytest.mark.parametrize("asked", ASKED, ids=lambda path: path.name)
def test_every_asked_requirement_is_pinned_as_asked(asked: Path) -> None:
    resolved = pins(asked.with_suffix(".txt"))
    wrong = [str(each) for each in lines_of(asked) if not is_pinned(each, resolved)]
    assert wrong == [], f"run `make requirements`: {asked.with_suffix('.txt').name} does not hold these"


def test_one_package_has_one_version_wherever_it_is_pinned() -> None:
    versions: dict[str, set[str]] = {}
    for asked in ASKED:
        for name, version in pins(asked.with_suffix(".txt")).items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_operators_pins_are_within_what_the_package_accepts() -> None:
    resolved = pins(REQUIREMENTS / "operator.txt")
    accepted = [Requirement(each) for each in project()["project"]["dependencies"]]
    assert [str(each) for each in accepted if not is_pinned(each, resolved)] == []


def test_the_operator_carries_neither_an_engine_nor_a_numerics_library() -> None:
    assert not {"vllm", "torch", "scipy", "numpy"} & set(pins(REQUIREMENTS / "operator.txt"))
    assert "vllm" in project()["project"]["optional-dependencies"]


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    stated = project()["project"]["version"]
    package = (ROOT / "operator" / "specmodel" / "__init__.py").read_text(encoding="utf-8")
    assert re.findall(r'^__version__ = "(.+)"$', package, flags=re.MULTILINE) == [stated]


def test_every_lint_waiver_has_a_reason() -> None:
    lint = (
        (ROOT / "pyproject.toml")
        .read_text(encoding="utf-8")
        .partition("[tool.ruff.lint]")[2]
        .partition("[tool.mypy]")[0]
    )
    waivers = [
        line for line in lint.splitlines() if re.match(r'\s*"[A-Z]+\d*",', line) or re.search(r'= \[".*\]', line)
    ]
    assert len(waivers) > 10
    assert [line for line in waivers if "select" not in line and "#" not in line] == []


def test_every_command_of_the_makefile_is_told_by_make_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))
    phony = set(re.search(r"^\.PHONY:(.*)$", makefile, flags=re.MULTILINE)[1].split())  # type: ignore[index]
    told = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert targets == phony
    assert {line.split()[1] for line in told.splitlines()} == targets


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_parses_and_stops_at_the_first_error(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)
    text = script.read_text(encoding="utf-8")
    assert not text.startswith("#!") or (os.access(script, os.X_OK) and "\nset -euo pipefail\n" in text)


def test_every_reason_is_documented() -> None:
    document = (ROOT / "docs" / "conditions.md").read_text(encoding="utf-8")
    assert [name for name in (*REASONS, *RUN_REASONS) if f"`{name}`" not in document] == []
