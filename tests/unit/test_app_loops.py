"""Loops: one pass at a time per object, bells that coalesce, timers, back-off, and an end that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from specmodel.app.loops import Kind, Loops, Work
from specmodel.reconcile.action import Key, Outcome, TransientError
from specmodel.reconcile.loop import Pass
from tests.support.virtual_time import run_virtually

WORK = Work(kind=Kind.MODEL, key=Key(namespace="shop", name="m"))


@dataclass
class Diary:
    """A ledger that remembers."""

    passes: int = 0
    failures: list[tuple[str, float]] = field(default_factory=list)

    def passed(self, work: Work, made: Pass, seconds: float) -> None:  # noqa: ARG002 — the ledger's shape
        self.passes += 1

    def failed(self, work: Work, reason: str, message: str, retry_seconds: float) -> None:  # noqa: ARG002 — likewise
        self.failures.append((reason, retry_seconds))


@dataclass
class World:
    """Counts passes; each takes some time and ends as told."""

    seconds: float = 1.0
    end: Callable[[Work], Pass] = field(default=lambda work: Pass(key=work.key))
    started: list[tuple[float, Work]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def make_pass(self, work: Work) -> Pass:
        self.started.append((asyncio.get_running_loop().time(), work))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            return self.end(work)
        finally:
            self.at_once -= 1


def test_many_bells_make_one_pass_and_those_during_it_one_more() -> None:
    async def scenario() -> None:
        world = World()
        loops = Loops(world.make_pass, Diary())
        for _ in range(50):
            loops.ring(WORK)
        await asyncio.sleep(0.7)
        for _ in range(50):
            loops.ring(WORK)
        await asyncio.sleep(30)
        assert len(world.started) == 2
        assert world.most_at_once == 1

    run_virtually(scenario())


def test_a_pass_says_when_to_look_again() -> None:
    async def scenario() -> None:
        world = World(end=lambda work: Pass(key=work.key, wake_after=timedelta(seconds=60)))
        loops = Loops(world.make_pass, Diary())
        loops.ring(WORK)
        await asyncio.sleep(200)
        assert len(world.started) == 4
        await loops.stop(1)

    run_virtually(scenario())


def test_a_bell_does_not_wait_for_the_timer() -> None:
    async def scenario() -> None:
        world = World(end=lambda work: Pass(key=work.key, wake_after=timedelta(hours=1)))
        loops = Loops(world.make_pass, Diary())
        loops.ring(WORK)
        await asyncio.sleep(10)
        loops.ring(WORK)
        await asyncio.sleep(5)
        assert len(world.started) == 2
        await loops.stop(1)

    run_virtually(scenario())


def test_a_loop_with_nothing_to_wait_for_ends_and_the_next_bell_starts_another() -> None:
    async def scenario() -> None:
        world = World()
        loops = Loops(world.make_pass, Diary())
        loops.ring(WORK)
        await asyncio.sleep(5)
        assert not loops._entries
        loops.ring(WORK)
        await asyncio.sleep(5)
        assert len(world.started) == 2

    run_virtually(scenario())


def test_faults_are_tried_again_ever_more_slowly_and_bells_do_not_hurry_them() -> None:
    def fail(work: Work) -> Pass:
        raise TransientError("the API server is away", after=timedelta(seconds=1))

    async def scenario() -> None:
        world, diary = World(seconds=0.01, end=fail), Diary()
        loops = Loops(world.make_pass, diary)
        loops.ring(WORK)
        for _ in range(600):
            await asyncio.sleep(1)
            loops.ring(WORK)
        assert len(world.started) < 600 / 2
        assert [reason for reason, _ in diary.failures[:3]] == ["Transient"] * 3
        assert diary.failures[5][1] > 4 * diary.failures[1][1]
        assert max(retry for _, retry in diary.failures) <= 300 * 1.2
        await loops.stop(1)

    run_virtually(scenario())


def test_the_server_s_own_delay_is_respected() -> None:
    def fail(work: Work) -> Pass:
        raise TransientError("slow down", after=timedelta(seconds=90))

    async def scenario() -> None:
        world = World(seconds=0.01, end=fail)
        loops = Loops(world.make_pass, Diary())
        loops.ring(WORK)
        await asyncio.sleep(80)
        assert len(world.started) == 1
        await asyncio.sleep(20)
        assert len(world.started) == 2
        await loops.stop(1)

    run_virtually(scenario())


def test_a_fault_of_our_own_ends_a_pass_and_not_the_process() -> None:
    def break_down(work: Work) -> Pass:
        raise KeyError("our own mistake")

    async def scenario() -> None:
        world, diary = World(end=break_down), Diary()
        loops = Loops(world.make_pass, diary)
        loops.ring(WORK)
        await asyncio.sleep(60)
        assert len(world.started) > 2
        assert diary.failures[0][0] == "Unexpected"
        await loops.stop(1)

    run_virtually(scenario())


def test_a_pass_that_hangs_is_cancelled_and_made_again() -> None:
    async def scenario() -> None:
        world, diary = World(seconds=10_000), Diary()
        loops = Loops(world.make_pass, diary)
        loops.ring(WORK)
        await asyncio.sleep(320)
        assert len(world.started) == 2
        assert diary.failures[0][0] == "Unexpected"
        await loops.stop(1)

    run_virtually(scenario())


def test_a_fault_in_the_midst_of_a_plan_is_tried_again_soon() -> None:
    outcome = Outcome(fault="Pod/x does not answer", retry_after=timedelta(seconds=5))

    async def scenario() -> None:
        world = World(end=lambda work: Pass(key=work.key, outcome=outcome, wake_after=timedelta(seconds=5)))
        loops = Loops(world.make_pass, Diary())
        loops.ring(WORK)
        await asyncio.sleep(600)
        gaps = [later - earlier for (earlier, _), (later, _) in zip(world.started, world.started[1:], strict=False)]
        assert max(gaps) < 40
        await loops.stop(1)

    run_virtually(scenario())


def test_only_a_few_objects_are_worked_on_at_a_time_and_none_is_forgotten() -> None:
    async def scenario() -> None:
        world = World()
        loops = Loops(world.make_pass, Diary(), concurrency=3)
        works = [Work(kind=Kind.MODEL, key=Key(namespace="shop", name=f"m{n}")) for n in range(20)]
        for work in works:
            loops.ring(work)
        await asyncio.sleep(60)
        assert world.most_at_once == 3
        assert {work for _, work in world.started} == set(works)

    run_virtually(scenario())


def test_a_stop_lets_the_running_pass_finish_and_starts_no_other() -> None:
    async def scenario() -> None:
        world, diary = World(seconds=3), Diary()
        loops = Loops(world.make_pass, diary)
        loops.ring(WORK)
        await asyncio.sleep(1)
        await loops.stop(8)
        loops.ring(WORK)
        await asyncio.sleep(60)
        assert (len(world.started), diary.passes) == (1, 1)

    run_virtually(scenario())


def test_a_stop_does_not_wait_longer_than_its_grace() -> None:
    async def scenario() -> None:
        world = World(seconds=100)
        loops = Loops(world.make_pass, Diary())
        loops.ring(WORK)
        await asyncio.sleep(1)
        before = asyncio.get_running_loop().time()
        await loops.stop(8)
        assert asyncio.get_running_loop().time() - before <= 8.001
        assert world.at_once == 0

    run_virtually(scenario())
