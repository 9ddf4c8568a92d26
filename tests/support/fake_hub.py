"""A hub on loopback: repositories in memory, ranged requests, tokens, and everything that a hub may do wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(slots=True)
class FakeHub:
    """What it holds and how it behaves; requests are kept as (method, path, range, has the token)."""

    #: Bytes by `organisation/name/revision/file`.
    files: dict[str, bytes] = field(default_factory=dict)
    token: str = ""
    #: Where weight files are redirected to, as the real hub does; empty: it answers itself.
    storage: str = ""
    ignores_ranges: bool = False
    hangs_at: str = ""
    answers: int = 0
    requests: list[tuple[str, str, str, bool]] = field(default_factory=list)
    url: str = ""

    def add(self, repository: str, files: dict[str, bytes], *, revision: str = "main") -> None:
        """Put files into a repository."""
        self.files |= {f"{repository}/{revision}/{name}": text for name, text in files.items()}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer as the hub does."""
        has_token = request.headers.get("Authorization") == f"Bearer {self.token}"
        wanted = request.headers.get("Range", "")
        self.requests.append((request.method, request.raw_path, wanted, "Authorization" in request.headers))
        repository, _, rest = request.path.strip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        if self.hangs_at and file == self.hangs_at:
            await asyncio.sleep(60)
        if self.answers:
            return web.Response(status=self.answers)
        known = [name for name in self.files if name.startswith(f"{repository}/")]
        if not known or (self.token and not has_token):
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        if not any(name.startswith(f"{repository}/{revision}/") for name in known):
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        text = self.files.get(f"{repository}/{revision}/{file}")
        if text is None:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        if self.storage and file.endswith((".safetensors", ".bin")):
            location = f"{self.storage}{request.path}"
            return web.Response(status=302, headers={"Location": location, "X-Linked-Size": str(len(text))})
        if wanted and not self.ignores_ranges:
            last = int(wanted.partition("-")[2])
            return web.Response(status=206, body=text[: last + 1])
        return web.Response(body=text)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FakeHub]:
        """Serve on a free port of loopback."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
