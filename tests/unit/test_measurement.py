"""What is kept of a candidate's runs, and what makes two loads the same."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations

from specmodel.api.benchmark import BenchmarkRunSpec, BenchmarkRunStatus, Cell, Provenance
from specmodel.api.model import Workload
from specmodel.domain.measurement import gather, load_digest, workload_digest
from specmodel.domain.observation import Run
from tests.support.measured import cell


def run(
    name: str, *cells: Cell, engine: str = "vllm", failure: tuple[str, str] | None = None, done: bool = True
) -> Run:
    """Return a run that measured cells."""
    spec = BenchmarkRunSpec.model_validate(
        {
            "target": {"url": "http://x:8000", "model": "m"},
            "cells": [{"concurrency": 1, "temperature": "0.0", "minRequests": 50, "maxRequests": 600}],
        }
    )
    return Run(
        name=name,
        uid=name,
        candidate="c",
        workload="w",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        spec=spec,
        status=BenchmarkRunStatus(cells=list(cells), provenance=Provenance(engine=engine)),
        is_complete=done and failure is None,
        failure=failure,
    )


def test_a_candidate_without_runs_has_no_measurement() -> None:
    assert gather("c", []) is None


def test_cells_of_all_runs_are_joined_whatever_their_order() -> None:
    runs = [run("a", cell(1)), run("b", cell(4)), run("c", cell(8), done=False)]
    joined = [gather("c", list(order)) for order in permutations(runs)]
    assert all(one == joined[0] for one in joined)
    assert joined[0] is not None
    assert [one.concurrency for one in joined[0].cells] == [1, 4, 8]
    assert joined[0].runs == ("a", "b", "c")


def test_of_two_measurements_of_a_cell_the_one_with_more_requests_is_kept() -> None:
    small, large = cell(1, (100.0,) * 24), cell(1, (100.0,) * 50)
    found = gather("c", [run("a", small), run("b", large)])
    assert found is not None
    assert [one.completed for one in found.cells] == [50]


def test_two_spellings_of_a_temperature_are_one_cell() -> None:
    found = gather("c", [run("a", cell(1, temperature="0.0")), run("b", cell(1, temperature="0"))])
    assert found is not None
    assert len(found.cells) == 1
    assert found.cell(1, "0") is not None
    assert found.asked[0].cell.temperature == "0"


def test_one_replayed_run_makes_the_whole_measurement_replayed() -> None:
    found = gather("c", [run("a", cell(1)), run("b", cell(4), engine="replay")])
    assert found is not None
    assert found.engine == "replay"


def test_a_server_that_died_is_the_candidates_failure_and_keeps_its_cells() -> None:
    found = gather("c", [run("a", cell(1), failure=("ServerFailed", "out of memory"))])
    assert found is not None
    assert found.failure == ("ServerFailed", "out of memory")
    assert found.fault is None
    assert len(found.cells) == 1


def test_an_infrastructure_fault_is_never_held_against_the_candidate() -> None:
    found = gather("c", [run("a", failure=("TargetUnreachable", "no route"))])
    assert found is not None
    assert found.failure is None
    assert found.fault == ("TargetUnreachable", "no route")


def test_a_run_that_ended_early_with_cells_does_not_block_measuring_the_rest() -> None:
    found = gather("c", [run("a", cell(1), failure=("DeadlineExceeded", "7200 s passed"))])
    assert found is not None
    assert found.failure is None
    assert found.fault is None


def test_another_level_temperature_or_size_leaves_the_workload_the_same() -> None:
    few = Workload.model_validate({"concurrency": [1]})
    many = Workload.model_validate(
        {
            "concurrency": [1, 64],
            "temperature": ["0", "0.5"],
            "requestsPerCell": {"min": 24},
            "demand": {"concurrency": 9},
        }
    )
    assert workload_digest(few, None) == workload_digest(many, None)


def test_other_lengths_and_other_prompts_are_other_workloads() -> None:
    synthetic = Workload()
    longer = Workload.model_validate({"dataset": {"synthetic": {"inputTokens": 2048}}})
    prompts = Workload.model_validate({"dataset": {"prompts": {"configMapRef": {"name": "q", "key": "p.jsonl"}}}})
    digests = {
        workload_digest(synthetic, None),
        workload_digest(longer, None),
        workload_digest(prompts, "aaaa"),
        workload_digest(prompts, "bbbb"),
    }
    assert len(digests) == 4
    assert load_digest(prompts.dataset, "aaaa") == workload_digest(prompts, "aaaa")
