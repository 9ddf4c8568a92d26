"""An API server that knows one BenchmarkRun and one account, with the real one's rules for both.

The account may `get` that run and `patch` its status, nothing else (403). A patch is a JSON merge patch of the status
(415 otherwise); a `resourceVersion` that is not the current one is a conflict (409); spec and metadata do not change.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKEN = "the-token-of-the-job"  # noqa: S105  a fake one
NAMESPACE, NAME = "bench-space", "run-1"
PATH = f"/apis/specmodel.dev/v1alpha1/namespaces/{NAMESPACE}/benchmarkruns/{NAME}"


@dataclass
class RunServer:
    """One BenchmarkRun in a store, and what was asked of it."""

    spec: dict[str, Any]
    status: dict[str, Any] = field(default_factory=dict)
    uid: str = "uid-1"
    version: int = 1
    is_gone: bool = False
    #: So many next requests are answered with 500.
    failures: int = 0
    #: Before each write of the Job the operator writes a condition, so that every first try conflicts.
    operator_writes: bool = False
    turn: bool = False
    url: str = ""
    asked: list[str] = field(default_factory=list)
    patches: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def object(self) -> dict[str, Any]:
        metadata = {"namespace": NAMESPACE, "name": NAME, "uid": self.uid, "resourceVersion": str(self.version)}
        return {"apiVersion": "specmodel.dev/v1alpha1", "kind": "BenchmarkRun", "metadata": metadata} | {
            "spec": self.spec,
            "status": self.status,
        }

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        if self.failures:
            self.failures -= 1
            return _status(500, "etcd has no leader")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        match request.method, request.path:
            case "GET", path if path == PATH:
                return _status(404, "not found") if self.is_gone else web.json_response(self.object)
            case "PATCH", path if path == f"{PATH}/status":
                return await self._patch(request)
        self.refused.append(f"{request.method} {request.path}")
        return _status(403, "forbidden")

    async def _patch(self, request: web.Request) -> web.Response:
        if self.is_gone:
            return _status(404, "not found")
        if request.content_type != "application/merge-patch+json":
            return _status(415, f"unsupported media type {request.content_type}")
        patch = json.loads(await request.text())
        self.turn = not self.turn
        if self.operator_writes and self.turn:
            self.version += 1
            self.status["conditions"] = [{"type": "Complete", "status": "False"}]
        version = patch.get("metadata", {}).get("resourceVersion", str(self.version))
        if version != str(self.version):
            return _status(409, "the object has been modified")
        self.patches.append(patch)
        self.status = _merged(self.status, patch.get("status", {}))
        self.version += 1
        return web.json_response(self.object)


def _merged(old: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON merge patch (RFC 7396) applied."""
    new = dict(old)
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            before = new.get(key)
            new[key] = _merged(before if isinstance(before, dict) else {}, value)
        else:
            new[key] = value
    return new


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


@asynccontextmanager
async def serving_run(server: RunServer) -> AsyncIterator[RunServer]:
    """Serve the run on a free port of 127.0.0.1 and set its `url`."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
