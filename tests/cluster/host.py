"""What a cluster touches on this machine outside its own folders: one interface with its routes, and its cgroups.

Everything here can be undone without knowing how far it had come.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cluster.faults import ClusterError, say, wait_for
from tests.cluster.paths import Paths
from tests.cluster.state import SLOTS, Addresses

LOCK_SECONDS = 1800
END_SECONDS = 30
CGROUPS = Path("/proc/self/mounts")


@contextmanager
def alone(paths: Paths) -> Iterator[None]:
    """Let one `up` or `down` of a cluster run at a time."""
    with _lock(paths.name, f"another command is changing cluster {paths.name!r}: waiting for it"):
        yield


@contextmanager
def choosing_addresses() -> Iterator[None]:
    """Let one cluster at a time choose addresses, until its routes show that they are taken."""
    with _lock("/addresses", "another cluster is choosing its addresses: waiting for it"):
        yield


@contextmanager
def _lock(name: str, waiting: str) -> Iterator[None]:
    """Hold a lock whose only substance is a socket's name: it goes with its process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        told = False
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                lock.bind(f"\0specmodel-cluster/{name}")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if not told:
                say(waiting)
                told = True
            if time.monotonic() > deadline:
                raise ClusterError(f"{waiting} ended after {LOCK_SECONDS // 60} minutes")
            time.sleep(0.2)
        yield


def free_slot() -> Addresses:
    """Return the first addresses that no route of this machine overlaps."""
    taken = [
        ipaddress.ip_network(route["dst"], strict=False)
        for route in json.loads(_ip("-json", "-4", "route", "show", "table", "all") or "[]")
        if route.get("dst", "default") != "default" and route.get("type", "unicast") == "unicast"
    ]
    for slot in range(SLOTS):
        addresses = Addresses(slot)
        ours = [ipaddress.ip_network(each) for each in addresses.networks]
        if not any(own.overlaps(other) for own in ours for other in taken):
            return addresses
    raise ClusterError(
        "no addresses are free: every network that a cluster could take (10.88.7-22, 10.96.0-63, 10.244.77-92) "
        "overlaps a route of this machine (`ip route`)"
    )


def lay_link(addresses: Addresses, node: int) -> None:
    """Lay the link to a node's network namespace, with routes to its ClusterIPs and pods."""
    interface = addresses.interface
    _ip("link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", str(node))
    _ip("addr", "add", f"{addresses.host}/24", "dev", interface)
    _ip("link", "set", interface, "up")
    for network in (addresses.services, addresses.pods):
        _ip("route", "add", network, "via", addresses.node)


def take_up_link(addresses: Addresses) -> None:
    """Remove a link, if it is still there. Its routes go with it."""
    subprocess.run(["ip", "link", "del", addresses.interface], capture_output=True, check=False, timeout=30)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def owners(paths: Paths) -> list[int]:
    """Return the processes that own a cluster: those whose command line names its plan.

    The process table cannot be stale, as a file with a process id in it can.
    """
    plan = str(paths.plan).encode()
    everyone = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return sorted(pid for pid in everyone if _is_owner(pid, plan))


def _is_owner(pid: int, plan: bytes) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return False
    return words[-1] == plan and any(word.endswith(b"/supervisor.py") for word in words)


def end_owners(paths: Paths) -> None:
    """End the owners of a cluster, and with them every process, mount and network namespace of it."""
    plan = str(paths.plan).encode()
    for pid in owners(paths):
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                # Looked at again with the process held by its handle: a recycled number is never hit.
                if _is_owner(pid, plan):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    wait_for(f"the end of the processes of cluster {paths.name!r}", lambda: not owners(paths), seconds=END_SECONDS)


def _hierarchies() -> list[tuple[str, Path]]:
    """Return the cgroup hierarchies of this machine: kind and mount point."""
    lines = [line.split() for line in CGROUPS.read_text(encoding="utf-8").splitlines()]
    return [(words[2], Path(words[1])) for words in lines if words[2] in {"cgroup", "cgroup2"}]


def make_cgroups(paths: Paths) -> None:
    """Make the parent of the pods' cgroups in every hierarchy, with all controllers that there are."""
    for kind, root in _hierarchies():
        folder = root
        for part in paths.cgroup.strip("/").split("/"):
            parent, folder = folder, folder / part
            if kind == "cgroup2":
                _offer_controllers(parent)
            folder.mkdir(exist_ok=True)
            if kind == "cgroup" and (folder / "cpuset.cpus").exists():
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((parent / file).read_text(encoding="ascii"), encoding="ascii")
        if kind == "cgroup2":
            _offer_controllers(folder)


def _offer_controllers(folder: Path) -> None:
    for controller in (folder / "cgroup.controllers").read_text(encoding="ascii").split():
        with suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def remove_cgroups(paths: Paths) -> None:
    """Remove a cluster's cgroups. They are empty once its processes have ended."""

    def gone() -> bool:
        remaining = False
        for _, root in _hierarchies():
            top = root / paths.cgroup.strip("/")
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()
            remaining = remaining or top.exists()
            with suppress(OSError):
                top.parent.rmdir()
        return not remaining

    wait_for(f"the end of the cgroups of cluster {paths.name!r}", gone, seconds=END_SECONDS)
