"""The server that is measured, apart from the load: does it answer, serve the model, what is it, what did it count.

Every question has a deadline. What it answers is bounded and checked: a target may be any endpoint that a user names.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass

import aiohttp

from specmodel.bench.counters import TEXT_MAXIMUM_BYTES, Counters, read_counters
from specmodel.bench.load import Load, Prompt, RequestRecord, is_redirection, redirection, request
from specmodel.bench.prompts import COMPLETIONS, TokenIds, Words, words_of

#: One answer of the target, apart from the load.
ANSWER_SECONDS = 10.0
POLL_SECONDS = 1.0
ANSWER_MAXIMUM_BYTES = 1 << 20

#: Ranges of token ids to try: all common vocabularies but the smallest hold the first, and none has a special token
#: in it (they lie below 1000 or at the end).
TOKEN_RANGES = (TokenIds(first=1000, last=30_000), TokenIds(first=300, last=1000), TokenIds(first=16, last=200))
#: Prompts of so many words show how many tokens a word has.
CALIBRATION_WORDS = (20, 120)


class TargetUnreachableError(Exception):
    """The target did not answer in time; the message says how it failed last."""


class ModelNotServedError(Exception):
    """The target answers, but does not list the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a target says that it is. `engine` is `replay` only where it says so, and empty if it says nothing."""

    engine: str = ""
    version: str = ""
    replay_table: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetServer:
    """One server behind a URL without path."""

    session: aiohttp.ClientSession
    url: str
    model: str

    async def wait_until_served(self, seconds: float) -> None:
        """Return once /v1/models lists the model.

        Raises TargetUnreachableError when it has not answered well for `seconds`, ModelNotServedError as soon as it
        answers without the model.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                status, text = await self._get("/v1/models")
                problem = text if is_redirection(status) else f"HTTP {status}"
            except (aiohttp.ClientError, OSError) as error:
                status, text = 0, ""
                problem = f"{type(error).__name__}: {error}" if str(error) else "no answer in time"
            if status == 200:
                self._check_listed(text)
                return
            if time.monotonic() + POLL_SECONDS > deadline:
                message = f"{self.url}/v1/models did not answer for {seconds:.0f} s; at last: {problem}"
                raise TargetUnreachableError(message)
            await asyncio.sleep(POLL_SECONDS)

    def _check_listed(self, text: str) -> None:
        try:
            listed = [str(model["id"]) for model in json.loads(text)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            message = f"{self.url}/v1/models is no list of models: {text[:100]!r}"
            raise ModelNotServedError(message) from error
        if self.model not in listed:
            message = f"{self.url} serves {', '.join(sorted(listed)[:8]) or 'no model'}, not {self.model}"
            raise ModelNotServedError(message)

    async def identity(self) -> Identity:
        """Return what /version says, or an empty identity for a target that has no such page."""
        try:
            status, text = await self._get("/version")
            value = json.loads(text) if status == 200 else None
        except (aiohttp.ClientError, OSError, ValueError):
            return Identity()
        if not isinstance(value, dict) or "version" not in value:
            return Identity()
        return Identity(
            engine="replay" if value.get("engine") == "replay" else "vllm",
            version=str(value["version"])[:64],
            replay_table=str(value.get("table", ""))[:253],
        )

    async def counters(self) -> Counters:
        """Return the counters of /metrics; empty where the target has no such page.

        Raises TargetUnreachableError when it does not answer or redirects, MetricsError for a bad page.
        """
        for attempt in (1, 2, 3):
            try:
                status, text = await self._get("/metrics", maximum=TEXT_MAXIMUM_BYTES)
            except (aiohttp.ClientError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if status == 200:
                    return read_counters(text)
                if is_redirection(status):
                    message = f"{self.url}/metrics: {text}"
                    raise TargetUnreachableError(message)
                if status < 500:
                    return Counters()
                problem = f"HTTP {status}"
            await asyncio.sleep(attempt * POLL_SECONDS)
        message = f"{self.url}/metrics did not answer: {problem}"
        raise TargetUnreachableError(message)

    async def vocabulary(self) -> TokenIds | Words:
        """Return how synthetic prompts are written for this target, by trying it with requests of two tokens.

        Raises ModelNotServedError when it completes none of them.
        """
        generator = random.Random(0)  # noqa: S311  prompts, not secrets
        for ids in TOKEN_RANGES:
            record = await self._try(ids.prompt(generator, 64))
            if not record.error:
                return ids
        few, many = CALIBRATION_WORDS
        short = await self._try(Prompt(path=COMPLETIONS, body={"prompt": words_of(generator, few)}))
        long = await self._try(Prompt(path=COMPLETIONS, body={"prompt": words_of(generator, many)}))
        if short.error or long.error or long.prompt_tokens <= short.prompt_tokens:
            problem = short.error or long.error or "usage.prompt_tokens does not grow with the prompt"
            await self._must_still_answer(problem)
            message = f"{self.url}{COMPLETIONS} completes neither token ids nor text for model {self.model}: {problem}"
            raise ModelNotServedError(message)
        rate = (long.prompt_tokens - short.prompt_tokens) / (many - few)
        return Words(tokens_per_word=rate, tokens_before=short.prompt_tokens - rate * few)

    async def _must_still_answer(self, problem: str) -> None:
        """Raise TargetUnreachableError when nothing answers any more: an engine may die at its first request.

        A vLLM whose engine is dead answers 503 until it has shut down.
        """
        try:
            status, _ = await self._get("/health")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TargetUnreachableError(f"{self.url} stopped answering after its first requests: {problem}") from error
        if status >= 500:
            raise TargetUnreachableError(f"{self.url} is not healthy any more after its first requests: {problem}")

    async def _try(self, prompt: Prompt) -> RequestRecord:
        load = Load(url=self.url, model=self.model, concurrency=1, temperature=0.0, output_tokens=2, ignore_eos=False)
        return await request(self.session, load, prompt)

    async def _get(self, path: str, *, maximum: int = ANSWER_MAXIMUM_BYTES) -> tuple[int, str]:
        """Return the status and the body, or in the body's place what a redirect says: none is followed."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with self.session.get(self.url + path, timeout=timeout, allow_redirects=False) as response:
            if is_redirection(response.status):
                return response.status, redirection(response)
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > maximum:
                    break
            return response.status, content.decode(errors="replace")
