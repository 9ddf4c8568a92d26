"""The closed loop against a small engine: what it counts, what it calls a failure, and that every wait ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from specmodel.bench.load import (
    CellDeadlineError,
    Load,
    LoadResult,
    Patience,
    Prompt,
    StalledError,
    open_session,
    run_cell,
    warm_up,
)
from specmodel.bench.target import TargetServer, TargetUnreachableError
from tests.support.engine_server import EngineServer, serving

PROMPT = Prompt(path="/v1/completions", body={"prompt": "hello"})
PATIENCE = Patience(stall_seconds=5, cell_seconds=20)


def load_of(engine: EngineServer, concurrency: int = 2, **fields: Any) -> Load:
    values: dict[str, Any] = {"url": engine.url, "model": "tiny", "temperature": 0.0, "output_tokens": 6}
    return Load(concurrency=concurrency, **values | {"ignore_eos": True} | fields)


async def run(engine: EngineServer, count: int, patience: Patience = PATIENCE, concurrency: int = 2) -> LoadResult:
    async with serving(engine), open_session(stall_seconds=5) as session:
        return await run_cell(session, load_of(engine, concurrency), [PROMPT] * count, patience)


@pytest.mark.parametrize(("count", "concurrency"), [(1, 1), (7, 3), (2, 8), (48, 8)])
async def test_exactly_the_requests_asked_for_are_sent_at_the_concurrency_asked_for(
    count: int, concurrency: int
) -> None:
    engine = EngineServer()
    result = await run(engine, count, concurrency=concurrency)
    assert len(result.records) == len(engine.requests) == count
    assert engine.most_concurrent == min(count, concurrency)


async def test_times_are_measured_from_the_chunks_and_tokens_taken_from_usage() -> None:
    engine = EngineServer(first_token_seconds=0.02, step_seconds=0.01)
    (record,) = (await run(engine, 1)).records
    assert record.error == ""
    assert record.output_tokens == 6
    assert len(record.gaps) == 2
    assert 0.02 <= record.ttft <= record.e2e - 0.02
    assert record.tpot == pytest.approx((record.e2e - record.ttft) / 5)
    assert sum(record.gaps) == pytest.approx(record.e2e - record.ttft)


async def test_the_role_of_a_chat_is_not_its_first_token() -> None:
    engine = EngineServer(first_token_seconds=0.05)
    prompt = Prompt(path="/v1/chat/completions", body={"messages": [{"role": "user", "content": "hello"}]})
    async with serving(engine), open_session(stall_seconds=5) as session:
        (record,) = (await run_cell(session, load_of(engine), [prompt], PATIENCE)).records
    assert record.ttft >= 0.05


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (EngineServer(fails_every=1), "HTTP 500"),
        (EngineServer(short_by=2), "asked for 6 tokens, the server counted 4"),
        (EngineServer(short_by=-4), "the server counted 10"),
        (EngineServer(sends_usage=False), "usage.completion_tokens"),
    ],
)
async def test_what_cannot_be_counted_is_a_failed_request(engine: EngineServer, words: str) -> None:
    (record,) = (await run(engine, 1)).records
    assert words in record.error


async def test_requests_that_never_end_are_a_stall_and_slow_ones_meet_the_cells_deadline() -> None:
    with pytest.raises(StalledError, match="no request finished"):
        await run(EngineServer(stalls_from=3), 9, Patience(stall_seconds=0.2, cell_seconds=20))
    with pytest.raises(CellDeadlineError, match="not done"):
        await run(EngineServer(first_token_seconds=0.1), 900, Patience(stall_seconds=5, cell_seconds=0.3))


async def test_a_warm_up_ends_after_its_time_and_at_least_one_request() -> None:
    engine = EngineServer(first_token_seconds=0.1)
    async with serving(engine), open_session(stall_seconds=5) as session:
        records = await warm_up(session, load_of(engine), itertools.repeat(PROMPT), 0.01, PATIENCE)
    assert len(records) >= 1
    assert not any(record.error for record in records)


async def test_a_warm_up_that_nothing_survives_is_a_stall() -> None:
    engine = EngineServer(stalls_from=1)
    async with serving(engine), open_session(stall_seconds=5) as session:
        with pytest.raises(StalledError):
            await warm_up(
                session, load_of(engine), itertools.repeat(PROMPT), 0.01, Patience(stall_seconds=0.2, cell_seconds=9)
            )


async def test_a_target_that_does_not_answer_is_given_up_after_its_time() -> None:
    async with open_session(stall_seconds=5) as session:
        target = TargetServer(session=session, url="http://127.0.0.1:9", model="tiny")
        with pytest.raises(TargetUnreachableError, match="did not answer"):
            await target.wait_until_served(0.1)


async def test_no_redirect_is_followed_and_its_location_is_named() -> None:
    elsewhere: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": f"/elsewhere{request.path}"})

    async def answer(request: web.Request) -> web.Response:
        elsewhere.append(request.path)
        return web.json_response({"data": [{"id": "tiny"}], "version": "1.0"})

    app = web.Application()
    app.router.add_route("*", "/elsewhere/{rest:.*}", answer)
    app.router.add_route("*", "/{rest:.*}", redirect)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = EngineServer(url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with open_session(stall_seconds=5) as session:
            target = TargetServer(session=session, url=engine.url, model="tiny")
            with pytest.raises(TargetUnreachableError, match="HTTP 307 redirects to '/elsewhere/v1/models'"):
                await target.wait_until_served(0.1)
            with pytest.raises(TargetUnreachableError, match="HTTP 307 redirects to '/elsewhere/metrics'"):
                await target.counters()
            assert (await target.identity()).version == ""
            (record,) = (await run_cell(session, load_of(engine), [PROMPT], PATIENCE)).records
    finally:
        await runner.cleanup()
    assert "HTTP 307 redirects to '/elsewhere/v1/completions'" in record.error
    assert elsewhere == []


def _raw(*parts: bytes) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        return response

    return answer


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((b"data: {\n\n",), "JSONDecodeError"),
        ((b"data: []\n\n",), "no JSON object"),
        ((b"data: " + b"x" * (2 << 20),), "longer than"),
        ((b'data: {"error": {"message": "out of memory"}}\n\n',), "out of memory"),
        ((b": ping\n\ndata: [DONE]\n\n",), "no token"),
        ((b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": "six"}}\n\n',), "cannot be counted"),
        ((b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1e99}}\n\n',), "cannot be counted"),
    ],
)
async def test_a_hostile_stream_is_a_failed_request_never_an_exception(parts: tuple[bytes, ...], words: str) -> None:
    app = web.Application()
    app.router.add_post("/v1/completions", _raw(*parts))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = EngineServer(url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with open_session(stall_seconds=5) as session:
            (record,) = (await run_cell(session, load_of(engine), [PROMPT], PATIENCE)).records
    finally:
        await runner.cleanup()
    assert words in record.error


async def test_chunks_cut_anywhere_are_put_together_again() -> None:
    whole = (
        b'data: {"choices": [{"text": "a"}]}\r\n\r\ndata:{"choices": [{"text": "b"}]}\n\n'
        b'data: {"choices": [], "usage": {"completion_tokens": 6, "prompt_tokens": 4}}\n\ndata: [DONE]\n\n'
    )
    app = web.Application()
    app.router.add_post("/v1/completions", _raw(*(whole[at : at + 7] for at in range(0, len(whole), 7))))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = EngineServer(url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with open_session(stall_seconds=5) as session:
            (record,) = (await run_cell(session, load_of(engine), [PROMPT], PATIENCE)).records
    finally:
        await runner.cleanup()
    assert (record.error, record.output_tokens, record.prompt_tokens, len(record.gaps)) == ("", 6, 4, 1)
