"""The load generator: a closed loop of streams over one OpenAI-compatible server. Why it is ours: docs/decisions/0002.

Port: `run_cell` for what is measured and `warm_up` for what is discarded. It knows nothing of Kubernetes, cells'
verdicts or counters, so another generator can stand here without a change elsewhere.

Definitions are those of `vllm bench serve`: TTFT ends at the first chunk that carries a choice, E2E at the last one,
TPOT is (E2E - TTFT) / (output tokens - 1), a gap is the time between two chunks, output tokens are the server's usage.
Times are seconds on the monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import aiohttp

#: Name and version that go into the provenance of every number.
LOAD_GENERATOR = "specmodel-closed-loop/1"

#: A line of an event stream longer than this is no token: the request fails instead of filling memory.
LINE_MAXIMUM_BYTES = 1 << 20

#: uvicorn closes idle connections after 5 s; reusing one at that moment would fail a request that is not at fault.
KEEPALIVE_SECONDS = 2.0

CONNECT_SECONDS = 30.0
ERROR_TEXT_MAXIMUM = 300
LOCATION_MAXIMUM = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What one request asks: `body` holds `prompt` (text or token ids) or `messages`, `path` the endpoint for it."""

    path: str
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How one cell asks: always explicit, since a server's default for any of these changes what is measured."""

    url: str
    model: str
    concurrency: int
    temperature: float
    output_tokens: int
    #: True for synthetic prompts: every request then returns exactly `output_tokens` tokens, or fails.
    ignore_eos: bool
    #: Keeps one cell's prefixes out of another's cache; None for a server that is not known to take it.
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a cell may take: seconds without any finished request, and seconds in all."""

    stall_seconds: float
    cell_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as its client saw it, in seconds. `error` is empty for a completed request."""

    ttft: float = 0.0
    e2e: float = 0.0
    output_tokens: int = 0
    prompt_tokens: int = 0
    gaps: tuple[float, ...] = ()
    error: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first, or None where there is no second token."""
        if self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """All requests of a cell and the seconds from the first request's start to the last one's end."""

    records: tuple[RequestRecord, ...]
    seconds: float


class StalledError(Exception):
    """No request finished for `Patience.stall_seconds`. The caller ends the run."""


class CellDeadlineError(Exception):
    """The cell took longer than `Patience.cell_seconds`. The caller ends the run."""


def open_session(
    *, stall_seconds: float, api_key: str = "", verify: ssl.SSLContext | bool = True
) -> aiohttp.ClientSession:
    """Return a session for a target: no limit on connections but the streams, no proxy, no cookies.

    A read that brings nothing for `stall_seconds` fails its request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, ssl=verify),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=stall_seconds),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=1 << 18,
    )


async def run_cell(
    session: aiohttp.ClientSession,
    load: Load,
    prompts: Iterable[Prompt],
    patience: Patience,
    finished: Callable[[RequestRecord], None] = lambda _: None,
) -> LoadResult:
    """Send every prompt once, at most `load.concurrency` at a time, the next as soon as one ends.

    `finished` is called with each record. Raises StalledError or CellDeadlineError, with every request cancelled; a
    request that fails is a record with an error, never an exception.
    """
    loop = _ClosedLoop(session, load, iter(prompts), finished)
    start = time.perf_counter()
    await loop.until_done(patience)
    return LoadResult(records=tuple(loop.records), seconds=time.perf_counter() - start)


async def warm_up(
    session: aiohttp.ClientSession, load: Load, prompts: Iterable[Prompt], seconds: float, patience: Patience
) -> tuple[RequestRecord, ...]:
    """Load for `seconds`, and until one request has finished, then cancel what is in flight.

    `prompts` must not run dry. Returns the finished requests, for an estimate only: they are measured under a ramp.
    Raises StalledError when not one finishes in `patience.stall_seconds`.
    """
    enough = asyncio.Event()
    loop = _ClosedLoop(session, load, iter(prompts), lambda _: enough.set())
    working = asyncio.create_task(loop.until_done(patience))
    waiting = asyncio.create_task(_both(seconds, enough))
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
    return tuple(loop.records)


async def _both(seconds: float, enough: asyncio.Event) -> None:
    await asyncio.sleep(seconds)
    await enough.wait()


