"""One checkpoint, wherever its URI says that it is: on the hub, or on a claim that is mounted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

from specmodel.domain.checkpoint import Checkpoint, CheckpointError
from specmodel.domain.preflight import Cause, Unread
from specmodel.manifests.engine_arguments import CLAIM, HUB
from specmodel.preflight import hub, local

#: Seconds for a folder: a network volume that hangs must not hold up the Job.
FOLDER_DEADLINE = 25.0


async def read(uri: str, revision: str, weights: Path, environment: Mapping[str, str]) -> Checkpoint | Unread:
    """Return the facts of a checkpoint, or why they could not be read.

    `weights` holds the mounted claims by their names. HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean to
    the engine.
    """
    if uri.startswith(CLAIM):
        return await _read_folder(weights / uri.removeprefix(CLAIM), uri)
    if not uri.startswith(HUB):
        return await _read_folder(Path(uri), uri)
    source = f"{uri}@{revision}"
    if environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true"):
        return Unread(cause=Cause.UNREACHABLE, message=f"{source}: HF_HUB_OFFLINE forbids asking the hub")
    place = hub.Place(
        repository=uri.removeprefix(HUB),
        revision=revision,
        endpoint=environment.get("HF_ENDPOINT") or hub.ENDPOINT,
        token=environment.get("HF_TOKEN", "").strip(),
    )
    return await hub.read_checkpoint(place)


async def _read_folder(path: Path, source: str) -> Checkpoint | Unread:
    try:
        async with asyncio.timeout(FOLDER_DEADLINE):
            return await _in_thread(path, source)
    except local.MissingError as error:
        return Unread(cause=Cause.MISSING, message=str(error))
    except CheckpointError as error:
        return Unread(cause=Cause.BROKEN, message=str(error))
    except TimeoutError:
        return Unread(cause=Cause.UNREACHABLE, message=f"{source}: not read in {FOLDER_DEADLINE:g} s")
    except OSError as error:
        return Unread(cause=Cause.UNREACHABLE, message=f"{source}: {error.strerror or error}")


async def _in_thread(path: Path, source: str) -> Checkpoint:
    """Read in a daemon thread: one that hangs in a volume is left behind and holds up no exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Checkpoint] = loop.create_future()

    def tell(found: Checkpoint | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        elif found is not None:
            answer.set_result(found)

    def work() -> None:
        found: Checkpoint | None = None
        fault: Exception | None = None
        try:
            found = local.read_checkpoint(path, source=source)
        except (CheckpointError, OSError) as error:
            fault = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, found, fault)

    threading.Thread(target=work, name="checkpoint", daemon=True).start()
    return await answer
