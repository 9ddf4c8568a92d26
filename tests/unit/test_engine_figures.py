"""What `make engine` ends with, and the drafters that it makes faulty."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import engine

ROOT = Path(__file__).resolve().parents[2]
RESULTS = """<testsuites><testsuite>
<testcase name="a"><properties><property name="candidates" value="2"/><property name="acceptance" value="78"/>
<property name="sent" value="1485"/><property name="lost" value="0"/></properties></testcase>
<testcase name="b"><properties><property name="candidates" value="2"/></properties></testcase>
</testsuite></testsuites>"""


def last_line(code: int, results: Path) -> str:
    program = [sys.executable, str(ROOT / "tools" / "engine_figures.py"), str(code), "125", str(results)]
    return subprocess.run(program, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def test_the_last_line_sums_what_the_scenarios_noted(tmp_path: Path) -> None:
    results = tmp_path / "engine.xml"
    results.write_text(RESULTS, encoding="utf-8")
    assert last_line(0, results) == (
        "engine: good: 4 candidates of a real vLLM in 2 scenarios, acceptance 78 %, "
        "1485 requests sent over a promotion, 0 lost, 2:05 min"
    )
    assert last_line(1, results).startswith("engine: FAILED (1): 4 candidates")


def test_a_run_that_came_to_no_scenario_says_so(tmp_path: Path) -> None:
    assert last_line(1, tmp_path / "none.xml") == "engine: FAILED (1): no scenario ran (2:05 min)"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    engine.lay_out(folder)
    return folder


def positions(folder: Path) -> int:
    value: int = json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    return value


def test_the_short_drafter_differs_from_the_good_one_in_its_positions_alone(pair: Path) -> None:
    assert (positions(pair / "eagle3"), positions(pair / engine.SHORT)) == (2048, 32)
    good, short = ((pair / name / "model.safetensors").read_bytes() for name in ("eagle3", engine.SHORT))
    assert good == short


def test_the_wild_drafter_differs_from_the_good_one_in_the_values_of_one_tensor_alone(pair: Path) -> None:
    good, wild = ((pair / name / "model.safetensors").read_bytes() for name in ("eagle3", engine.WILD))
    changed = [at for at, (one, other) in enumerate(zip(good, wild, strict=True)) if one != other]
    assert 0 < max(changed) - min(changed) < 256 * 8


def test_any_user_may_read_the_weights(pair: Path) -> None:
    assert all(path.stat().st_mode & 0o004 for path in pair.rglob("*"))
