"""The HTTP server: vLLM's routes over the engine, streaming included, and the life of the process around them.

It listens only once the pretended loading is over, as vLLM does, and ends as vLLM does: on SIGTERM requests
in flight have `--shutdown-timeout` seconds to finish while new ones are refused. It must not look like an
engine: every response says `x-specmodel-engine: replay`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import ssl
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from aiohttp import HttpVersion11, web

from specmodel_replay import ENGINE_NAME, VLLM_VERSION, faults, protocol
from specmodel_replay.engine import Engine
from specmodel_replay.metrics import Metrics
from specmodel_replay.protocol import Limits, Request, RequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from specmodel_replay.arguments import Settings
    from specmodel_replay.faults import Faults
    from specmodel_replay.table import Configuration

_LOG: Final = logging.getLogger("specmodel_replay")
_MOST_BODY_BYTES: Final = 64 * 2**20
# A client that does not read is dropped at this many unread bytes.
_MOST_UNREAD_BYTES: Final = 8 * 2**20
_CLOSE_SECONDS: Final = 2.0


class Answer:
    """Turns the tokens of one request into bytes: a stream of events, or nothing until the end."""

    def __init__(self, request: Request, identity: str, created: int) -> None:
        self.request = request
        self.identity = identity
        self.created = created
        self.text = ""
        self._tokens = 0
        self._before_open: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self.started = asyncio.Event()
        kind = "chat.completion.chunk" if request.is_chat else "text_completion"
        head = {"id": identity, "object": kind, "created": created, "model": request.model}
        opening = json.dumps(head)[:-1]
        if request.is_chat:
            self._head = f'{opening}, "choices": [{{"index": 0, "delta": {{"content": "'
            self._middle = '"}, "logprobs": null, "finish_reason": '
        else:
            self._head = f'{opening}, "choices": [{{"index": 0, "text": "'
            self._middle = '", "logprobs": null, "finish_reason": '
        self._opening = opening

    def emit(self, tokens: int) -> None:
        """Take this many more tokens."""
        text = self.request.words(self._tokens, tokens)
        if not self.request.is_streaming:
            self.text += text
            self._tokens += tokens
            return
        chunk = ""
        if not self._tokens and self.request.is_chat:
            chunk = self._event('"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""},'
                                ' "logprobs": null, "finish_reason": null}]' + self._running_usage(0))  # fmt: skip
        self._tokens += tokens
        is_last = self._tokens >= self.request.wanted.tokens
        reason = f'"{self.request.wanted.finish_reason}"' if is_last else "null"
        chunk += f'data: {self._head}{text}{self._middle}{reason}, "stop_reason": null}}]{self._running_usage()}}}\n\n'
        if is_last:
            if self.request.has_usage:
                chunk += self._event(f'"choices": [], "usage": {json.dumps(self.request.usage)}')
            chunk += "data: [DONE]\n\n"
        self._send(chunk.encode())

    def is_gone(self) -> bool:
        """Return whether the client has left or does not read."""
        if self._is_closed:
            return True
        transport = self._transport
        return transport is not None and (
            transport.is_closing() or transport.get_write_buffer_size() > _MOST_UNREAD_BYTES
        )

    def open(self, transport: asyncio.Transport) -> bytes:
        """Return what was emitted so far; from now on tokens go straight to the transport, framed as HTTP chunks."""
        self._transport = transport
        return self.take()

    def take(self) -> bytes:
        """Return what was emitted and not yet sent."""
        pending, self._before_open = b"".join(self._before_open), []
        return pending

    def close(self) -> None:
        """Note that the client is gone."""
        self._is_closed = True

    def whole(self) -> dict[str, Any]:
        """Return the answer to a request that does not stream."""
        reason = self.request.wanted.finish_reason
        choice: dict[str, Any] = {"index": 0}
        if self.request.is_chat:
            choice["message"] = {"role": "assistant", "content": self.text, "tool_calls": []}
        else:
            choice["text"] = self.text
        return {
            "id": self.identity,
            "object": "chat.completion" if self.request.is_chat else "text_completion",
            "created": self.created,
            "model": self.request.model,
            "choices": [choice | {"logprobs": None, "finish_reason": reason, "stop_reason": None}],
            "usage": self.request.usage,
        }

    def _event(self, rest: str) -> str:
        return f"data: {self._opening}, {rest}}}\n\n"

    def _running_usage(self, tokens: int | None = None) -> str:
        if not self.request.has_running_usage:
            return ""
        return f', "usage": {json.dumps(self.request.usage_after(self._tokens if tokens is None else tokens))}'

    def _send(self, chunk: bytes) -> None:
        self.started.set()
        if self._transport is None:
            self._before_open.append(chunk)
        elif not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))


class Server:
    """The routes and the state they share."""

    def __init__(
        self, settings: Settings, configuration: Configuration, table_name: str, wanted_faults: Faults
    ) -> None:
        self._settings = settings
        self._table_name = table_name
        self._configuration = configuration
        self._faults = wanted_faults
        self._metrics = Metrics(
            model_name=settings.served_names[0],
            speculative_tokens=settings.shape.speculative_tokens,
            max_model_len=settings.max_model_len,
            kv_cache_dtype=settings.kv_cache_dtype,
        )
        self.engine = Engine(
            configuration, max_running=settings.max_num_seqs, seed=settings.seed, metrics=self._metrics
        )
        self.engine.slowdown = wanted_faults.slowdown
        self.engine.is_hanging = wanted_faults.is_hanging
        self._limits = Limits(
            models=(*settings.served_names, *settings.adapters),
            max_model_len=settings.max_model_len,
            is_speculating=settings.shape.speculative_tokens > 0,
            is_usage_forced=settings.is_usage_forced,
            natural_tokens=configuration.output_tokens,
        )
        self._created = int(time.time())
        self._error_debt = 0.0
        self.is_draining = False

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=[self._guard])
        application.on_response_prepare.append(_say_replay)
        root = self._settings.root_path
        for path, handler in (
            ("/health", self._health), ("/ping", self._health), ("/version", self._version), ("/load", self._load),
            ("/metrics", self._show_metrics), ("/v1/models", self._models),
        ):  # fmt: skip
            application.router.add_get(root + path, handler)
        application.router.add_post(root + "/ping", self._health)
        application.router.add_post(root + "/v1/chat/completions", self._chat)
        application.router.add_post(root + "/v1/completions", self._completions)
        return application

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._settings.api_keys and request.path.removeprefix(self._settings.root_path).startswith("/v1"):
            scheme, _, key = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or key not in self._settings.api_keys:
                return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except RequestError as error:
            return web.json_response(error.body, status=error.status)
        except web.HTTPException as error:
            return web.json_response({"detail": error.reason}, status=error.status)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "version": VLLM_VERSION,
                "engine": ENGINE_NAME,
                "table": self._table_name,
                "configuration": self._configuration.name,
            }
        )

    async def _load(self, _: web.Request) -> web.Response:
        return web.json_response({"server_load": self.engine.in_flight})

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _models(self, _: web.Request) -> web.Response:
        names = self._limits.models
        roots = [self._settings.model] * len(self._settings.served_names) + list(self._settings.adapters)
        served = self._settings.served_names
        return web.json_response({
            "object": "list",
            "data": [
                {
                    "id": name, "object": "model", "created": self._created, "owned_by": "specmodel-replay",
                    "root": root, "parent": None if name in served else served[0],
                    "max_model_len": self._settings.max_model_len, "permission": [],
                }
                for name, root in zip(names, roots, strict=True)
            ],
        })  # fmt: skip

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, is_chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, is_chat=False)

    async def _generate(self, http: web.Request, *, is_chat: bool) -> web.StreamResponse:
        body = await http.read()
        request = protocol.parse(body, self._limits, is_chat=is_chat)
        if self._faults.die_at_first_request is not None:
            die(self._faults.die_at_first_request)
        self._fail_some()
        if self.is_draining:
            raise RequestError(500, "InternalServerError", "The engine is shutting down and takes no new requests.")
        identity = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        answer = Answer(request, identity, int(time.time()))
        job = self.engine.submit(request.wanted, answer)
        try:
            if request.is_streaming:
                return await self._stream(http, answer, job.done)
            if not await job.done:
                raise RequestError(500, "InternalServerError", "The request was aborted: the engine shut down.")
            return web.json_response(answer.whole())
        finally:
            answer.close()
            self.engine.abort(job)

    async def _stream(self, http: web.Request, answer: Answer, done: asyncio.Future[bool]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        has_chunks = http.version >= HttpVersion11
        if has_chunks:
            response.enable_chunked_encoding()
        await response.prepare(http)
        started: asyncio.Task[bool] = asyncio.ensure_future(answer.started.wait())
        await asyncio.wait([started, done], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        transport = http.transport
        if transport is not None and has_chunks:
            # The first bytes carry the headers with them; later ones are written by the engine's tick itself,
            # as a task switch for every token of every stream would cost several times the processor time.
            if pending := answer.open(transport):
                await response.write(pending)
            is_complete = await done
        else:  # HTTP/1.0 has no chunks: everything at the end
            is_complete = await done
            await response.write(answer.take())
        if not is_complete and transport is not None:
            transport.abort()
        return response

    def _fail_some(self) -> None:
        """Raise for the wanted share of requests, evenly spread."""
        self._error_debt += self._faults.error_rate
        if self._error_debt >= 1:
            self._error_debt -= 1
            raise RequestError(500, "InternalServerError", "Injected by SPECMODEL_REPLAY_FAULT.")


async def _say_replay(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["x-specmodel-engine"] = ENGINE_NAME
    response.headers["Server"] = "specmodel-replay"


def die(last_line: str) -> None:
    """End the process at once with status 1, as an engine whose core died."""
    sys.stderr.write(faults.traceback_like(last_line))
    sys.stderr.flush()
    os._exit(1)


async def serve(server: Server, settings: Settings, wanted_faults: Faults, startup_seconds: float) -> None:
    """Pretend to load, listen, and return once a signal came and what was in flight is done or out of time."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), None if wanted_faults.is_never_ready else startup_seconds)
    if stop.is_set():
        return
    if wanted_faults.die_at_start is not None:
        die(wanted_faults.die_at_start)
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSE_SECONDS,
        keepalive_timeout=75, handle_signals=False,
    )  # fmt: skip
    await runner.setup()
    context = None
    if settings.certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*settings.certificate)
    site = web.TCPSite(runner, settings.host, settings.port, backlog=1024, ssl_context=context)
    await site.start()
    gc.freeze()
    _LOG.info("listening on %s", ", ".join(f"{address[0]}:{address[1]}" for address in runner.addresses))
    await stop.wait()
    server.is_draining = True
    if server.engine.in_flight and settings.shutdown_timeout:
        _LOG.info("draining %d requests for at most %d s", server.engine.in_flight, settings.shutdown_timeout)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.engine.wait_until_idle(), settings.shutdown_timeout)
    if server.engine.in_flight:
        _LOG.info("aborting %d requests", server.engine.in_flight)
    server.engine.abort_all()
    await runner.cleanup()
    _LOG.info("stopped")
