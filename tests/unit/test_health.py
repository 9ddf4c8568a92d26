"""Health: liveness is real progress; a standby is Ready."""

from __future__ import annotations

from contextlib import AsyncExitStack

import aiohttp

from specmodel.app.health import ANSWER_MAXIMUM_AGE, LOOK_MAXIMUM_AGE, Heartbeat, serve, serve_metrics
from specmodel.app.metrics import Metrics


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_process_without_answers_is_unwell_after_a_while() -> None:
    clock = Clock()
    heartbeat = Heartbeat(clock)
    assert heartbeat.trouble is None
    clock.seconds += ANSWER_MAXIMUM_AGE + 1
    assert "no answer from the API server" in str(heartbeat.trouble)
    heartbeat.answered()
    assert heartbeat.trouble is None


def test_a_leader_that_renews_but_looks_at_nothing_is_unwell() -> None:
    clock = Clock()
    heartbeat = Heartbeat(clock)
    heartbeat.lead()
    clock.seconds += LOOK_MAXIMUM_AGE + 1
    heartbeat.answered()
    assert "no full look" in str(heartbeat.trouble)
    heartbeat.looked()
    assert heartbeat.trouble is None


def test_a_standby_need_not_look_at_anything() -> None:
    clock = Clock()
    heartbeat = Heartbeat(clock)
    clock.seconds += LOOK_MAXIMUM_AGE + 1
    heartbeat.answered()
    assert heartbeat.trouble is None


async def test_a_standby_is_ready_once_the_api_server_answered() -> None:
    heartbeat = Heartbeat(Clock())
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        port = await serve(stack, heartbeat=heartbeat, bind="127.0.0.1", port=0)
        async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
            assert response.status == 503
        heartbeat.answered()
        async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
            assert (response.status, await response.text()) == (200, "standby\n")
        heartbeat.lead()
        async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
            assert await response.text() == "leader\n"
        async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
            assert response.status == 200


async def test_metrics_are_served_as_prometheus_reads_them() -> None:
    metrics = Metrics()
    metrics.set_leader(is_leader=True)
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        port = await serve_metrics(stack, registry=metrics.registry, bind="127.0.0.1", port=0)
        async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            assert "specmodel_leader 1.0" in await response.text()
