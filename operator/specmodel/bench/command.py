"""The command line of the benchmark Job: `specmodel bench --namespace NS --name RUN`.

Exit codes: 0 when an outcome is recorded or the run is gone, 1 for a fault of the infrastructure (the Job then starts
another pod), 2 for a wrong command line, 143 when it was told to stop before it was done.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from specmodel.bench.job import run_job
from specmodel.bench.load import open_session
from specmodel.bench.run_status import (
    ApiAddress,
    ApiUnavailableError,
    RunGoneError,
    RunStatus,
    in_cluster,
    open_api_session,
)

#: Where the Job mounts the prompts' ConfigMap; the file is named like its key.
PROMPTS = Path("/prompts")
EXIT_INFRASTRUCTURE = 1
EXIT_TERMINATED = 128 + signal.SIGTERM

log = logging.getLogger("specmodel.bench")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark Job and return its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(_run(options))
    except asyncio.CancelledError:
        log.warning("stopped before the run was done")
        return EXIT_TERMINATED
    except RunGoneError as error:
        log.warning("%s", error)
    except ApiUnavailableError as error:
        log.error("%s", error)  # noqa: TRY400  the sentence says it all
        return EXIT_INFRASTRUCTURE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specmodel bench", description="Measure the cells of one BenchmarkRun.")
    parser.add_argument("--namespace", required=True, help="namespace of the BenchmarkRun")
    parser.add_argument("--name", required=True, help="name of the BenchmarkRun")
    parser.add_argument(
        "--prompts",
        type=Path,
        default=Path(os.environ.get("SPECMODEL_PROMPTS", PROMPTS)),
        help="file of JSON lines, or the folder that holds it under the ConfigMap key's name (default: %(default)s)",
    )
    parser.add_argument("--api-server", default="", help="URL of the API server, for example of `kubectl proxy`")
    parser.add_argument("--token-file", type=Path, help="file with the token for --api-server")
    return parser


async def _run(options: argparse.Namespace) -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if options.api_server:
        address = ApiAddress(url=options.api_server.rstrip("/"), token_file=options.token_file)
    else:
        address = in_cluster(os.environ)
    async with open_api_session(address) as session:
        status = RunStatus(session=session, address=address, namespace=options.namespace, name=options.name)
        await run_job(status, _target_session, options.prompts)


def _target_session(stall_seconds: float) -> aiohttp.ClientSession:
    """Return the target's session: $SPECMODEL_API_KEY is sent to it, $SPECMODEL_CA_FILE checks its certificate."""
    ca_file = os.environ.get("SPECMODEL_CA_FILE")
    verify = ssl.create_default_context(cafile=ca_file) if ca_file else True
    return open_session(stall_seconds=stall_seconds, api_key=os.environ.get("SPECMODEL_API_KEY", ""), verify=verify)
