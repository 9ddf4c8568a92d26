"""A small OpenAI-compatible engine on 127.0.0.1 that can be made to misbehave. It has no pace worth measuring."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

STEP_TOKENS = 2


@dataclass
class EngineServer:
    """One engine: what it says of itself, how slow it is, and which faults it has just now."""

    model: str = "tiny"
    version: dict[str, str] | None = field(
        default_factory=lambda: {"version": "0.25.1", "engine": "replay", "table": "h200-llama-8b"}
    )
    #: Seconds to the first token, and between steps of STEP_TOKENS tokens; more with more streams.
    first_token_seconds: float = 0.002
    step_seconds: float = 0.0005
    seconds_per_stream: float = 0.0
    takes_token_ids: bool = True
    #: Every n-th request is answered with 500; 0 for none.
    fails_every: int = 0
    #: From this request on nothing is answered; None for never.
    stalls_from: int | None = None
    #: From this request on completions get 500 and /health 503, as of a vLLM whose dead engine shuts down.
    dies_at: int | None = None
    #: Before this request the process "restarts": counters begin anew.
    restarts_at: int | None = None
    short_by: int = 0
    metrics_text: str | None = None
    sends_usage: bool = True
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    concurrent: int = 0
    most_concurrent: int = 0
    drafts: int = 0
    accepted: int = 0
    generated: int = 0
    born: float = 1_796_000_000.0

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def say_version(self, _: web.Request) -> web.Response:
        return web.json_response(self.version) if self.version else web.Response(status=404)

    @property
    def is_dead(self) -> bool:
        """Whether it died at one of its requests."""
        return self.dies_at is not None and len(self.requests) >= self.dies_at

    async def say_health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.is_dead else 200)

    async def metrics(self, _: web.Request) -> web.Response:
        if self.metrics_text is not None:
            return web.Response(text=self.metrics_text)
        labels = f'engine="0",model_name="{self.model}"'
        lines = [
            f"process_start_time_seconds {self.born}",
            f"vllm:generation_tokens_total{{{labels}}} {float(self.generated)}",
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {float(self.drafts)}",
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {float(3 * self.drafts)}",
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {float(self.accepted)}",
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="0"}} {float(self.accepted)}',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        number = len(self.requests)
        if isinstance(body.get("prompt"), list) and not self.takes_token_ids:
            return web.json_response({"error": {"message": "prompt: str expected"}}, status=400)
        if self.restarts_at == number:
            self.drafts = self.accepted = self.generated = 0
            self.born += 100
        if self.stalls_from is not None and number >= self.stalls_from:
            await asyncio.sleep(3600)
        if self.is_dead:
            return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)
        if self.fails_every and number % self.fails_every == 0:
            return web.json_response({"error": {"message": "broken on purpose"}}, status=500)
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        try:
            return await self._stream(request, body)
        finally:
            self.concurrent -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        is_chat = "messages" in body
        if is_chat:
            await _send(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        tokens = body["max_tokens"] - self.short_by
        await asyncio.sleep(self.first_token_seconds + self.concurrent * self.seconds_per_stream)
        for at in range(0, tokens, STEP_TOKENS):
            if at:
                await asyncio.sleep(self.step_seconds)
            self.drafts += 1
            self.accepted += 1
            self.generated += STEP_TOKENS
            choice = {"delta": {"content": "ab"}} if is_chat else {"text": "ab"}
            await _send(response, {"choices": [{"index": 0, **choice}]})
        if self.sends_usage:
            prompt = body.get("prompt", "")
            length = len(prompt) if isinstance(prompt, list) else 5 + 2 * len(str(prompt).split())
            usage = {"prompt_tokens": length, "completion_tokens": tokens, "total_tokens": length + tokens}
            await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


@asynccontextmanager
async def serving(engine: EngineServer) -> AsyncIterator[EngineServer]:
    """Serve an engine on a free port of 127.0.0.1 and set its `url`."""
    app = web.Application(client_max_size=1 << 24)
    app.add_routes(
        [
            web.get("/v1/models", engine.models),
            web.get("/version", engine.say_version),
            web.get("/health", engine.say_health),
            web.get("/metrics", engine.metrics),
            web.post("/v1/completions", engine.complete),
            web.post("/v1/chat/completions", engine.complete),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()
