"""Brings the node up and takes it down. The order of things is here; what each is made of is in its own module.

`up` and `down` may be stopped at any moment, by Ctrl-C or SIGKILL: whatever `up` finds that is not whole it takes down
first, and `down` needs nothing but the cluster's name.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tests.cluster import archive, build, clients, components, gpus, host, pki, prepare, state
from tests.cluster.clients import Access
from tests.cluster.faults import ClusterError, duration, say, tail, wait_for
from tests.cluster.paths import DATA_ROOT, HERE, NODE, RUN_ROOT, Paths
from tests.cluster.state import State

START_SECONDS = 30
READY_SECONDS = 120
RECOVERY_SECONDS = 30
NODE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def up(paths: Paths, *, release: str, gpu_count: int) -> None:
    """Bring a cluster up: a Ready node with DNS and this many GPUs. Does nothing when it is up and well."""
    prepare.require_root()
    with host.alone(paths):
        if _is_up(paths, release):
            say(f"cluster {paths.name!r} is up")
            _restore_gpus(clients.access(paths, release), gpu_count)
            return
        if paths.run.exists() or paths.data.exists() or host.owners(paths):
            say(f"cluster {paths.name!r} was left half-way: cleaning up first")
            _take_down(paths)
        prepare.prepare()
        build.build(release)
        started = time.monotonic()
        _bring_up(paths, release, gpu_count)
        took = duration(time.monotonic() - started)
        say(f"cluster {paths.name!r} (Kubernetes {release}, {gpu_count} GPUs) is up after {took}")


def down(paths: Paths) -> None:
    """Take a cluster down and leave nothing behind. Does nothing when there is none."""
    prepare.require_root()
    with host.alone(paths):
        _take_down(paths)


def problem(paths: Paths) -> str | None:
    """Return what is wrong with a cluster that should be up, or None."""
    if not host.owners(paths):
        return "its processes have ended"
    chosen = state.read(paths)
    node = clients.find(clients.access(paths, chosen.kubernetes), "node", NODE) if chosen else None
    if node is None:
        return "its API server does not answer"
    if not _is_ready(node):
        return f"{NODE} is not Ready"
    return None


def _is_up(paths: Paths, release: str) -> bool:
    chosen = state.read(paths)
    if chosen is None or not paths.ready.exists():
        return False
    if chosen.kubernetes != release and host.owners(paths):
        raise ClusterError(
            f"cluster {paths.name!r} runs Kubernetes {chosen.kubernetes}, and {release} is asked for: take it down "
            "first (`cluster.py down`), or give the new one another --name"
        )
    if host.owners(paths):
        with suppress(ClusterError):
            # A busy machine can make a node late: what comes back by itself is not thrown away.
            return wait_for("a cluster that is well", lambda: problem(paths) is None, seconds=RECOVERY_SECONDS)
    say(f"cluster {paths.name!r} is broken ({problem(paths)}): starting afresh")
    return False


def _restore_gpus(cluster: Access, count: int) -> None:
    """Give the node back what a scenario that was stopped had taken from it."""
    node = clients.find(cluster, "node", cluster.node) or {}
    if node.get("status", {}).get("capacity", {}).get(gpus.RESOURCE) != str(count):
        gpus.put(cluster, count)


def _bring_up(paths: Paths, release: str, gpu_count: int) -> None:
    with host.choosing_addresses():
        chosen = State(kubernetes=release, slot=host.free_slot().slot)
        _start(paths, chosen)
    _load_sandbox_image(paths, chosen)
    _wait_ready(paths, chosen)
    gpus.offer(clients.access(paths, release), gpu_count)
    paths.ready.touch()


def _start(paths: Paths, chosen: State) -> None:
    """Start the node's processes, linked to this machine."""
    for folder in (paths.run, paths.data, paths.logs, paths.run / "cni"):
        folder.mkdir(parents=True, exist_ok=True)
    paths.run.chmod(0o700)
    state.write(paths, chosen)
    pki.make(paths, chosen)
    for name, text in components.configuration(paths, chosen, _snapshotter(paths)).items():
        (paths.run / name).write_text(text, encoding="utf-8")
    plan = _plan(paths, chosen)
    paths.plan.write_text(json.dumps(plan), encoding="utf-8")
    host.make_cgroups(paths)
    supervisor = _start_supervisor(paths)
    host.lay_link(chosen.addresses, supervisor)


