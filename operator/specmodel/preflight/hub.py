"""A checkpoint on the hub: config.json, the headers of its safetensors files by ranged requests, its tokenizer.

Over aiohttp, which the benchmark image holds anyway: a client of the hub's own would bring a dozen packages for four
kinds of GET. Nothing but `<endpoint>/<repo>/resolve/<revision>/<file>` is asked, which is all that a mirror must have
and what the engine asks too. Every answer is read up to a bound, and everything together has one deadline.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import aiohttp

from specmodel.domain.checkpoint import Checkpoint, CheckpointError, read_config, read_headers
from specmodel.domain.preflight import Cause, Unread
from specmodel.preflight.local import (
    CONFIG,
    CONFIG_MAXIMUM,
    FILES_MAXIMUM,
    INDEX,
    INDEX_MAXIMUM,
    LENGTH,
    TOKENIZER,
    TOKENIZER_MAXIMUM,
    header_length,
    parse_header,
    parse_json,
    read_tokenizer,
)

ENDPOINT = "https://huggingface.co"
#: Seconds for one checkpoint in all, and for a connection.
DEADLINE = 25.0
CONNECT_DEADLINE = 8.0
WEIGHTS = "model.safetensors"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
#: The first request for a file's header; a longer header is asked for by a second one.
HEADER_FIRST = 64 * 1024
PARALLEL = 8
_FILE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors$")


class UnreadError(Exception):
    """The hub gave no answer that could be used: why, and in which words."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.unread = Unread(cause=cause, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A revision of a repository on a hub."""

    repository: str
    revision: str
    endpoint: str = ENDPOINT
    token: str = ""

    @property
    def source(self) -> str:
        """The place in a user's words."""
        return f"hf://{self.repository}@{self.revision}"

    def url(self, file: str) -> str:
        """Return the URL of one file."""
        return f"{self.endpoint.rstrip('/')}/{self.repository}/resolve/{quote(self.revision, safe='')}/{file}"

    def headers(self) -> dict[str, str]:
        """Return the headers that every request carries. aiohttp drops the token where a redirect leaves the host."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


async def read_checkpoint(place: Place, *, deadline: float = DEADLINE) -> Checkpoint | Unread:
    """Return the facts of a checkpoint on the hub, or why they could not be read.

    When only its headers cannot be read in time, what config.json says is returned.
    """
    timeout = aiohttp.ClientTimeout(total=deadline, sock_connect=CONNECT_DEADLINE)
    try:
        async with asyncio.timeout(deadline), aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            return await _read(session, place, deadline * 0.8)
    except UnreadError as error:
        return error.unread
    except CheckpointError as error:
        return Unread(cause=Cause.BROKEN, message=str(error))
    except TimeoutError:
        words = f"{place.source}: {place.endpoint} did not answer in {deadline:g} s"
        return Unread(cause=Cause.UNREACHABLE, message=words)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        words = f"{place.source}: {place.endpoint} cannot be reached: {str(error) or type(error).__name__}"
        return Unread(cause=Cause.UNREACHABLE, message=words)


async def _read(session: aiohttp.ClientSession, place: Place, patience: float) -> Checkpoint:
    text = await _get(session, place, CONFIG, CONFIG_MAXIMUM)
    if text is None:
        raise UnreadError(Cause.BROKEN, f"{place.source}: there is no {CONFIG}")
    checkpoint = read_config(parse_json(text, CONFIG, place.source), source=place.source)
    ends = asyncio.get_running_loop().time() + patience
    try:
        async with asyncio.timeout_at(ends - patience / 4):
            checkpoint = await _with_headers(session, place, checkpoint)
        async with asyncio.timeout_at(ends):
            tokenizer = await _get(session, place, TOKENIZER, TOKENIZER_MAXIMUM + 1, is_part=True)
    except (TimeoutError, aiohttp.ClientError):
        return checkpoint
    is_whole = tokenizer is not None and len(tokenizer) <= TOKENIZER_MAXIMUM
    return (
        replace(checkpoint, tokenizer=read_tokenizer(tokenizer)) if tokenizer is not None and is_whole else checkpoint
    )


async def _with_headers(session: aiohttp.ClientSession, place: Place, checkpoint: Checkpoint) -> Checkpoint:
    index = await _get(session, place, INDEX, INDEX_MAXIMUM)
    files, size = [WEIGHTS], None
    if index is not None:
        files, size = _files(parse_json(index, INDEX, place.source), place)
    gate = asyncio.Semaphore(PARALLEL)
    headers = await _together(*(_header(session, place, file, gate) for file in files))
    found = [header for header in headers if header is not None]
    if len(found) == len(files):
        return replace(checkpoint, tensors=read_headers(found, source=place.source))
    if index is not None:
        return replace(checkpoint, file_bytes=size)
    sizes = [await _size(session, place, file) for file in PICKLES]
    return replace(checkpoint, is_pickle=any(one is not None for one in sizes), file_bytes=sizes[0] or None)


async def _together(*works: Any) -> list[Any]:
    """Run side by side; the first error ends the others and is raised itself."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _files(index: object, place: Place) -> tuple[list[str], int | None]:
    """Return the weight files that an index names, and the bytes that it says they hold."""
    weight_map = index.get("weight_map") if isinstance(index, Mapping) else None
    names = {name for name in weight_map.values() if isinstance(name, str)} if isinstance(weight_map, Mapping) else None
    if not names or len(names) > FILES_MAXIMUM or not all(_FILE.match(name) for name in names):
        raise CheckpointError(f"{place.source}: {INDEX} names no weight files, or more than {FILES_MAXIMUM}")
    metadata = index.get("metadata") if isinstance(index, Mapping) else None
    size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    return sorted(names), size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


