"""What was chosen when a cluster was made: its release, its addresses. Read by every command that comes after `up`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tests.cluster.faults import ClusterError
from tests.cluster.paths import Paths

SLOTS = 16


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one cluster: slot 0, 1, … leave each other alone."""

    slot: int

    @property
    def host(self) -> str:
        """This machine, as the node sees it."""
        return f"10.88.{7 + self.slot}.1"

    @property
    def node(self) -> str:
        """The node, as this machine sees it."""
        return f"10.88.{7 + self.slot}.2"

    @property
    def link(self) -> str:
        """Network between this machine and the node."""
        return f"10.88.{7 + self.slot}.0/24"

    @property
    def services(self) -> str:
        """Network of ClusterIPs."""
        return f"10.96.{self.slot * 4}.0/22"

    @property
    def first_service(self) -> str:
        """ClusterIP of the API server."""
        return f"10.96.{self.slot * 4}.1"

    @property
    def dns(self) -> str:
        """ClusterIP of the cluster's DNS."""
        return f"10.96.{self.slot * 4}.10"

    @property
    def pods(self) -> str:
        """Network of pods."""
        return f"10.244.{77 + self.slot}.0/24"

    @property
    def interface(self) -> str:
        """This machine's end of the link."""
        return f"specmodel{self.slot}"

    @property
    def networks(self) -> tuple[str, ...]:
        """All networks that the cluster takes."""
        return (self.link, self.services, self.pods)


@dataclass(frozen=True, slots=True)
class State:
    """The choices of one cluster."""

    kubernetes: str
    slot: int

    @property
    def addresses(self) -> Addresses:
        """Its addresses."""
        return Addresses(self.slot)


def write(paths: Paths, state: State) -> None:
    """Record the choices."""
    paths.state.write_text(json.dumps(asdict(state)), encoding="utf-8")


def read(paths: Paths) -> State | None:
    """Return the recorded choices, or None where there is no cluster (or one that was stopped half-way)."""
    try:
        return State(**json.loads(paths.state.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def of_running(paths: Paths) -> State:
    """Return the choices of a cluster that is up. Raises ClusterError where none is."""
    state = read(paths)
    if state is None or not paths.ready.exists():
        raise ClusterError(f"cluster {paths.name!r} is not up: run `python3 tests/cluster/cluster.py up` first")
    return state
