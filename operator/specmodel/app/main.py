"""`specmodel operator`: the process from start to stop.

    health server ─► credentials ─► Lease ─► lead: loops, watches, resync ─► SIGTERM ─► finish, release, exit 0

Killed at any line it leaves nothing behind that the next process would trip over. A process that loses its Lease ends
at once: another may already lead.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

import kopf

from specmodel.api import labels
from specmodel.app.bells import Bells, registry_of, watch_settings
from specmodel.app.health import Heartbeat, serve, serve_metrics
from specmodel.app.logs import set_up_logging
from specmodel.app.loops import Kind, Loops, Work
from specmodel.app.metrics import Metrics
from specmodel.app.options import Options, add_arguments, read_options
from specmodel.cluster import reading
from specmodel.cluster.client import ApiError, Client, Hooks, connect
from specmodel.cluster.lease import Elector, KubernetesLease, LeaseSettings
from specmodel.cluster.port import KubernetesCluster, is_owned_by_model
from specmodel.reconcile.action import Apply, Ask, Delete, Key, Plan, WriteRunStatus
from specmodel.reconcile.loop import Pass, reconcile_model
from specmodel.reconcile.run import reconcile_run

logger = logging.getLogger(__name__)

#: Seconds between full looks at all objects, which ring every loop.
RESYNC = 300.0
#: Seconds until a full look that failed is tried again.
RESYNC_RETRY = 15.0
#: Seconds that running passes get to finish their current action at a stop, and kopf to end its watches.
STOP_GRACE = 8.0
WATCH_GRACE = 3.0


@dataclass(slots=True)
class Journal:
    """Writes down what passes did: a line where something changed, and the metrics."""

    metrics: Metrics

    def passed(self, work: Work, made: Pass, seconds: float) -> None:
        """Note a pass."""
        self.metrics.count("specmodel_reconcile_total", work.kind.value)
        self.metrics.observe("specmodel_reconcile_duration_seconds", seconds, work.kind.value)
        if work.kind is Kind.MODEL and made.is_gone:
            self.metrics.forget(work.key)
        if work.kind is Kind.MODEL and made.status is not None:
            self.metrics.show(work.key, made.status)
        if made.outcome.refused is not None:
            self.metrics.count("specmodel_reconcile_errors_total", work.kind.value, "Refused")
        if made.outcome.fault is not None:
            self.metrics.count("specmodel_reconcile_errors_total", work.kind.value, "Transient")
        trouble = made.outcome.fault or (": ".join(made.outcome.refused) if made.outcome.refused else "")
        if not made.has_changed_something and not trouble:
            return
        fields = {
            "kind": work.kind.value,
            "namespace": work.key.namespace,
            "name": work.key.name,
            "seconds": round(seconds, 3),
            "done": [_line(action) for action in made.outcome.done],
            "status": "written" if made.has_written_status else "unchanged",
        }
        if trouble:
            fields["trouble"] = trouble
        if made.wake_after is not None:
            fields["wakeSeconds"] = round(made.wake_after.total_seconds(), 1)
        logger.log(logging.WARNING if trouble else logging.INFO, "pass", extra={"fields": fields})

    def failed(self, work: Work, reason: str, message: str, retry_seconds: float) -> None:
        """Note a pass that failed."""
        self.metrics.count("specmodel_reconcile_total", work.kind.value)
        self.metrics.count("specmodel_reconcile_errors_total", work.kind.value, reason)
        fields = {
            "kind": work.kind.value,
            "namespace": work.key.namespace,
            "name": work.key.name,
            "trouble": message,
            "retrySeconds": round(retry_seconds, 1),
        }
        logger.warning("pass failed", extra={"fields": fields})


def _line(action: Apply | Delete | Ask | WriteRunStatus) -> str:
    return Plan(actions=(action,)).describe()


@dataclass(slots=True)
class Operator:
    """One process."""

    options: Options
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    metrics: Metrics = field(default_factory=Metrics)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _elector: Elector | None = field(default=None, init=False)

    async def run(self) -> int:
        """Run until stopped; return the exit code."""
        self._listen_to_signals()
        async with AsyncExitStack() as stack:
            options = self.options
            health = await serve(stack, heartbeat=self.heartbeat, bind=options.bind, port=options.health_port)
            registry = self.metrics.registry
            scrape = await serve_metrics(stack, registry=registry, bind=options.bind, port=options.metrics_port)
            client = await connect(self._hooks())
            stack.push_async_callback(client.close)
            self._say("started", server=client.server, healthPort=health, metricsPort=scrape)
            if not await self._become_leader(client):
                return 0
            try:
                return await self._lead(client)
            finally:
                if self._elector is not None:
                    await self._elector.release()
                self._say("stopped")

    def _hooks(self) -> Hooks:
        return Hooks(
            refuse_writes=self._refuse_writes,
            on_answer=lambda _method, _path: self.heartbeat.answered(),
            on_write=lambda verb, kind: self.metrics.count("specmodel_writes_total", verb, kind),
        )

    def _refuse_writes(self) -> str | None:
        if self.stop.is_set():
            return "the operator is stopping"
        if self._elector is not None and not self._elector.may_write:
            return "the operator does not hold its Lease"
        return None

    async def _become_leader(self, client: Client) -> bool:
        """Return True when this process leads, False when it was stopped before."""
        if self.options.has_leader_election:
            settings = LeaseSettings(
                namespace=self.options.lease_namespace,
                name=self.options.lease_name,
                identity=f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}",
            )
            self._elector = Elector(KubernetesLease(client, settings), settings)
            self._say(
                "waiting for the Lease", lease=f"{settings.namespace}/{settings.name}", identity=settings.identity
            )
            acquired = asyncio.create_task(self._elector.acquire())
            telling = asyncio.create_task(self._tell_trouble(self._elector))
            await self._first(acquired, asyncio.create_task(self.stop.wait()))
            await _end(telling)
            if not acquired.done():
                await _end(acquired)
                await self._elector.release()
                return False
        self.heartbeat.lead()
        self.metrics.set_leader(is_leader=True)
        self._say("leading")
        return True

    async def _tell_trouble(self, elector: Elector) -> None:
        told = ""
        while True:
            await asyncio.sleep(1)
            if elector.trouble not in ("", told):
                told = elector.trouble
                self._say("standby", why=told)

    async def _lead(self, client: Client) -> int:
        cluster = KubernetesCluster(client, self.options.settings)

        async def make_pass(work: Work) -> Pass:
            now = datetime.now(UTC)
            if work.kind is Kind.MODEL:
                return await reconcile_model(cluster, work.key, self.options.settings, now=now)
            return await reconcile_run(cluster, work.key, self.options.settings, now=now)

        loops = Loops(make_pass, Journal(self.metrics))
        bells = Bells(
            ring=loops.ring,
            forget=self.metrics.forget,
            on_event=self.heartbeat.answered,
            gpu_resource=self.options.settings.gpu_resource,
        )
        stopped = asyncio.create_task(self.stop.wait(), name="stop")
        works: dict[str, Coroutine[Any, Any, Any]] = {"resync": self._resync(client, bells)}
        if self._elector is not None:
            works["lease"] = self._hold(self._elector)
        tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
        # Last: kopf ends every task that is younger than itself when it ends.
        watching = asyncio.create_task(self._watch(client, bells), name="watch")
        done = await self._first(stopped, *tasks, watching)
        code = 0
        for task in done:
            if task is not stopped:
                code = 1
                error = task.exception() if not task.cancelled() else None
                logger.error("ended unexpectedly", exc_info=error, extra={"fields": {"task": task.get_name()}})
        self.stop.set()  # from here on no write is sent
        self._say("stopping")
        await loops.stop(STOP_GRACE)
        await _end(*tasks)
        if self._elector is not None:
            await self._elector.release()
        await _end(watching, stopped, seconds=WATCH_GRACE)
        return code

    async def _hold(self, elector: Elector) -> None:
        why = await elector.hold()
        if not self.stop.is_set():
            _die(f"lost the Lease: {why}")

    async def _watch(self, client: Client, bells: Bells) -> None:
        can_watch_nodes = await self._wait_for_kinds(client)
        if not can_watch_nodes:
            self._say("nodes are not watched: free GPUs are not known, or are looked up with each pass")
        existing = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry_of(bells, client, can_watch_nodes=can_watch_nodes),
            settings=watch_settings(),
            clusterwide=not self.options.namespaces,
            namespaces=self.options.namespaces,
            # Never used without peering; kopf would otherwise ask for the user's name, which a bare uid has not.
            identity="specmodel",  # type: ignore[arg-type]
        )
        self._listen_to_signals()  # kopf took them
        await kopf.run_tasks(tasks, ignored=existing)

    async def _wait_for_kinds(self, client: Client) -> bool:
        """Return, once models and runs can be listed, whether nodes can be: kopf watches no kind that comes later."""
        while True:
            try:
                await self._look(client)
                return not self.options.namespaces and await _can_list_nodes(client)
            except ApiError as error:
                self._say("waiting for the CRDs and the right to list", why=error.message)
            await asyncio.sleep(RESYNC_RETRY)

    async def _resync(self, client: Client, bells: Bells) -> None:
        """Look at all objects now and then, so that nothing depends on a watch alone. Sends no write."""
        while True:
            try:
                works = await self._look(client)
            except ApiError as error:
                self._say("cannot list all objects", why=error.message)
                await asyncio.sleep(RESYNC_RETRY)
                continue
            self.metrics.forget_all_but(work.key for work in works if work.kind is Kind.MODEL)
            bells.all_of(works)
            self.heartbeat.looked()
            await asyncio.sleep(RESYNC)

    async def _look(self, client: Client) -> list[Work]:
        works = []
        for namespace in self.options.namespaces or (None,):
            async for page in client.pages(labels.MODEL_KIND, namespace):
                works += [Work(kind=Kind.MODEL, key=_key(each)) for each in page]
            async for page in client.pages(labels.RUN_KIND, namespace):
                works += [Work(kind=Kind.RUN, key=_key(each)) for each in page if not is_owned_by_model(each)]
        return works

    async def _first(self, *tasks: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)

    def _say(self, message: str, **fields: Any) -> None:
        logger.info(message, extra={"fields": fields})


def _key(value: reading.Wire) -> Key:
    return Key(namespace=reading.text(value, "metadata", "namespace"), name=reading.name_of(value))


async def _can_list_nodes(client: Client) -> bool:
    try:
        await client.list("Node", None)
    except ApiError as error:
        if error.status == 403:
            return False
        raise
    return True


async def _end(*tasks: asyncio.Task[Any], seconds: float = 1.0) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=seconds)


def _die(why: str) -> NoReturn:
    logger.error(why)
    logging.shutdown()
    os._exit(1)


def run(arguments: argparse.Namespace) -> int:
    """Run the operator with parsed arguments; return the exit code: 0 stopped, 1 ended, 2 cannot start."""
    options = read_options(arguments)
    set_up_logging(options.log_level)
    try:
        return asyncio.run(_run(options))
    except OSError as error:
        logger.error("cannot start: %s", error)  # noqa: TRY400 — the message says it all
        return 2


async def _run(options: Options) -> int:
    return await Operator(options).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Run `specmodel operator`."""
    parser = argparse.ArgumentParser(prog="specmodel operator", description="Run the operator.")
    add_arguments(parser)
    return run(parser.parse_args(argv))
