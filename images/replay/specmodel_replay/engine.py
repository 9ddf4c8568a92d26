"""The clockwork: admits requests, decides from the table when each token is due, and hands tokens to whoever listens.

It is the only reader of the clock here and knows nothing of HTTP. All running requests are advanced together
by one tick, as an engine's step advances its batch. Each request carries its progress from 0 (first token) to
1 (last token) and moves at 1 / (the time its tokens take at the number of requests now in flight): progress
follows wall time exactly, so late ticks cause no drift, and a load that changes changes the pace of what is
already running.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from specmodel_replay.pace import Acceptance, Cycle, Draw, Pace

if TYPE_CHECKING:
    from specmodel_replay.metrics import Metrics
    from specmodel_replay.table import Configuration

# A request is given its place in the distributions only when the load that it met is known: requests that are sent
# together arrive within some milliseconds, and each of them must count as meeting all the others.
_SETTLE_SECONDS: Final = 0.03
_QUIET_SECONDS: Final = 0.01
# The load before a request ended still counts for this long: the client that waited for it is about to send
# its next one.
_HOLD_SECONDS: Final = 0.15
# After this much silence the next load begins a new cycle of draws.
_SILENCE_SECONDS: Final = 0.25
_SHORTEST_TICK_SECONDS: Final = 0.002
_LONGEST_TICK_SECONDS: Final = 0.05
# Ticks are never exactly on time: what is due within half the shortest tick is emitted now, so that the error
# has no bias.
_SLACK_SECONDS: Final = _SHORTEST_TICK_SECONDS / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request asks for: it gets `tokens` tokens, of the `max_tokens` that it would have taken."""

    tokens: int
    max_tokens: int
    prompt_tokens: int

    @property
    def finish_reason(self) -> str:
        """How the answer ends: "length" at the limit, otherwise "stop"."""
        return "length" if self.tokens >= self.max_tokens else "stop"


class Sink(Protocol):
    """Whoever listens to one request."""

    def emit(self, tokens: int) -> None:
        """Take this many more tokens."""

    def is_gone(self) -> bool:
        """Return whether nobody listens any more."""


@dataclass(slots=True, eq=False)
class Job:
    """One request in the engine; times are seconds of the event loop's clock, durations seconds."""

    wanted: Wanted
    sink: Sink
    arrived: float
    done: asyncio.Future[bool]
    admitted: float = 0.0
    draw: Draw | None = None
    peak: int = 0  # the most requests in flight before the first token
    first_token: float = 0.0
    load: int = 0  # the number of requests in flight that `decode` was read for
    decode: float = 0.0
    progress: float = 0.0  # of the tokens after the first, from 0 to 1
    steps: list[int] = field(default_factory=list)  # tokens of each step after the first
    next_step: int = 0
    last_emit: float = 0.0
    emitted: int = 0


