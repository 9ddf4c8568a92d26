"""The one owner of a node's processes: the first process of the node's PID namespace. Started by `node.up` alone.

When it ends, however it ends, the kernel ends everything in its namespace, pods included, and with them go the mounts
and the network: that is why nothing can be left behind. It must therefore never start a process outside the namespace,
and never decide anything: what to run is in the plan.

Run as `unshare --net --mount --pid --fork python3 supervisor.py PLAN`, standard library only, no imports of ours.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

INTERFACE_SECONDS = 60
API_SECONDS = 90
RESTART_SECONDS = 1.0
MOST_RESTARTS = 20


def tell(text: str) -> None:
    """Write a line to the log."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def run(*command: str) -> None:
    """Run a program that must succeed."""
    subprocess.run(command, check=True, timeout=30)


def hide_from_the_machine(plan: dict[str, Any]) -> None:
    """Give the node /run, /var/lib and /var/log of its own, in which only its two folders and its programs are seen.

    Whatever a component writes to a place that it was not told stays in `private`, and goes with it.
    """
    run_folder, data_folder = Path(plan["run"]), Path(plan["data"])
    private = data_folder / "private"
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    for hidden in ("/run", "/var/lib", "/var/log"):
        own = private / hidden.strip("/").replace("/", "-")
        own.mkdir(parents=True, exist_ok=True)
        for folder in (run_folder, data_folder, *map(Path, plan["programs"])):
            if folder.is_relative_to(hidden):
                seen = own / folder.relative_to(hidden)
                seen.mkdir(parents=True, exist_ok=True)
                run("mount", "--bind", str(folder), str(seen))
        run("mount", "--rbind", str(own), hidden)
    run("mount", "--make-rshared", "/")


def set_up_network(plan: dict[str, Any]) -> None:
    """Wait for the link that `node.up` lays, and give it its address."""
    deadline = time.monotonic() + INTERFACE_SECONDS
    while subprocess.run(["ip", "link", "show", "eth0"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            sys.exit("the link to the machine was never laid")
        time.sleep(0.05)
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", f"{plan['node']}/24", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "route", "add", "default", "via", plan["host"])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
    Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("1", encoding="ascii")


def api_answers(pki: Path) -> bool:
    """Whether the API server says that it is ready."""
    try:
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", 6443, context=context, timeout=2)
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


class Supervisor:
    """Starts what the plan names, starts again what ends, and reaps what is orphaned."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._waiting = list(plan["components"])
        self._running: dict[int, dict[str, Any]] = {}
        self._again: list[tuple[float, dict[str, Any]]] = []
        self._restarts: dict[str, int] = {}
        self._started = time.monotonic()

    def work(self) -> None:
        """Work until killed."""
        api = False
        while True:
            if self._waiting and not api:
                api = api_answers(Path(self._plan["run"]) / "pki")
                if not api and time.monotonic() > self._started + API_SECONDS:
                    sys.exit("the API server did not answer: see its log")
            for component in [each for each in self._waiting if api or not each["after"]]:
                self._waiting.remove(component)
                self._start(component)
            now = time.monotonic()
            for due, component in [each for each in self._again if each[0] <= now]:
                self._again.remove((due, component))
                self._start(component)
            self._reap()
            time.sleep(0.1)

    def _start(self, component: dict[str, Any]) -> None:
        name = component["name"]
        with (Path(self._plan["logs"]) / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                component["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PATH": self._plan["path"]},
            )
        self._running[child.pid] = component
        tell(f"{name} started")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            component = self._running.pop(pid, None)
            if component is None:
                continue
            name = component["name"]
            self._restarts[name] = self._restarts.get(name, 0) + 1
            tell(f"{name} ended with {os.waitstatus_to_exitcode(status)}")
            if self._restarts[name] > MOST_RESTARTS:
                tell(f"{name} ended {MOST_RESTARTS} times: it is not started again")
                continue
            self._again.append((time.monotonic() + RESTART_SECONDS, component))


def main() -> None:
    """Become the owner."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    hide_from_the_machine(plan)
    set_up_network(plan)
    tell("the namespaces are set up")
    Supervisor(plan).work()


if __name__ == "__main__":
    main()
