"""Ask one pod for a few tokens, and see its counters move. The last gate before traffic.

Talks to the engine only, never to the API server. Answers come from a pod: they are bounded in size and in time.
"""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass
from datetime import timedelta

import aiohttp

from specmodel.manifests.engine_arguments import PORT

#: How long asking may take in all; a first request may compile kernels.
DEADLINE = timedelta(seconds=60)
#: How long after an answer the counters may take to move.
COUNTERS_DEADLINE = timedelta(seconds=10)
COUNTERS_INTERVAL = timedelta(milliseconds=300)
TOKENS = 16
ANSWER_MAXIMUM = 4 * 2**20
GENERATED = "vllm:generation_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}\n]*\})?\s+([0-9.eE+-]+)", re.MULTILINE)


class NoAnswerError(Exception):
    """The pod did not answer, or its counters did not move: the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What an engine has counted since it started, over all its label sets."""

    generated: float
    drafts: float


def read_counters(exposition: str) -> Counters:
    """Return the counters of a Prometheus text exposition; a counter that is missing is 0."""
    sums = {GENERATED: 0.0, DRAFTS: 0.0}
    for name, number in _SAMPLE.findall(exposition):
        if name in sums:
            try:
                value = float(number)
            except ValueError:
                continue
            sums[name] += value if math.isfinite(value) else 0.0
    return Counters(generated=sums[GENERATED], drafts=sums[DRAFTS])


async def ask(ip: str, served_name: str, *, expects_speculation: bool, port: int = PORT) -> None:
    """Return when the pod answered and its counters moved. Raises `NoAnswerError`."""
    host = f"[{ip}]" if ":" in ip else ip
    base = f"http://{host}:{port}"
    seconds = DEADLINE.total_seconds()
    timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=5)
    try:
        async with (
            asyncio.timeout(seconds),
            aiohttp.ClientSession(timeout=timeout) as session,
        ):
            before = read_counters(await _text(session, f"{base}/metrics"))
            await _complete(session, base, served_name)
            await _see_counters_move(session, base, before, expects_speculation=expects_speculation)
    except TimeoutError as error:
        raise NoAnswerError(f"{base} did not answer within {seconds:.0f} s") from error
    except (aiohttp.ClientError, OSError, UnicodeError) as error:
        raise NoAnswerError(f"{base}: {error}") from error


async def _complete(session: aiohttp.ClientSession, base: str, served_name: str) -> None:
    body = {
        "model": served_name,
        "prompt": "The quick brown fox jumps over the lazy dog. The quick brown fox",
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    async with session.post(f"{base}/v1/completions", json=body, allow_redirects=False) as response:
        answer = await response.content.read(ANSWER_MAXIMUM)
        if response.status != 200:
            words = answer[:300].decode(errors="replace")
            raise NoAnswerError(f"{base}/v1/completions answered {response.status}: {words}")


async def _see_counters_move(
    session: aiohttp.ClientSession, base: str, before: Counters, *, expects_speculation: bool
) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + COUNTERS_DEADLINE.total_seconds()
    while True:
        after = read_counters(await _text(session, f"{base}/metrics"))
        has_generated = after.generated > before.generated
        if has_generated and (not expects_speculation or after.drafts > before.drafts):
            return
        if loop.time() >= end:
            still = DRAFTS if has_generated else GENERATED
            raise NoAnswerError(f"{base} answered, but its counter {still} did not move")
        await asyncio.sleep(COUNTERS_INTERVAL.total_seconds())


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url, allow_redirects=False) as response:
        content = await response.content.read(ANSWER_MAXIMUM)
        if response.status != 200:
            raise NoAnswerError(f"{url} answered {response.status}")
        return content.decode(errors="replace")
