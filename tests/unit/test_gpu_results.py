"""The recorded GPU runs: what they claim is what their raw files say, and the decision on them follows the rule."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from specmodel.cli.manifest import read_model
from specmodel.cli.results import read_results
from specmodel.domain.candidate import Shape, enumerate_candidates
from specmodel.domain.decision import Decision, decide_model
from specmodel.domain.engine import resolve_engine
from specmodel.domain.settings import Settings
from specmodel.domain.statistics import percentile

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "h200-2026-11-30"
RUNS = sorted((RESULTS / "runs").glob("*.json"))
SHAPES = ROOT / "benchmarks" / "gpu" / "make_models.py"
NVIDIA_SMI = """0, NVIDIA H200, 143771, 580.159.04, GPU-0, [N/A]
1, NVIDIA H200, 143771, 580.159.04, GPU-1, [N/A]"""
METRICS = {"e2ELatency": "e2e_us", "ttft": "ttft_us"}


def cells_of(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a run's file."""
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["status"]["cells"]
    return cells


def requests_of(path: Path) -> dict[int, list[dict[str, Any]]]:
    """Return a run's requests by concurrency, in the order in which they ended."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in (RESULTS / "requests" / f"{path.stem}.jsonl").read_text(encoding="utf-8").splitlines():
        request = json.loads(line)
        found[request["concurrency"]].append(request)
    return found


def decision(manifest: str) -> Decision:
    """Return what is decided of the recorded runs for a manifest."""
    model = read_model(RESULTS / manifest)
    candidates = enumerate_candidates(model, resolve_engine(model, None, Settings()), Settings())
    return decide_model(model, candidates, read_results(RESULTS / "runs", model, candidates).measurements, None)


def test_ten_configurations_were_measured_at_five_levels_without_a_failed_request() -> None:
    assert len(RUNS) == 10
    for path in RUNS:
        assert [cell["concurrency"] for cell in cells_of(path)] == [1, 4, 8, 16, 32]
        assert [cell["failed"] for cell in cells_of(path)] == [0] * 5


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_percentile_can_be_traced_to_the_requests(path: Path) -> None:
    requests = requests_of(path)
    for cell in cells_of(path):
        mine = requests[cell["concurrency"]]
        assert len(mine) == cell["completed"]
        assert sum(request["output_tokens"] for request in mine) == cell["outputTokens"]
        for metric, key in METRICS.items():
            values = sorted(request[key] for request in mine)
            assert cell[metric]["samples"] == values
            for percent in (50, 90, 95, 99):
                assert cell[metric][f"p{percent}Microseconds"] == round(percentile(values, percent))


@pytest.mark.parametrize(
    ("manifest", "shape", "capacity"),
    [
        ("sla-2000.yaml", Shape(gpus_per_replica=1, speculative_tokens=3, weights="FP8"), 32),
        ("sla-1000.yaml", Shape(gpus_per_replica=2, speculative_tokens=3, weights="FP8"), 16),
    ],
)
def test_one_sla_is_carried_by_one_gpu_and_a_tighter_one_needs_two(manifest: str, shape: Shape, capacity: int) -> None:
    decided = decision(manifest)
    assert decided.serve is not None
    assert decided.serve.shape == shape
    assessment = decided.assessment_of(decided.serve)
    assert assessment is not None
    assert assessment.capacity == capacity


def test_the_choice_is_the_cheapest_of_those_within_the_limit_counted_by_hand() -> None:
    for manifest, limit in (("sla-2000.yaml", 2_000_000), ("sla-1000.yaml", 1_000_000)):
        costs: dict[Shape, float] = {}
        for path in RUNS:
            named = json.loads(path.read_text(encoding="utf-8"))["spec"]["candidate"]
            if named["speculativeTokens"] == 5:
                continue
            carried = 0.0
            for cell in cells_of(path):
                if cell["e2ELatency"]["p99Microseconds"] > limit:
                    break
                carried = float(cell["requestsPerSecond"])
            if carried:
                shape = Shape(
                    gpus_per_replica=named["gpusPerReplica"],
                    speculative_tokens=named["speculativeTokens"],
                    weights=named["weights"],
                )
                costs[shape] = named["gpusPerReplica"] / carried
        decided = decision(manifest)
        assert decided.serve is not None
        assert decided.serve.shape == min(costs, key=lambda shape: costs[shape])


def test_the_instrument_agrees_with_vllms_own_on_the_same_server() -> None:
    said = json.loads((RESULTS / "instrument.json").read_text(encoding="utf-8"))["instrument"]
    rows = {(row["tool"], row["pass"], row["concurrency"]): row for row in said}
    assert len(rows) == 8
    for (tool, turn, level), theirs in rows.items():
        if tool == "vllm":
            mine = rows["own", turn, level]
            assert mine["requests_per_second"] == pytest.approx(theirs["requests_per_second"], rel=0.03)
            assert mine["e2e_p50_ms"] == pytest.approx(theirs["e2e_p50_ms"], rel=0.05)
            assert mine["e2e_p99_ms"] == pytest.approx(theirs["e2e_p99_ms"], rel=0.05)


def test_the_report_says_what_its_program_makes_of_the_files() -> None:
    program = ROOT / "benchmarks" / "gpu" / "report.py"
    done = subprocess.run([sys.executable, str(program), str(RESULTS)], capture_output=True, text=True, check=True)
    assert done.stdout == (RESULTS / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which nvidia-smi and vllm are those of the recorded run, and start nothing."""
    for name, said in (("nvidia-smi", NVIDIA_SMI), ("vllm", "0.25.1")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n", encoding="utf-8")
        program.chmod(0o755)
    for name in ("target", "drafter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(runpy.run_path(str(SHAPES))[name.upper()]))
    kept = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    return kept | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "operator")}


@pytest.mark.parametrize(
    ("manifest", "chosen"), [("sla-2000.yaml", "1 GPU FP8 γ=3"), ("sla-1000.yaml", "2 GPUs FP8 γ=3")]
)
def test_a_later_start_on_another_machine_goes_on_from_the_files_and_decides_without_starting_an_engine(
    tmp_path: Path, machine: dict[str, str], manifest: str, chosen: str
) -> None:
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder)
    done = subprocess.run(
        [
            sys.executable, "-m", "specmodel", "try", "-f", str(RESULTS / manifest), "--results", str(folder),
            "--model", str(tmp_path / "target"), "--drafter", str(tmp_path / "drafter"),
            "--load-format", "dummy", "--synthetic-acceptance", "3=35.5,5=25",
        ],
        capture_output=True, text=True, check=False, env=machine, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"*  {chosen} " in done.stdout
    before = (RESULTS / "sessions.jsonl").read_text(encoding="utf-8")
    added = (folder / "sessions.jsonl").read_text(encoding="utf-8").removeprefix(before)
    assert [json.loads(line)["event"] for line in added.splitlines()] == ["start", "decided"]
