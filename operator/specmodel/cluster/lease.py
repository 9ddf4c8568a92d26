"""Leader election by a Lease: at most one process writes.

    acquire ──► hold (renew every `retry`) ──► returns when lost
        └────────── release, on a graceful stop

    |---- renew deadline 10 s ----|          after this the holder has stopped writing
    |---------- duration 15 s ----------|    only after this may another take the Lease

A standby times the holder's silence by its own clock, from when it saw the record change: clocks of two machines are
never compared. Every request is bounded by what is left of the renew deadline. What the process does when the Lease is
lost is not decided here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from specmodel.cluster.client import ApiError, Client, Request
from specmodel.cluster.kinds import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Which Lease, who asks for it, and how long it lasts (seconds)."""

    namespace: str
    name: str
    identity: str
    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class LeaseApi(Protocol):
    """How the Lease is read and written. Every method raises `ApiError` and takes at most `seconds`."""

    async def read(self, seconds: float) -> Mapping[str, Any] | None:
        """Return the Lease, or None when there is none."""
        ...

    async def create(self, lease: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Create the Lease; a conflict (409) when someone was faster."""
        ...

    async def replace(self, lease: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Replace the Lease; a conflict (409) when its resourceVersion is not the stored one."""
        ...


@dataclass(frozen=True, slots=True)
class KubernetesLease:
    """The Lease in the API server. Never refused by the fence: the Lease is what the fence asks."""

    client: Client
    settings: LeaseSettings

    async def read(self, seconds: float) -> Mapping[str, Any] | None:
        """Return the Lease, or None when there is none."""
        try:
            return await self._send("GET", self._path(self.settings.name), None, seconds)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, lease: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Create the Lease."""
        return await self._send("POST", self._path(None), lease, seconds)

    async def replace(self, lease: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Replace the Lease."""
        return await self._send("PUT", self._path(self.settings.name), lease, seconds)

    def _path(self, name: str | None) -> str:
        return KINDS["Lease"].path(self.settings.namespace, name)

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Mapping[str, Any]:
        timeout = timedelta(seconds=seconds)
        return await self.client.send_unfenced(Request(method=method, path=path, body=body, timeout=timeout))


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class Elector:
    """Acquires, holds and releases one Lease. Elapsed time is the event loop's; `now` only stamps records."""

    api: LeaseApi
    settings: LeaseSettings
    now: Callable[[], datetime] = _utc_now
    #: Why the last attempt did not succeed, for people.
    trouble: str = ""
    #: Who holds the Lease as far as is known, "" when nobody.
    holder: str = ""
    _renewed_at: float | None = field(default=None, init=False)
    _seen: tuple[str, str] | None = field(default=None, init=False)
    _seen_at: float = field(default=0.0, init=False)

    @property
    def may_write(self) -> bool:
        """True while nobody else can hold the Lease: from a renewal until the renew deadline."""
        return self._renewed_at is not None and _time() - self._renewed_at < self.settings.renew_deadline

    async def acquire(self) -> None:
        """Return when the Lease is ours. Waits as long as it takes; never raises `ApiError`."""
        while not await self._attempt(self.settings.renew_deadline):  # noqa: ASYNC110 — nothing here tells us when
            await asyncio.sleep(self.settings.retry * random.uniform(1.0, 1.5))  # noqa: S311 — spreads standbys, no secret

    async def hold(self) -> str:
        """Renew until the Lease is lost; return why."""
        if self._renewed_at is None:
            return "the Lease was never acquired"
        while True:
            left = self._renewed_at + self.settings.renew_deadline - _time()
            await asyncio.sleep(max(0.0, min(self.settings.retry, left)))
            left = self._renewed_at + self.settings.renew_deadline - _time()
            if left <= 0:
                return (
                    f"not renewed for {self.settings.renew_deadline:.0f} s: {self.trouble or 'the process was held up'}"
                )
            if await self._attempt(left):
                continue
            if self.holder not in ("", self.settings.identity):
                return f"{self.holder} holds the Lease"

    async def release(self) -> None:
        """Give the Lease up if it is ours, so that a standby need not wait. Never raises `ApiError`."""
        if self._renewed_at is None:
            return
        self._renewed_at = None
        seconds = self.settings.retry
        try:
            async with asyncio.timeout(seconds):
                lease = await self.api.read(seconds)
                if lease is None or _spec(lease).get("holderIdentity") != self.settings.identity:
                    return
                spec = {**_spec(lease), "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
                await self.api.replace({**lease, "spec": spec}, seconds)
        except (ApiError, TimeoutError):
            return

    async def _attempt(self, seconds: float) -> bool:
        """Try once, within so many seconds, to acquire or renew."""
        started = _time()
        try:
            async with asyncio.timeout(seconds):
                is_ours = await self._try(seconds)
        except TimeoutError:
            self.trouble = f"no answer within {seconds:.1f} s"
            return False
        except ApiError as error:
            self.trouble = error.message
            return False
        if is_ours:
            self._renewed_at = started
            self.trouble = ""
        return is_ours

    async def _try(self, seconds: float) -> bool:
        lease = await self.api.read(seconds)
        if lease is None:
            metadata = {"namespace": self.settings.namespace, "name": self.settings.name}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
            await self.api.create({**body, "spec": self._record({})}, seconds)
            self.holder = self.settings.identity
            return True
        spec = _spec(lease)
        self._see(spec)
        if self.holder not in ("", self.settings.identity) and not self._is_silent(spec):
            self.trouble = f"held by {self.holder}"
            return False
        await self.api.replace({**lease, "spec": self._record(spec)}, seconds)
        self.holder = self.settings.identity
        return True

    def _see(self, spec: Mapping[str, Any]) -> None:
        holder = spec.get("holderIdentity")
        self.holder = holder if isinstance(holder, str) else ""
        seen = (self.holder, str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, _time()

    def _is_silent(self, spec: Mapping[str, Any]) -> bool:
        duration = spec.get("leaseDurationSeconds")
        wait = float(duration) if isinstance(duration, int) and 0 < duration <= 3600 else self.settings.duration
        return _time() - self._seen_at > wait

    def _record(self, before: Mapping[str, Any]) -> dict[str, Any]:
        is_renewal = before.get("holderIdentity") == self.settings.identity and before.get("acquireTime")
        transitions = before.get("leaseTransitions")
        changes = transitions if isinstance(transitions, int) else 0
        return {
            "holderIdentity": self.settings.identity,
            "leaseDurationSeconds": round(self.settings.duration),
            "acquireTime": before["acquireTime"] if is_renewal else self._stamp(),
            "renewTime": self._stamp(),
            "leaseTransitions": changes if is_renewal or not before else changes + 1,
        }

    def _stamp(self) -> str:
        return self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = lease.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _time() -> float:
    return asyncio.get_running_loop().time()
