"""Whether the process lives: /healthz and /readyz, served before there is a leader. /metrics on a port of its own.

Liveness is a heartbeat of real progress, not an open port: the age of the API server's last answer, and, in the
leader, of the last full look at all objects. A standby is Ready, so that a Deployment can roll.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

#: Seconds without an answer of the API server after which a restart is worth trying.
ANSWER_MAXIMUM_AGE = 180.0
#: Seconds without a full look (one every 300) after which the loops count as stuck.
LOOK_MAXIMUM_AGE = 1000.0


@dataclass(slots=True)
class Heartbeat:
    """When progress was last seen. `clock` is monotonic, in seconds."""

    clock: Callable[[], float] = time.monotonic
    is_leader: bool = False
    has_answered: bool = False
    _answered_at: float = field(init=False)
    _looked_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._answered_at = self._looked_at = self.clock()

    def answered(self) -> None:
        """Note an answer of the API server: a list, a watch, a renewal."""
        self.has_answered = True
        self._answered_at = self.clock()

    def lead(self) -> None:
        """Note that this process leads from now on."""
        self.is_leader = True
        self._looked_at = self.clock()

    def looked(self) -> None:
        """Note a full look at all objects."""
        self._looked_at = self.clock()

    @property
    def trouble(self) -> str | None:
        """Why this process should be restarted, or None."""
        silence = self.clock() - self._answered_at
        if silence > ANSWER_MAXIMUM_AGE:
            return f"no answer from the API server for {silence:.0f} s"
        stuck = self.clock() - self._looked_at
        if self.is_leader and stuck > LOOK_MAXIMUM_AGE:
            return f"no full look at all objects for {stuck:.0f} s"
        return None


async def serve(stack: AsyncExitStack, *, heartbeat: Heartbeat, bind: str, port: int) -> int:
    """Serve /healthz and /readyz until the stack closes; return the port. Raises OSError when it is taken."""

    async def healthz(_request: web.Request) -> web.Response:
        trouble = heartbeat.trouble
        return web.Response(status=503 if trouble else 200, text=f"{trouble or 'ok'}\n")

    async def readyz(_request: web.Request) -> web.Response:
        if not heartbeat.has_answered:
            return web.Response(status=503, text="the API server has not answered yet\n")
        return web.Response(text="leader\n" if heartbeat.is_leader else "standby\n")

    return await _serve(stack, [web.get("/healthz", healthz), web.get("/readyz", readyz)], bind, port)


async def serve_metrics(stack: AsyncExitStack, *, registry: CollectorRegistry, bind: str, port: int) -> int:
    """Serve /metrics until the stack closes; return the port. Raises OSError when it is taken."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return await _serve(stack, [web.get("/metrics", metrics)], bind, port)


async def _serve(stack: AsyncExitStack, routes: list[web.RouteDef], bind: str, port: int) -> int:
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, bind, port).start()
    address = runner.addresses[0]
    return int(address[1])