class Engine:
    """Runs the jobs of one configuration; `max_running` at a time, the others wait in order of arrival."""

    def __init__(self, configuration: Configuration, *, max_running: int, seed: int, metrics: Metrics) -> None:
        self._pace = Pace(configuration)
        self._cycles = {level.concurrency: Cycle(level, seed) for level in configuration.levels}
        self._acceptance = Acceptance()
        self._is_drafting = configuration.shape.speculative_tokens > 0
        self._max_running = max_running
        self._metrics = metrics
        self._running: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._held: deque[tuple[float, int]] = deque()  # until when the load before an end still counts, and that load
        self._last_tick = 0.0
        self._last_arrival = 0.0
        self._last_busy = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.slowdown = 1.0
        self.is_hanging = False

    @property
    def in_flight(self) -> int:
        """The number of requests that are running or waiting."""
        return len(self._running) + len(self._waiting)

    def submit(self, wanted: Wanted, sink: Sink) -> Job:
        """Take a request; its `done` becomes True with the last one, False when it was aborted."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._running:
            self._last_tick = now
            if now - self._last_busy > _SILENCE_SECONDS:
                for cycle in self._cycles.values():
                    cycle.restart()
        job = Job(wanted=wanted, sink=sink, arrived=now, done=loop.create_future())
        self._waiting.append(job)
        self._idle.clear()
        self._last_arrival = now
        self._admit(now)
        self._wake_at(loop, now + _SETTLE_SECONDS)
        return job

    def abort(self, job: Job) -> None:
        """Drop a request whose client is gone; does nothing when it has already ended."""
        if job.done.done():
            return
        now = asyncio.get_running_loop().time()
        if job in self._running:
            self._running.remove(job)
        else:
            self._waiting.remove(job)
        self._end(job, now, is_complete=False)
        self._admit(now)

    def abort_all(self) -> None:
        """Drop every request."""
        for job in [*self._waiting, *self._running]:
            self.abort(job)

    async def wait_until_idle(self) -> None:
        """Return when no request is left; the caller sets the deadline."""
        await self._idle.wait()

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._running) < self._max_running:
            job = self._waiting.popleft()
            job.admitted = now
            self._running.append(job)
        self._metrics.load(running=len(self._running), waiting=len(self._waiting))

    def _wake_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        elapsed, self._last_tick = now - self._last_tick, now
        while self._held and self._held[0][0] <= now:
            self._held.popleft()
        load = max((held for _, held in self._held), default=0)
        load = max(load, len(self._running))
        wake = now + _LONGEST_TICK_SECONDS
        ended: list[Job] = []
        for job in self._running:
            due = self._advance(job, now, elapsed, load)
            if due is None:
                ended.append(job)
            elif due < wake:
                wake = due
        for job in ended:
            self._held.append((now + _HOLD_SECONDS, len(self._running)))
            self._running.remove(job)
            self._end(job, now, is_complete=job.emitted >= job.wanted.tokens)
        if ended:
            self._admit(now)
        if self._running:
            self._last_busy = now
            self._wake_at(loop, max(wake, now + _SHORTEST_TICK_SECONDS))

    def _advance(self, job: Job, now: float, elapsed: float, load: int) -> float | None:
        """Move a job to now, emit what is due and return when it wants the next tick; None when it has ended."""
        if job.sink.is_gone():
            return None
        if job.first_token:
            if load != job.load:
                self._read_decode(job, load)
            job.progress += elapsed / job.decode
            return self._emit_due(job, now)
        job.peak = max(job.peak, load)
        if job.draw is None:
            settled_at = job.admitted + min(_SETTLE_SECONDS, self._pace.least_ttft(1) * self.slowdown)
            quiet_at = min(self._last_arrival + _QUIET_SECONDS, job.admitted + self._pace.least_ttft(job.peak))
            if now < max(settled_at, quiet_at):
                return max(settled_at, quiet_at)
            job.draw = self._cycles[self._pace.nearest(job.peak).concurrency].draw()
        due = job.admitted + self._pace.ttft(job.draw, job.peak) * self.slowdown
        if self.is_hanging:
            return now + _LONGEST_TICK_SECONDS
        if now + _SLACK_SECONDS < due:
            return due
        return self._emit_first(job, now, due, load)

    def _read_decode(self, job: Job, load: int) -> None:
        assert job.draw is not None  # noqa: S101 - only jobs past their first token come here
        job.load = load
        job.decode = max(self._pace.decode(job.draw, load, job.wanted.tokens) * self.slowdown, 1e-6)

    def _emit_first(self, job: Job, now: float, due: float, load: int) -> float | None:
        job.first_token = job.last_emit = now
        job.emitted = 1
        self._metrics.first_token(now - job.arrived, job.wanted.prompt_tokens)
        job.sink.emit(1)
        if job.wanted.tokens == 1:
            return None
        self._read_decode(job, load)
        job.progress = (now - due) / job.decode
        job.steps = self._plan_steps(job.wanted.tokens - 1, load)
        return self._emit_due(job, now)

    def _plan_steps(self, tokens: int, load: int) -> list[int]:
        """Return how many tokens each step brings; the last may bring more than are wanted."""
        rates = self._pace.acceptance(load)
        if not rates:
            return [1] * tokens
        steps = []
        while tokens > 0:
            steps.append(1 + self._acceptance.step(rates))
            tokens -= steps[-1]
        return steps

    def _emit_due(self, job: Job, now: float) -> float | None:
        """Emit the steps that are due; return when the next one is, None when there is none."""
        steps = len(job.steps)
        due = min(int((job.progress + _SLACK_SECONDS / job.decode) * steps), steps)
        if job.next_step < due:
            self._metrics.inter_token(now - job.last_emit, due - job.next_step)
            job.last_emit = now
        while job.next_step < due:
            produced = job.steps[job.next_step]
            job.next_step += 1
            taken = min(produced, job.wanted.tokens - job.emitted)
            job.emitted += taken
            self._metrics.step(taken, produced - 1 if self._is_drafting else None)
            job.sink.emit(taken)
        if job.next_step == steps:
            return None
        return now + ((job.next_step + 1) / steps - job.progress) * job.decode

    def _end(self, job: Job, now: float, *, is_complete: bool) -> None:
        reason = job.wanted.finish_reason if is_complete else "abort"
        self._metrics.ended(job, now, finished_reason=reason)
        if not job.done.done():
            job.done.set_result(is_complete)
        if not self.in_flight:
            self._metrics.load(running=0, waiting=0)
            self._idle.set()