async def _header(
    session: aiohttp.ClientSession, place: Place, file: str, gate: asyncio.Semaphore
) -> Mapping[str, Any] | None:
    async with gate:
        first = await _get(session, place, file, HEADER_FIRST, is_part=True)
        if first is None:
            return None
        length = header_length(first, file, place.source)
        whole = LENGTH.size + length
        text = first if len(first) >= whole else await _get(session, place, file, whole, is_part=True)
        if text is None or len(text) < whole:
            raise CheckpointError(f"{place.source}: {file} ends within its header")
        return parse_header(text[LENGTH.size : whole], file, place.source)


async def _get(
    session: aiohttp.ClientSession, place: Place, file: str, maximum: int, *, is_part: bool = False
) -> bytes | None:
    """Return a file, or its first `maximum` bytes, None when the repository has none. Raises `UnreadError`."""
    headers = place.headers() | ({"Range": f"bytes=0-{maximum - 1}"} if is_part else {})
    async with session.get(place.url(file), headers=headers, max_redirects=5) as answer:
        if _is_missing(answer, place, file):
            return None
        chunks, total = [], 0
        async for chunk in answer.content.iter_chunked(64 * 1024):
            chunks.append(chunk)
            total += len(chunk)
            if total > maximum:
                answer.close()
                break
    if total > maximum and not is_part:
        raise CheckpointError(f"{place.source}: {file} is larger than {maximum} bytes: it is not read")
    return b"".join(chunks)[:maximum]


async def _size(session: aiohttp.ClientSession, place: Place, file: str) -> int | None:
    """Return the size of a file in bytes without reading it, None when the repository has none."""
    async with session.head(place.url(file), headers=place.headers(), allow_redirects=False) as answer:
        if answer.status >= 400:
            return None
        size = answer.headers.get("X-Linked-Size") or answer.headers.get("Content-Length") or "0"
        return int(size) if size.isdigit() else 0


def _is_missing(answer: aiohttp.ClientResponse, place: Place, file: str) -> bool:
    """Return whether a repository that can be read lacks this file. Raises `UnreadError` for anything else but 2xx.

    The hub names the kind of an error in `X-Error-Code`. Whoever shows no valid token is told 401 for a repository
    that does not exist too.
    """
    status, code = answer.status, answer.headers.get("X-Error-Code", "")
    if 200 <= status < 300:
        return False
    token = "with the token given" if place.token else "without a token"
    if status in (401, 403) or code == "GatedRepo":
        why = "is private, gated or not there" if status == 401 else "may not be read"
        raise UnreadError(Cause.REFUSED, f"{place.source} {why}: {place.endpoint} answers {status} {token}")
    if code in ("RepoNotFound", "RevisionNotFound"):
        what = "revision" if code == "RevisionNotFound" else "repository"
        raise UnreadError(Cause.MISSING, f"{place.source}: {place.endpoint} has no such {what}")
    if status == 404:
        return True
    raise UnreadError(Cause.UNREACHABLE, f"{place.source}: {place.endpoint} answers {status} to {file}")