def _plan(paths: Paths, chosen: State) -> dict[str, object]:
    release = chosen.kubernetes
    folders = [str(folder) for folder in build.folders(release)]
    processes = components.components(paths, chosen, lambda name: build.program(name, release))
    return {
        "run": str(paths.run),
        "data": str(paths.data),
        "logs": str(paths.logs),
        "node": chosen.addresses.node,
        "host": chosen.addresses.host,
        "programs": folders,
        "path": ":".join([*folders, NODE_PATH]),
        "components": [asdict(each) for each in processes],
    }


def _start_supervisor(paths: Paths) -> int:
    """Start the owner of the node's processes and return the id of its process on this machine."""
    with paths.log("supervisor").open("ab") as log:
        subprocess.Popen(
            [
                "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--propagation", "private",
                sys.executable, "-I", str(HERE / "supervisor.py"), str(paths.plan),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )  # fmt: skip

    def inner() -> int | None:
        """Return the first process of the PID namespace: the child of `unshare`."""
        for pid in host.owners(paths):
            with suppress(OSError):
                if Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
                    return pid
        return None

    return wait_for("the node's namespaces", inner, seconds=START_SECONDS, logs=[paths.log("supervisor")])


def _load_sandbox_image(paths: Paths, chosen: State) -> None:
    log = paths.log("containerd")
    wait_for("containerd", paths.socket.exists, seconds=START_SECONDS, logs=[paths.log("supervisor"), log])
    with tempfile.TemporaryDirectory(dir=paths.data) as scratch:
        layer, target = Path(scratch) / "layer.tar", Path(scratch) / "pause.tar"
        archive.write_layer({"pause": build.program(build.PAUSE.name, chosen.kubernetes)}, layer)
        archive.write(archive.Image(reference=components.SANDBOX_IMAGE, layer=layer, entrypoint=("/pause",)), target)

        def imported() -> bool:
            done = clients.try_command(
                [*clients.ctr_command(paths, chosen.kubernetes), "images", "import", str(target)]
            )
            return done.returncode == 0

        wait_for("the sandbox image", imported, seconds=START_SECONDS, logs=[log])


def _wait_ready(paths: Paths, chosen: State) -> None:
    logs = [paths.log(each) for each in ("supervisor", "apiserver", "kubelet")]
    cluster = clients.access(paths, chosen.kubernetes)

    def alive() -> None:
        if not host.owners(paths):
            raise ClusterError("\n".join(["the node's processes ended while it started", *map(tail, logs)]))

    def has_dns() -> bool:
        alive()
        objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": components.cluster_objects(chosen)})
        done = clients.try_command([*cluster.kubectl, "apply", "--filename=-"], stdin=objects)
        return done.returncode == 0

    def is_ready() -> bool:
        alive()
        return _is_ready(clients.find(cluster, "node", NODE) or {})

    def has_account() -> bool:
        return clients.find(cluster, "serviceaccount", "default", "--namespace=default") is not None

    wait_for("the API server", has_dns, seconds=READY_SECONDS, logs=logs)
    wait_for("a Ready node", is_ready, seconds=READY_SECONDS, logs=logs)
    wait_for("the default account", has_account, seconds=READY_SECONDS, logs=[paths.log("controller-manager")])


def _is_ready(node: dict[str, object]) -> bool:
    status = node.get("status", {})
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _take_down(paths: Paths) -> None:
    host.end_owners(paths)
    chosen = state.read(paths)
    if chosen:
        host.take_up_link(chosen.addresses)
    host.remove_cgroups(paths)
    # The addresses are in the run folder, so it goes last: a `down` that is stopped here can be run again.
    for folder in (paths.data, paths.run):
        _remove(folder)
    for root in (DATA_ROOT, RUN_ROOT):
        with suppress(OSError):
            root.rmdir()


def _remove(folder: Path) -> None:
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    inside = [line.split()[1] for line in mounts.splitlines() if Path(line.split()[1]).is_relative_to(folder)]
    if inside:
        raise ClusterError(f"{folder} is not removed: something is mounted in it ({', '.join(inside)})")
    if folder.exists():
        shutil.rmtree(folder)


def _snapshotter(paths: Paths) -> str:
    """Return how containers' file systems are made: overlays cannot be laid on an overlay."""
    done = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(paths.data)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return "native" if done.stdout.strip() == "overlayfs" else "overlayfs"