@dataclass(slots=True)
class _ClosedLoop:
    """The streams of one cell. The iterator of prompts is the queue that they share."""

    session: aiohttp.ClientSession
    load: Load
    prompts: Iterator[Prompt]
    finished: Callable[[RequestRecord], None]
    records: list[RequestRecord] = field(default_factory=list)
    last: float = 0.0

    async def until_done(self, patience: Patience) -> None:
        begun = self.last = time.monotonic()
        streams = {asyncio.create_task(self._stream()) for _ in range(self.load.concurrency)}
        pending = streams
        try:
            while pending:
                now = time.monotonic()
                quiet, taken = now - self.last, now - begun
                if quiet >= patience.stall_seconds:
                    message = f"no request finished for {quiet:.0f} s ({len(self.records)} had)"
                    raise StalledError(message)
                if taken >= patience.cell_seconds:
                    message = f"the cell was not done after {taken:.0f} s ({len(self.records)} requests had finished)"
                    raise CellDeadlineError(message)
                left = min(patience.stall_seconds - quiet, patience.cell_seconds - taken)
                done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for stream in done:
                    stream.result()
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    async def _stream(self) -> None:
        for prompt in self.prompts:
            record = await request(self.session, self.load, prompt)
            self.records.append(record)
            self.last = time.monotonic()
            self.finished(record)
            if record.error:
                # A server that refuses at once must not make this loop spin.
                await asyncio.sleep(0.01)


async def request(session: aiohttp.ClientSession, load: Load, prompt: Prompt) -> RequestRecord:
    """Send one streamed request and return what it brought, or a record with its error."""
    body: dict[str, object] = {
        **prompt.body,
        "model": load.model,
        "max_tokens": load.output_tokens,
        "temperature": load.temperature,
        "top_p": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if load.ignore_eos:
        body["ignore_eos"] = True
    if load.cache_salt is not None:
        body["cache_salt"] = load.cache_salt
    try:
        return await _timed(session, load, prompt.path, body)
    except TimeoutError:
        return RequestRecord(error="the server sent nothing in time")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return RequestRecord(error=f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAXIMUM])


async def _timed(session: aiohttp.ClientSession, load: Load, path: str, body: dict[str, object]) -> RequestRecord:
    start = time.perf_counter()
    first: float | None = None
    latest = start
    gaps: list[float] = []
    usage: object = None
    async with session.post(load.url + path, json=body, allow_redirects=False) as response:
        if is_redirection(response.status):
            return RequestRecord(error=redirection(response)[:ERROR_TEXT_MAXIMUM])
        if response.status != 200:
            text = (await response.content.read(ERROR_TEXT_MAXIMUM)).decode(errors="replace")
            return RequestRecord(error=f"HTTP {response.status}: {text}"[:ERROR_TEXT_MAXIMUM])
        async for event in _events(response.content):
            now = time.perf_counter()
            if event.get("error"):
                return RequestRecord(error=f"in the stream: {event['error']}"[:ERROR_TEXT_MAXIMUM])
            usage = event.get("usage") or usage
            if not _carries_output(event):
                continue
            if first is None:
                first = now
            else:
                gaps.append(now - latest)
            latest = now
    if first is None:
        return RequestRecord(error="the stream held no token")
    return _checked(
        RequestRecord(
            ttft=first - start,
            e2e=latest - start,
            output_tokens=_count(usage, "completion_tokens"),
            prompt_tokens=_count(usage, "prompt_tokens"),
            gaps=tuple(gaps),
        ),
        load,
    )


def is_redirection(status: int) -> bool:
    """Return whether an HTTP status sends the client elsewhere. None is followed: only the target is measured."""
    return 300 <= status < 400


def redirection(response: aiohttp.ClientResponse) -> str:
    """Return what a redirecting answer says, for people, with its Location cut to a bounded length."""
    location = response.headers.get("Location", "")[:LOCATION_MAXIMUM]
    where = f"to {location!r}" if location else "without a Location"
    return f"HTTP {response.status} redirects {where}; redirects are not followed: name the final URL as the target"


def _checked(record: RequestRecord, load: Load) -> RequestRecord:
    """Return the record, or a failed one where the server's own count contradicts what was asked."""
    tokens = record.output_tokens
    if tokens < 1:
        return RequestRecord(error="the stream ended without usage.completion_tokens: it cannot be counted")
    if tokens > load.output_tokens or (load.ignore_eos and tokens != load.output_tokens):
        return RequestRecord(error=f"asked for {load.output_tokens} tokens, the server counted {tokens}")
    return record


def _count(usage: object, key: str) -> int:
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _carries_output(event: Mapping[str, object]) -> bool:
    """Whether an event carries output: a choice, but not the empty one by which a chat names its role."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta")
    if not isinstance(delta, dict):
        return True
    return not (delta.get("role") and not any(delta.get(key) for key in ("content", "reasoning", "reasoning_content")))


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, object]]:
    """Yield the JSON objects of a server-sent event stream up to `[DONE]`. Raises ValueError for what is none."""
    rest = b""
    async for chunk in content.iter_any():
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > LINE_MAXIMUM_BYTES:
            message = f"a line of the stream is longer than {LINE_MAXIMUM_BYTES} bytes"
            raise ValueError(message)
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                # Read on to the end, so that the connection can be used again.
                continue
            event = json.loads(data)
            if not isinstance(event, dict):
                message = f"an event of the stream is no JSON object: {data[:80]!r}"
                raise ValueError(message)  # noqa: TRY004  every malformed stream is one kind of error
            yield event
