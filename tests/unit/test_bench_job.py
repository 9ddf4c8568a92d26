"""The benchmark Job against an API server that enforces its role and an engine that can misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specmodel.api.benchmark import BenchmarkRunStatus
from specmodel.api.conditions import RUN_REASONS
from specmodel.bench.job import run_job
from specmodel.bench.load import open_session
from specmodel.bench.run_status import ApiAddress, ApiUnavailableError, RunGoneError, RunStatus, open_api_session
from tests.support.engine_server import EngineServer, serving
from tests.support.run_server import NAME, NAMESPACE, TOKEN, RunServer, serving_run


def cell(concurrency: int, temperature: str = "0", requests: int = 6, most: int = 60) -> dict[str, Any]:
    return {"concurrency": concurrency, "temperature": temperature, "minRequests": requests, "maxRequests": most}


def run_of(*cells: dict[str, Any], **fields: Any) -> RunServer:
    spec = {
        "target": {"url": "http://127.0.0.1:1", "model": "tiny"},
        "dataset": {"synthetic": {"inputTokens": 8, "outputTokens": 6}},
        "cells": list(cells),
        "warmupSeconds": 0,
        "stallSeconds": 10,
    }
    return RunServer(spec=spec | fields)


async def carry_out(run: RunServer, engine: EngineServer, tmp_path: Path, prompts: Path | None = None) -> str:
    """Run the Job in this process with the Job's own account; return its outcome."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n", encoding="ascii")
    async with serving(engine), serving_run(run):
        run.spec["target"]["url"] = engine.url
        address = ApiAddress(url=run.url, token_file=token)
        async with open_api_session(address) as session:
            status = RunStatus(session=session, address=address, namespace=NAMESPACE, name=NAME, patience_seconds=3)
            outcome = await run_job(
                status, lambda stall: open_session(stall_seconds=stall), prompts or tmp_path / "prompts"
            )
    assert run.refused == [], "the Job asked for what its role does not allow"
    assert run.status["progress"]["outcome"] == outcome.name
    assert outcome.name in {"Complete", *RUN_REASONS}
    return outcome.name


def measured(run: RunServer) -> list[tuple[int, str]]:
    return [(c["concurrency"], c["temperature"]) for c in run.status.get("cells", [])]


async def test_once_the_server_answers_nothing_says_that_it_is_waited_for(tmp_path: Path) -> None:
    run = run_of(cell(1))
    assert await carry_out(run, EngineServer(), tmp_path) == "Complete"
    first, second = (patch["status"]["progress"]["doing"] for patch in run.patches[:2])
    assert first.startswith("waiting for http://")
    assert second == "preparing the load"


async def test_every_cell_is_measured_and_written_with_what_produced_it(tmp_path: Path) -> None:
    run, engine = run_of(cell(1), cell(4, requests=12), cell(2, "0.5")), EngineServer()
    assert await carry_out(run, engine, tmp_path) == "Complete"
    status = BenchmarkRunStatus.model_validate(run.status)
    assert {(c.concurrency, c.temperature): (c.completed, c.failed) for c in status.cells} == {
        (1, "0"): (6, 0),
        (4, "0"): (24, 0),
        (2, "0.5"): (12, 0),
    }
    for stored in status.cells:
        assert stored.output_tokens == 6 * stored.completed
        assert stored.e2e_latency is not None
        assert stored.ttft is not None
        assert stored.tpot is not None
        assert len(stored.e2e_latency.samples) == stored.completed
        assert stored.e2e_latency.samples == sorted(stored.e2e_latency.samples)
        assert 0 < stored.ttft.p99_microseconds <= stored.e2e_latency.p99_microseconds
        assert stored.acceptance is not None
        assert stored.acceptance.drafts == 3 * stored.completed
        assert stored.acceptance.accepted_per_position == [3 * stored.completed]
    assert status.provenance is not None
    assert (status.provenance.engine, status.provenance.engine_version) == ("replay", "0.25.1")
    assert status.provenance.replay_table == "h200-llama-8b"
    assert status.progress is not None
    assert (status.progress.cell, status.progress.cells, status.progress.remaining_seconds) == (3, 3, 0)
    assert engine.most_concurrent == 4


