"""The Lease: at most one writer, through partitions, slow answers, frozen processes and clocks that disagree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from specmodel.cluster.client import ApiError
from specmodel.cluster.lease import Elector, LeaseSettings
from tests.support.virtual_time import VirtualTimeLoop, run_virtually

START = datetime(2026, 11, 30, 6, 0, tzinfo=UTC)


@dataclass
class Server:
    """A Lease in an API server: optimistic concurrency, and a network that may be slow or cut."""

    lease: dict[str, Any] | None = None
    version: int = 0
    delay: float = 0.01
    writes: int = 0

    def store(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.writes += 1
        metadata = {**lease["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**lease, "metadata": metadata}
        return dict(self.lease)

    @property
    def spec(self) -> Mapping[str, Any]:
        assert self.lease is not None
        spec: Mapping[str, Any] = self.lease["spec"]
        return spec


@dataclass
class Link:
    """One process's way to the server."""

    server: Server
    is_cut: bool = False
    is_refused: bool = False
    delay: float | None = None
    requests: list[float] = field(default_factory=list)

    async def _travel(self, seconds: float) -> None:
        self.requests.append(seconds)
        if self.is_refused:
            raise ApiError(0, "Unreachable", "connection refused")
        if self.is_cut:
            await asyncio.sleep(3600)
        await asyncio.sleep(self.server.delay if self.delay is None else self.delay)

    async def read(self, seconds: float) -> Mapping[str, Any] | None:
        await self._travel(seconds)
        return self.server.lease

    async def create(self, lease: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        await self._travel(seconds)
        if self.server.lease is not None:
            raise ApiError(409, "AlreadyExists", "leases already exists")
        return self.server.store(lease)

    async def replace(self, lease: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        await self._travel(seconds)
        current = self.server.lease
        if current is None or current["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self.server.store(lease)


def elector(link: Link, identity: str, *, skew: timedelta = timedelta(0)) -> Elector:
    settings = LeaseSettings(namespace="system", name="operator", identity=identity)

    def now() -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time()) + skew

    return Elector(link, settings, now=now)


def elapsed() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_to_ask_gets_a_lease_that_does_not_exist_yet() -> None:
    async def scenario() -> None:
        server = Server()
        one = elector(Link(server), "one")
        await one.acquire()
        assert one.may_write
        assert server.spec["holderIdentity"] == "one"
        assert server.spec["leaseTransitions"] == 0

    run_virtually(scenario())


def test_times_are_utc_with_microseconds_wherever_the_process_runs() -> None:
    async def scenario() -> None:
        server = Server()
        settings = LeaseSettings(namespace="system", name="operator", identity="one")
        local = START.astimezone(timezone(timedelta(hours=9)))
        await Elector(Link(server), settings, now=lambda: local).acquire()
        assert server.spec["renewTime"] == "2026-11-30T06:00:00.000000Z"
        assert server.spec["acquireTime"] == "2026-11-30T06:00:00.000000Z"

    run_virtually(scenario())


def test_renewing_moves_the_renew_time_and_keeps_the_acquire_time() -> None:
    async def scenario() -> None:
        server = Server()
        one = elector(Link(server), "one")
        await one.acquire()
        acquired = server.spec["acquireTime"]
        holding = asyncio.create_task(one.hold())
        await asyncio.sleep(600)
        assert not holding.done()
        assert one.may_write
        assert server.spec["acquireTime"] == acquired
        assert server.spec["renewTime"] > "2026-11-30T06:09:55"
        assert server.spec["leaseTransitions"] == 0
        holding.cancel()

    run_virtually(scenario())


def test_a_standby_waits_while_the_holder_renews_and_takes_over_when_it_dies() -> None:
    async def scenario() -> None:
        server = Server()
        one, two = elector(Link(server), "one"), elector(Link(server), "two")
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        waiting = asyncio.create_task(two.acquire())
        await asyncio.sleep(120)
        assert not waiting.done()
        assert two.trouble == "held by one"
        holding.cancel()  # killed
        killed = elapsed()
        await waiting
        assert 15 - 2 < elapsed() - killed < 15 + 6
        assert not one.may_write
        assert server.spec["leaseTransitions"] == 1

    run_virtually(scenario())


def test_a_released_lease_is_taken_at_the_next_try() -> None:
    async def scenario() -> None:
        server = Server()
        one, two = elector(Link(server), "one"), elector(Link(server), "two")
        await one.acquire()
        waiting = asyncio.create_task(two.acquire())
        await asyncio.sleep(10)
        await one.release()
        assert not one.may_write
        released = elapsed()
        await waiting
        assert elapsed() - released < 4
        assert server.spec["holderIdentity"] == "two"

    run_virtually(scenario())


def test_a_partitioned_holder_stops_writing_before_another_can_start() -> None:
    async def scenario() -> None:
        server = Server()
        link = Link(server)
        one, two = elector(link, "one"), elector(Link(server), "two")
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        waiting = asyncio.create_task(two.acquire())
        await asyncio.sleep(60)
        link.is_cut = True
        while not waiting.done():
            await asyncio.sleep(0.1)
            assert not (one.may_write and two.may_write)
        assert holding.done()
        assert "no answer within" in holding.result()

    run_virtually(scenario())


def test_no_request_is_given_longer_than_what_is_left_of_the_renew_deadline() -> None:
    async def scenario() -> None:
        link = Link(Server())
        one = elector(link, "one")
        await one.acquire()
        acquired = elapsed()
        link.is_cut = True
        link.requests.clear()
        await one.hold()
        assert elapsed() - acquired <= 10.001
        assert max(link.requests) <= 8.0

    run_virtually(scenario())


def test_errors_for_a_while_cost_nothing_when_a_renewal_succeeds_in_time() -> None:
    async def scenario() -> None:
        link = Link(Server())
        one = elector(link, "one")
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        for _ in range(10):
            link.is_refused = True
            await asyncio.sleep(6)
            link.is_refused = False
            await asyncio.sleep(3)
        assert not holding.done()
        assert one.may_write
        holding.cancel()

    run_virtually(scenario())


def test_slow_answers_are_counted_from_when_they_were_asked() -> None:
    async def scenario() -> None:
        link = Link(Server(), delay=4.0)  # read and replace: 8 seconds a renewal
        one = elector(link, "one")
        await one.acquire()
        assert one.may_write
        await asyncio.sleep(2.1)
        assert not one.may_write  # asked 10.1 seconds ago

    run_virtually(scenario())


def test_a_holder_that_was_frozen_writes_nothing_when_it_wakes() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        one = elector(Link(Server()), "one")
        await one.acquire()
        loop.stall(60)
        assert not one.may_write
        assert "held up" in await one.hold()

    run_virtually(scenario())


def test_clocks_that_disagree_by_hours_change_nothing() -> None:
    async def scenario() -> None:
        server = Server()
        one = elector(Link(server), "one", skew=timedelta(hours=-5))
        two = elector(Link(server), "two", skew=timedelta(hours=5))
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        waiting = asyncio.create_task(two.acquire())
        await asyncio.sleep(300)
        assert not waiting.done()
        assert one.may_write
        for task in (holding, waiting):
            task.cancel()

    run_virtually(scenario())


def test_of_many_that_ask_at_once_exactly_one_leads() -> None:
    async def scenario() -> None:
        server = Server()
        electors = [elector(Link(server), f"number-{number}") for number in range(5)]
        tasks = [asyncio.create_task(each.acquire()) for each in electors]
        await asyncio.sleep(8)
        assert [each.may_write for each in electors].count(True) == 1
        for task in tasks:
            task.cancel()

    run_virtually(scenario())


def test_a_holder_that_sees_another_in_its_place_gives_up() -> None:
    async def scenario() -> None:
        server = Server()
        one = elector(Link(server), "one")
        await one.acquire()
        assert server.lease is not None
        server.store({**server.lease, "spec": {**server.spec, "holderIdentity": "thief"}})
        assert await one.hold() == "thief holds the Lease"

    run_virtually(scenario())


def test_a_release_leaves_the_lease_of_another_alone() -> None:
    async def scenario() -> None:
        server = Server()
        one = elector(Link(server), "one")
        await one.acquire()
        assert server.lease is not None
        server.store({**server.lease, "spec": {**server.spec, "holderIdentity": "another"}})
        await one.release()
        assert server.spec["holderIdentity"] == "another"

    run_virtually(scenario())


def test_a_release_that_gets_no_answer_does_not_hold_the_process_up() -> None:
    async def scenario() -> None:
        link = Link(Server())
        one = elector(link, "one")
        await one.acquire()
        link.is_cut = True
        before = elapsed()
        await one.release()
        assert elapsed() - before <= 2.001

    run_virtually(scenario())


def test_a_lease_with_nonsense_in_it_is_taken_after_the_usual_silence() -> None:
    async def scenario() -> None:
        server = Server()
        server.store({"metadata": {"name": "operator"}, "spec": {"holderIdentity": 7, "leaseDurationSeconds": "soon"}})
        one = elector(Link(server), "one")
        await one.acquire()
        assert server.spec["holderIdentity"] == "one"

    run_virtually(scenario())
