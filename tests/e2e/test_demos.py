"""The examples end where the table says, on the full workload, with figures within a tenth of what was measured."""

from __future__ import annotations

import json

import pytest

from tests.e2e.test_lifecycle import run_names, settle
from tests.e2e.traffic import start_traffic
from tests.e2e.world import EXAMPLES, REPOSITORY, Json, World, shape_of

TABLE = REPOSITORY / "tests" / "data" / "h200-llama-8b"
#: A demo takes under eight minutes after set-up; a busy machine is given a little more before it counts as stuck.
DEMO_SECONDS = 700


def measured(configuration: str, concurrency: int) -> tuple[float, float]:
    """Return (requests per second, E2E P99 in ms) of a row of the table."""
    for row in json.loads((TABLE / f"{configuration}.json").read_text(encoding="utf-8")):
        if row["max_concurrency"] == concurrency:
            return row["request_throughput"], row["p99_e2el_ms"]
    raise AssertionError(f"{configuration} has no row for {concurrency}")


def assert_figures(model: Json, configuration: str, concurrency: int) -> None:
    """Assert that status.serving shows the table's row."""
    serving = model["status"]["serving"]
    throughput, p99 = measured(configuration, concurrency)
    assert serving["capacity"] == concurrency
    assert float(serving["requestsPerSecond"]) == pytest.approx(throughput, rel=0.1)
    assert serving["p99Milliseconds"] == pytest.approx(p99, rel=0.1)
    assert serving["engine"] == "replay"
    assert "replayed" in model["status"]["decision"]["message"]


def test_one_gpu_wins_and_a_tighter_sla_on_the_same_model_flips_the_choice_under_traffic(world: World) -> None:
    world.apply(EXAMPLES / "commerce-agent.yaml")
    first = settle(world, "commerce-agent", seconds=DEMO_SECONDS)
    assert shape_of(first["status"]["serving"]) == (1, 3, "None"), first["status"]["decision"]
    assert_figures(first, "bf16-tp1-g3", 32)
    measured_before = run_names(world)
    traffic = start_traffic(world, "commerce-agent", "commerce-agent")
    world.apply(EXAMPLES / "commerce-agent-tight-sla.yaml")
    second = settle(world, "commerce-agent", seconds=180)
    counts = traffic.finish()
    assert shape_of(second["status"]["serving"]) == (2, 3, "None"), second["status"]["decision"]
    assert_figures(second, "bf16-tp2-g3", 16)
    assert run_names(world) == measured_before
    assert counts["failed"] == 0, counts
    assert counts["total"] > 50


def test_the_tighter_sla_from_nothing_ends_on_two_gpus(world: World) -> None:
    world.apply(EXAMPLES / "commerce-agent-tight-sla.yaml")
    model = settle(world, "commerce-agent", seconds=DEMO_SECONDS)
    assert shape_of(model["status"]["serving"]) == (2, 3, "None"), model["status"]["decision"]
    assert_figures(model, "bf16-tp2-g3", 16)


def test_with_fp8_allowed_one_gpu_with_fp8_wins(world: World) -> None:
    world.apply(EXAMPLES / "commerce-agent-fp8.yaml")
    model = settle(world, "commerce-agent-fp8", seconds=DEMO_SECONDS)
    assert shape_of(model["status"]["serving"]) == (1, 3, "FP8"), model["status"]["decision"]
    assert_figures(model, "fp8-tp1-g3", 32)