async def test_what_is_asked_of_the_server_is_always_explicit_and_never_the_same_prompt_twice(tmp_path: Path) -> None:
    run, engine = run_of(cell(1), cell(2), cell(1, "0.5"), warmupSeconds=1), EngineServer()
    assert await carry_out(run, engine, tmp_path) == "Complete"
    load = [body for body in engine.requests if body["max_tokens"] == 6]
    assert {body["temperature"] for body in load} == {0.0, 0.5}
    assert all(body["ignore_eos"] and body["stream_options"] == {"include_usage": True} for body in load)
    prompts = [tuple(body["prompt"]) for body in load]
    assert len(set(prompts)) == len(prompts)
    assert {len(prompt) for prompt in prompts} == {8}
    assert len({body["cache_salt"] for body in load}) == 3


async def test_only_the_fields_of_the_job_are_ever_patched(tmp_path: Path) -> None:
    run = run_of(cell(1))
    run.status = {"observedGeneration": 1, "attempts": 1, "conditions": [{"type": "Complete", "status": "False"}]}
    await carry_out(run, EngineServer(), tmp_path)
    assert {key for patch in run.patches for key in patch["status"]} == {"cells", "progress", "provenance"}
    assert run.status["attempts"] == 1
    assert run.status["conditions"] == [{"type": "Complete", "status": "False"}]


async def test_a_write_that_meets_the_operators_is_made_again(tmp_path: Path) -> None:
    run = run_of(cell(1), cell(2))
    run.operator_writes = True
    assert await carry_out(run, EngineServer(), tmp_path) == "Complete"
    assert measured(run) == [(1, "0"), (2, "0")]
    assert run.status["conditions"]


async def test_finished_cells_are_kept_and_the_next_pod_goes_on_after_them(tmp_path: Path) -> None:
    first, engine = run_of(cell(1), cell(2)), EngineServer()
    await carry_out(first, engine, tmp_path)
    kept = first.status["cells"][0]
    again = run_of(cell(1), cell(2))
    again.status = {"cells": [kept, {"concurrency": "nonsense"}], "progress": {"cell": 1, "cells": 2}}
    engine = EngineServer()
    assert await carry_out(again, engine, tmp_path) == "Complete"
    assert again.status["cells"][0] == kept
    assert measured(again) == [(1, "0"), (2, "0")]
    assert len([body for body in engine.requests if body["max_tokens"] == 6]) == 12


async def test_a_run_that_is_complete_is_left_alone(tmp_path: Path) -> None:
    run, engine = run_of(cell(1)), EngineServer()
    run.status = {"progress": {"cell": 1, "cells": 1, "outcome": "Complete", "message": "before"}}
    assert await carry_out(run, engine, tmp_path) == "Complete"
    assert run.patches == []
    assert engine.requests == []


async def test_an_earlier_attempts_failure_is_tried_again(tmp_path: Path) -> None:
    run, engine = run_of(cell(1)), EngineServer()
    run.status = {"progress": {"cell": 0, "cells": 1, "outcome": "Stalled", "message": "before"}}
    assert await carry_out(run, engine, tmp_path) == "Complete"
    assert measured(run) == [(1, "0")]


async def test_a_level_that_violates_ends_its_temperature_and_no_other(tmp_path: Path) -> None:
    limits = [{"metric": "E2ELatency", "percentile": 99, "maxMilliseconds": 150}]
    cells = [cell(at, temperature) for temperature in ("0", "0.5") for at in (1, 8, 16)]
    run = run_of(*cells, stop={"limits": limits})
    engine = EngineServer(seconds_per_stream=0.03)
    assert await carry_out(run, engine, tmp_path) == "Complete"
    assert measured(run) == [(1, "0"), (1, "0.5"), (8, "0"), (8, "0.5")]
    assert "4 of 6 cells measured" in run.status["progress"]["message"]


async def test_an_engine_that_stops_answering_ends_the_run_as_stalled_with_finished_cells_kept(tmp_path: Path) -> None:
    run, engine = run_of(cell(1), cell(2)), EngineServer(stalls_from=12)
    assert await carry_out(run, engine, tmp_path) == "Stalled"
    assert measured(run) == [(1, "0")]
    assert "concurrency 2" in run.status["progress"]["message"]


