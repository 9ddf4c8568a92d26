"""What a plan consists of, what came of it, and the port through which it is carried out.

    Plan ── actions in order ──► Cluster.apply, one by one ──► Outcome (what was done, the first refusal)

Only `Apply`, `Delete`, `Ask` and `WriteRunStatus` change the world, each with its why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from specmodel.api.benchmark import RunPlacement
from specmodel.api.conditions import Condition
from specmodel.api.model import SpeculativeModel, SpeculativeModelStatus
from specmodel.domain.invalid import InvalidModelError as InvalidModelError  # noqa: PLC0414 — re-exported: an edge error
from specmodel.domain.observation import Observation, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Server-side apply of one object (wire form, metadata.name and kind set, namespace left to the port)."""

    manifest: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete one object if it still has this uid. Foreground for Jobs and Deployments: pods go first."""

    kind: str
    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask one pod for a few tokens; when it answers and its counters moved, annotate it (`answered`)."""

    pod: str
    uid: str
    ip: str
    served_name: str
    expects_speculation: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRunStatus:
    """Write the operator's part of a run's status: conditions, attempts, placement."""

    run: str
    uid: str
    conditions: tuple[Condition, ...]
    attempts: int
    placement: RunPlacement | None
    why: str


Action = Apply | Delete | Ask | WriteRunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ordered actions and when to look again even if nothing rings. `wake_after` None: only events matter."""

    actions: tuple[Action, ...] = ()
    wake_after: timedelta | None = None
    #: What the plan is waiting for, as (reason, message), when a step cannot be taken now; see conditions.REASONS.
    waiting: tuple[str, str] | None = None
    #: What is going on, as (reason, message): Measuring, Promoting or Draining; None at rest.
    doing: tuple[str, str] | None = None

    def describe(self) -> str:
        """Return the plan as lines for people, one action each with its why."""
        return "\n".join(_line(action) for action in self.actions) or "nothing to do"


def _line(action: Action) -> str:
    match action:
        case Apply():
            return f"apply {action.manifest['kind']}/{action.manifest['metadata']['name']}: {action.why}"
        case Delete():
            return f"delete {action.kind}/{action.name}: {action.why}"
        case Ask():
            return f"ask Pod/{action.pod}: {action.why}"
        case WriteRunStatus():
            return f"write status of BenchmarkRun/{action.run}: {action.why}"


class TransientError(Exception):
    """An infrastructure fault: the pass ends, and is tried again after `after`."""

    def __init__(self, message: str, *, after: timedelta) -> None:
        super().__init__(message)
        self.after = after


class RefusedError(Exception):
    """The API server refused a write for good: reason (see conditions.REASONS) and the server's own message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a plan: actions done, and the first refusal or fault (reason, message), which ended it."""

    done: tuple[Action, ...] = ()
    refused: tuple[str, str] | None = None
    fault: str | None = None
    #: When to try again after a fault.
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Which object a loop is for."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableModel:
    """A stored object that does not parse (an older CRD let it in): what is wrong, for Stalled."""

    key: Key
    generation: int
    uid: str
    message: str


class Cluster(Protocol):
    """The port. Implemented for real by specmodel.cluster, and by the scripted cluster of the simulations."""

    async def get(self, key: Key) -> SpeculativeModel | UnreadableModel | None:
        """Return the model, or None when it is gone. Raises TransientError."""
        ...

    async def observe(self, model: SpeculativeModel) -> Observation:
        """Return one snapshot of all that concerns the model. The only reading. Raises TransientError."""
        ...

    async def apply(self, model: SpeculativeModel, action: Action) -> None:
        """Carry out one action, idempotently. Raises TransientError, RefusedError."""
        ...

    async def write_status(self, model: SpeculativeModel | UnreadableModel, status: SpeculativeModelStatus) -> bool:
        """Store the status; nothing is sent when it equals the stored one. Return whether it was sent."""
        ...

    async def post_event(self, model: SpeculativeModel, *, reason: str, message: str, is_warning: bool) -> None:
        """Post a Kubernetes Event on the model. Failures are swallowed: events are a courtesy."""
        ...

    async def get_run(self, key: Key) -> Run | None:
        """Return a BenchmarkRun that no model owns, or None."""
        ...

    async def apply_for_run(self, key: Key, action: Action) -> None:
        """Carry out one action of a run that no model owns, in its namespace. Raises TransientError, RefusedError."""
        ...
