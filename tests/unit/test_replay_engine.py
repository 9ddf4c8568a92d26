"""The replay engine's clockwork under a clock of its own: closed loops, ramps, queues and aborts, in no real time."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from specmodel_replay import table
from specmodel_replay.engine import Engine, Wanted
from specmodel_replay.metrics import Metrics
from specmodel_replay.table import Configuration, Shape


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type, unused-ignore]
    """Never waits: the time that was to be waited passes at once on the loop's own clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everything waits for something that never comes")
        self.now += max(timeout, 0.0)
        return super().select(0)


def simulate(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` in an event loop whose clock jumps from timer to timer."""
    selector = _JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work())


@dataclass
class Listener:
    """Notes when tokens came."""

    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    gone: bool = False

    def emit(self, tokens: int) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.sizes.append(tokens)

    def is_gone(self) -> bool:
        return self.gone


def shape(tensor_parallel_size: int, speculative_tokens: int, weights: str = "BF16") -> Configuration:
    wanted = Shape(tensor_parallel_size=tensor_parallel_size, speculative_tokens=speculative_tokens, weights=weights)
    return table.load().configurations[wanted]


def engine(configuration: Configuration, max_running: int = 64) -> tuple[Engine, Metrics]:
    tokens = configuration.shape.speculative_tokens
    metrics = Metrics(model_name="m", speculative_tokens=tokens, max_model_len=4096, kv_cache_dtype="auto")
    return Engine(configuration, max_running=max_running, seed=0, metrics=metrics), metrics


WANTED = Wanted(tokens=256, max_tokens=256, prompt_tokens=1024)


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    value = metrics.registry.get_sample_value(f"vllm:{name}", {"engine": "0", "model_name": "m"} | labels)
    assert value is not None
    return value


async def closed_loop(server: Engine, requests: int, concurrency: int, gap: float = 0.002) -> tuple[float, list[float]]:
    """Return the duration and every latency, of clients that each send as soon as they were answered."""
    loop = asyncio.get_running_loop()
    left = iter(range(requests))
    latencies: list[float] = []

    async def client(delay: float) -> None:
        await asyncio.sleep(delay)
        for _ in left:
            began = loop.time()
            assert await server.submit(WANTED, Listener()).done
            latencies.append(loop.time() - began)
            await asyncio.sleep(gap)

    began = loop.time()
    await asyncio.gather(*(client(0.001 * index) for index in range(concurrency)))
    return loop.time() - began, latencies


def percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    place = (len(ordered) - 1) * fraction
    low, high = int(place), min(int(place) + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@pytest.mark.parametrize("concurrency", [1, 8, 32])
@pytest.mark.parametrize(
    "configuration",
    [shape(1, 0), shape(1, 3), shape(1, 5, "FP8"), shape(2, 3, "FP8")],
    ids=lambda configuration: configuration.name,
)
def test_a_closed_loop_shows_the_measured_throughput_and_percentiles(
    configuration: Configuration, concurrency: int
) -> None:
    (level,) = (level for level in configuration.levels if level.concurrency == concurrency)

    async def work() -> None:
        server, _ = engine(configuration)
        duration, latencies = await closed_loop(server, level.requests, concurrency)
        mean_rate = concurrency / level.e2e.mean * 1000
        assert level.requests / duration == pytest.approx(mean_rate, rel=0.05)
        assert percentile(latencies, 0.50) * 1000 == pytest.approx(level.e2e.p50, rel=0.03)
        assert percentile(latencies, 0.99) * 1000 == pytest.approx(level.e2e.p99, rel=0.03)

    simulate(work)


def test_requests_that_arrive_together_all_meet_the_full_load() -> None:
    configuration = shape(1, 0)

    async def work() -> None:
        server, _ = engine(configuration)
        _, latencies = await closed_loop(server, 32, 32)
        assert min(latencies) * 1000 > 0.9 * configuration.levels[-1].e2e.p50

    simulate(work)


def test_a_request_whose_company_leaves_gets_faster() -> None:
    configuration = shape(1, 0)

    async def work() -> None:
        server, _ = engine(configuration)
        loop = asyncio.get_running_loop()
        company = [server.submit(WANTED, Listener()) for _ in range(31)]
        alone = server.submit(WANTED, Listener())
        await asyncio.sleep(1.2)
        for job in company:
            server.abort(job)
        assert await alone.done
        full, single = configuration.levels[-1].e2e.p50 / 1000, configuration.levels[0].e2e.p50 / 1000
        assert single < loop.time() < 0.95 * full

    simulate(work)


def test_tokens_come_in_steps_of_one_and_the_accepted_and_end_at_the_wanted_number() -> None:
    configuration = shape(1, 3)

    async def work() -> None:
        server, metrics = engine(configuration)
        listeners = [Listener() for _ in range(8)]
        for job in [server.submit(WANTED, listener) for listener in listeners]:
            assert await job.done
        for listener in listeners:
            assert sum(listener.sizes) == 256
            assert listener.sizes[0] == 1
            assert set(listener.sizes) <= {1, 2, 3}
            assert listener.times == sorted(listener.times)
        drafts = sample(metrics, "spec_decode_num_drafts_total")
        drafted = sample(metrics, "spec_decode_num_draft_tokens_total")
        accepted = sample(metrics, "spec_decode_num_accepted_tokens_total")
        by_position = [
            sample(metrics, "spec_decode_num_accepted_tokens_per_pos_total", position=position) for position in "012"
        ]
        assert drafted == 3 * drafts
        assert accepted == sum(by_position)
        assert accepted / drafted == pytest.approx(0.355, abs=0.01)
        generated = sample(metrics, "generation_tokens_total")
        assert generated == 8 * 256
        # each request: one token of the prefill, then drafts + accepted, of which the last step may bring too many
        assert 0 <= 8 + drafts + accepted - generated <= 8 * 3

    simulate(work)


def test_without_speculation_there_are_no_speculation_series() -> None:
    _, metrics = engine(shape(1, 0))
    assert b"spec_decode" not in metrics.text()
    assert b"spec_decode" in engine(shape(1, 3))[1].text()


def test_more_than_the_engine_runs_at_once_wait_in_order() -> None:
    async def work() -> None:
        server, metrics = engine(shape(1, 0), max_running=2)
        jobs = [server.submit(WANTED, Listener()) for _ in range(5)]
        assert (sample(metrics, "num_requests_running"), sample(metrics, "num_requests_waiting")) == (2, 3)
        ended: list[int] = []

        async def note(index: int) -> None:
            await jobs[index].done
            ended.append(index)

        notes = [asyncio.create_task(note(index)) for index in range(5)]
        await server.wait_until_idle()
        await asyncio.gather(*notes)
        assert ended[-1] == 4
        assert sorted(ended) == [0, 1, 2, 3, 4]
        assert (sample(metrics, "num_requests_running"), sample(metrics, "num_requests_waiting")) == (0, 0)

    simulate(work)


def test_a_client_that_leaves_frees_its_place_and_counts_as_aborted() -> None:
    async def work() -> None:
        server, metrics = engine(shape(1, 0), max_running=1)
        gone, waiting = Listener(), Listener()
        first, second = server.submit(WANTED, gone), server.submit(WANTED, waiting)
        await asyncio.sleep(0.5)
        gone.gone = True
        assert not await first.done
        assert await second.done
        assert sample(metrics, "request_success_total", finished_reason="abort") == 1
        assert sample(metrics, "request_success_total", finished_reason="length") == 1

    simulate(work)


def test_a_request_for_one_token_ends_with_its_first_and_one_for_more_is_paced_in_proportion() -> None:
    async def work() -> None:
        server, _ = engine(shape(1, 0))
        loop = asyncio.get_running_loop()
        one = Listener()
        assert await server.submit(Wanted(tokens=1, max_tokens=1, prompt_tokens=3), one).done
        assert one.sizes == [1]
        assert loop.time() < 0.1
        long = Listener()
        assert await server.submit(Wanted(tokens=1024, max_tokens=1024, prompt_tokens=3), long).done
        assert sum(long.sizes) == 1024
        assert (long.times[-1] - long.times[0]) * 255 / 1023 == pytest.approx(1.245, rel=0.03)

    simulate(work)


def test_everything_can_be_slowed_down_and_a_hanging_engine_answers_nothing() -> None:
    async def work() -> None:
        slow, _ = engine(shape(1, 0))
        slow.slowdown = 1.5
        _, latencies = await closed_loop(slow, 12, 1)
        assert percentile(latencies, 0.5) == pytest.approx(1.5 * 1.279, rel=0.02)
        hanging, _ = engine(shape(1, 0))
        hanging.is_hanging = True
        listener = Listener()
        job = hanging.submit(WANTED, listener)
        await asyncio.sleep(60)
        assert not job.done.done()
        assert listener.sizes == []
        hanging.abort_all()
        assert not await job.done
        await hanging.wait_until_idle()

    simulate(work)