@pytest.mark.parametrize("at", [5, 10])
async def test_an_engine_that_restarts_during_a_cell_voids_that_cell(tmp_path: Path, at: int) -> None:
    run, engine = run_of(cell(1), cell(2)), EngineServer(restarts_at=at)
    assert await carry_out(run, engine, tmp_path) == "EngineChanged"
    assert len(measured(run)) == (at - 1) // 7


async def test_a_deadline_counts_from_the_first_pod(tmp_path: Path) -> None:
    run = run_of(cell(1), deadlineSeconds=60)
    run.status = {"provenance": {"engine": "vllm", "startedAt": "2020-01-01T00:00:00Z"}}
    assert await carry_out(run, EngineServer(), tmp_path) == "DeadlineExceeded"
    assert measured(run) == []


async def test_a_model_that_is_not_served_is_named_with_those_that_are(tmp_path: Path) -> None:
    run = run_of(cell(1))
    assert await carry_out(run, EngineServer(model="another"), tmp_path) == "ModelNotServed"
    assert "another" in run.status["progress"]["message"]


async def test_an_engine_that_dies_at_the_first_request_is_not_taken_for_one_that_serves_another_model(
    tmp_path: Path,
) -> None:
    run = run_of(cell(1))
    assert await carry_out(run, EngineServer(dies_at=1), tmp_path) == "TargetUnreachable"
    assert "EngineCore encountered an issue" in run.status["progress"]["message"]


async def test_failed_requests_are_counted_and_a_cell_without_any_completed_one_is_a_failure(tmp_path: Path) -> None:
    run, engine = run_of(cell(1, requests=9)), EngineServer(fails_every=5)
    assert await carry_out(run, engine, tmp_path) == "Complete"
    assert (run.status["cells"][0]["completed"], run.status["cells"][0]["failed"]) == (7, 2)
    run, engine = run_of(cell(1), cell(2)), EngineServer(short_by=1)
    await carry_out(run, engine, tmp_path)
    assert run.status["cells"][0]["failure"]["reason"] == "NoOutput"
    assert "asked for 6 tokens, the server counted 5" in run.status["cells"][0]["failure"]["message"]
    assert measured(run) == [(1, "0")], "a failed level ends its temperature"


@pytest.mark.parametrize(
    "text",
    [
        "vllm:spec_decode_num_drafts_total NaN\n",
        "vllm:spec_decode_num_drafts_total{engine=0 1\n",
        "vllm:spec_decode_num_drafts_total -5\n",
        "vllm:spec_decode_num_drafts_total 1e300\n",
        "vllm:spec_decode_num_drafts_total 1\nvllm:spec_decode_num_drafts_total 2\n",
        "vllm:spec_decode_num_drafts_total 1\n" * 6000,
        "\x00" * (9 << 20),
    ],
)
async def test_hostile_metrics_cost_the_acceptance_and_nothing_else(tmp_path: Path, text: str) -> None:
    run = run_of(cell(1))
    assert await carry_out(run, EngineServer(metrics_text=text), tmp_path) == "Complete"
    assert run.status["cells"][0]["completed"] == 6
    assert "acceptance" not in run.status["cells"][0]
    assert "/metrics" in run.status["progress"]["message"]


async def test_a_foreign_endpoint_without_version_and_metrics_is_measured_with_text(tmp_path: Path) -> None:
    engine = EngineServer(version=None, metrics_text="", takes_token_ids=False)
    run = run_of(cell(1), dataset={"synthetic": {"inputTokens": 105, "outputTokens": 6}})
    assert await carry_out(run, engine, tmp_path) == "Complete"
    load = [body for body in engine.requests if body["max_tokens"] == 6]
    assert {len(body["prompt"].split()) for body in load} == {50}
    assert all("cache_salt" not in body for body in load)
    assert run.status["provenance"]["engine"] == "unknown"


async def test_prompts_come_from_the_mounted_key(tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    lines = [{"prompt": "one"}, {"messages": [{"role": "user", "content": "two"}]}]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    dataset = {"prompts": {"configMapRef": {"name": "queries", "key": "queries.jsonl"}, "outputTokens": 6}}
    run, engine = run_of(cell(1), dataset=dataset), EngineServer()
    assert await carry_out(run, engine, tmp_path) == "Complete"
    assert run.status["cells"][0]["completed"] == 6
    assert sorted("messages" if "messages" in body else body["prompt"] for body in engine.requests) == (
        ["messages"] * 3 + ["one"] * 3
    )
    assert not any("ignore_eos" in body for body in engine.requests)


async def test_a_bad_line_of_the_prompts_is_named(tmp_path: Path) -> None:
    file = tmp_path / "queries.jsonl"
    file.write_text('{"prompt": "one"}\n\n{"text": "two"}\n', encoding="utf-8")
    dataset = {"prompts": {"configMapRef": {"name": "queries", "key": "queries.jsonl"}}}
    run = run_of(cell(1), dataset=dataset)
    assert await carry_out(run, EngineServer(), tmp_path, file) == "InvalidRun"
    assert "queries.jsonl line 3" in run.status["progress"]["message"]


async def test_a_spec_that_cannot_be_read_is_an_outcome(tmp_path: Path) -> None:
    run = run_of({"concurrency": 0})
    assert await carry_out(run, EngineServer(), tmp_path) == "InvalidRun"
    assert "cells.0" in run.status["progress"]["message"]


async def test_an_api_server_that_is_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    run = run_of(cell(1))
    run.failures = 2
    assert await carry_out(run, EngineServer(), tmp_path) == "Complete"


async def test_an_api_server_that_stays_away_is_a_fault_and_leaves_no_outcome(tmp_path: Path) -> None:
    run = run_of(cell(1))
    run.failures = 1000
    with pytest.raises(ApiUnavailableError, match="etcd has no leader"):
        await carry_out(run, EngineServer(), tmp_path)
    assert run.status == {}


async def test_a_run_made_anew_under_its_name_never_gets_the_cells_of_the_old_one(tmp_path: Path) -> None:
    run, engine = run_of(cell(1), cell(2)), EngineServer()
    replaced = asyncio.create_task(_when(lambda: len(engine.requests) > 3, lambda: _replace(run)))
    with pytest.raises(RunGoneError):
        await carry_out(run, engine, tmp_path)
    await replaced
    assert run.status == {}


def _replace(run: RunServer) -> None:
    run.uid, run.version, run.status = "uid-2", run.version + 1, {}


async def _when(is_time: Callable[[], bool], do: Callable[[], None]) -> None:
    while not is_time():  # noqa: ASYNC110  what is waited for is another process's doing
        await asyncio.sleep(0.001)
    do()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_job_that_is_stopped_or_killed_goes_on_at_the_next_cell(tmp_path: Path, how: signal.Signals) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="ascii")
    run, engine = run_of(cell(1), cell(2, requests=40), cell(4)), EngineServer(first_token_seconds=0.02)
    async with serving(engine), serving_run(run):
        run.spec["target"]["url"] = engine.url
        process = await _start(run, token)
        async with asyncio.timeout(30):
            await _when(lambda: len(run.status.get("cells", [])) == 1, lambda: process.send_signal(how))
            code = await process.wait()
        assert code == (143 if how is signal.SIGTERM else -signal.SIGKILL)
        assert measured(run) == [(1, "0")]
        assert run.status["progress"].get("outcome", "") == ""
        if how is signal.SIGTERM:
            assert "interrupted during" in run.status["progress"]["doing"]
        kept = run.status["cells"][0]
        process = await _start(run, token)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    assert run.status["progress"]["outcome"] == "Complete"
    assert run.status["cells"][0] == kept
    assert measured(run) == [(1, "0"), (2, "0"), (4, "0")]
    assert run.refused == []


async def _start(run: RunServer, token: Path) -> asyncio.subprocess.Process:
    command = ["-m", "specmodel.bench", "--namespace", NAMESPACE, "--name", NAME, "--api-server", run.url]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "operator")}
    return await asyncio.create_subprocess_exec(sys.executable, *command, "--token-file", str(token), env=environment)
