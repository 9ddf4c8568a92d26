#!/usr/bin/env python3
"""The command line of the cluster for tests and the demo. See README.md beside this file.

Answers go to standard output and progress to standard error. Exit 0: done; 1: could not, with the reason; 130: stopped.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

# Run as a file, its own folder is on the path: the repository's root is meant, so that no module here can hide another.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.cluster import build, clients, gpus, host, images, kind, node, prepare, state, versions  # noqa: E402
from tests.cluster.clients import Access  # noqa: E402
from tests.cluster.faults import ClusterError, say  # noqa: E402
from tests.cluster.paths import NODE, Paths, default_name  # noqa: E402

DEFAULT_GPUS = 4
NOT_UP = 3


def parser() -> argparse.ArgumentParser:
    """Return the grammar of the command line."""
    top = argparse.ArgumentParser(prog="cluster.py", description="A real Kubernetes cluster on this machine.")
    top.add_argument(
        "--name", default=default_name(), help="which cluster (default: %(default)s, or what SPECMODEL_CLUSTER says)"
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        # Also accepted after the command; SUPPRESS leaves the one before it alone.
        added.add_argument("--name", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return added

    def release(added: argparse.ArgumentParser) -> None:
        known = ", ".join(versions.MINORS.values())
        text = f"{known}, or a minor of these (default: $K8S, else {versions.DEFAULT_MINOR})"
        added.add_argument("--kubernetes", metavar="VERSION", help=text)

    command("prepare", "install the distribution's packages that are missing")
    release(command("build", "build the programs of a cluster into the cache"))
    up = command("up", "bring the cluster up and print its kubeconfig")
    release(up)
    up.add_argument("--gpus", type=int, default=DEFAULT_GPUS, help="H100s of the node (default: %(default)s)")
    command("down", "take the cluster down and leave nothing behind")
    command("status", f"say how the cluster is; exit {NOT_UP} when it is not up")
    command("env", 'print the shell\'s settings for using the cluster: eval "$(… env)"')
    image = command("image", "build images/NAME (and the base image) and load it into the cluster when it is up")
    image.add_argument("names", nargs="+", metavar="NAME", help="folder in images/, or `base`")
    load = command("load-image", "load image archives (docker save, OCI) into the cluster")
    load.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    cards = command("gpus", "change how many GPUs the real node offers")
    cards.add_argument("action", choices=["set"])
    cards.add_argument("count", type=int)
    fake = command("fake-node", "add or remove a node that only the scheduler believes in")
    fake.add_argument("node_name", metavar="NODE")
    products = ", ".join(sorted(gpus.PRODUCTS))
    fake.add_argument("--product", default=gpus.SXM, help=f"one of {products} (default: %(default)s)")
    fake.add_argument("--gpus", type=int, default=DEFAULT_GPUS, help="cards in the node (default: %(default)s)")
    fake.add_argument("--sharing", choices=["time-slicing"], help="each card is offered --replicas times")
    fake.add_argument("--replicas", type=int, default=4, help="with --sharing (default: %(default)s)")
    fake.add_argument("--mig", action="store_true", help=f"each card is cut into seven {gpus.MIG_PROFILE}")
    fake.add_argument("--remove", action="store_true", help="remove the node")
    for name in ("kubectl", "helm", "ctr"):
        command(name, f"{name} on this cluster; all that follows is its own").add_argument(
            "rest", nargs=argparse.REMAINDER
        )
    return top


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says and return the exit code."""
    asked = parser().parse_args(arguments)
    try:
        return _do(asked, Paths(asked.name))
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("stopped; the next `up` or `down` cleans up what was left half-way")
        return 130


def _do(asked: argparse.Namespace, paths: Paths) -> int:
    match asked.command, os.environ.get("CLUSTER") or "local":
        case "prepare", "kind":
            kind.require_docker()
        case "prepare", _:
            prepare.require_root()
            prepare.prepare()
        case "build", "kind":
            build.build(kind.RELEASE, kind.PROGRAMS)
        case "build", _:
            build.build(versions.kubernetes_version(asked.kubernetes))
        case _, "kind":
            return _on_kind(asked, paths)
        case _, "local":
            return _on_this_machine(asked, paths)
        case _, other:
            raise ClusterError(f"CLUSTER={other} is not known: use CLUSTER=kind, or leave it out for the local cluster")
    return 0


def _on_this_machine(asked: argparse.Namespace, paths: Paths) -> int:
    match asked.command:
        case "up":
            node.up(paths, release=versions.kubernetes_version(asked.kubernetes), gpu_count=asked.gpus)
            print(paths.kubeconfig)
        case "down":
            node.down(paths)
        case "status":
            return _status(paths)
        case "image":
            images.provide(paths, asked.names)
        case "load-image":
            release = state.of_running(paths).kubernetes
            for archive in asked.archives:
                images.load(paths, archive, release)
        case "ctr":
            words = clients.ctr_command(paths, state.of_running(paths).kubernetes)
            os.execv(words[0], [*words, *asked.rest])  # noqa: S606 - no shell is wanted
        case _:
            release = state.of_running(paths).kubernetes
            _use(asked, paths, clients.access(paths, release), release)
    return 0


def _on_kind(asked: argparse.Namespace, paths: Paths) -> int:
    match asked.command:
        case "up":
            kind.up(paths.name, gpu_count=asked.gpus)
            print(kind.kubeconfig(paths.name))
        case "down":
            kind.down(paths.name)
        case "status":
            is_up = build.has("kind", kind.RELEASE) and kind.is_up(paths.name)
            print(f"cluster {paths.name!r} is {'up' if is_up else 'not up'} in kind; {kind.kubeconfig(paths.name)}")
            return 0 if is_up else NOT_UP
        case "image":
            for name in asked.names:
                kind.provide(paths.name, name, images.reference(name))
                print(images.reference(name))
        case "load-image":
            for archive in asked.archives:
                kind.load(paths.name, archive)
        case "fake-node" | "ctr":
            raise ClusterError(f"{asked.command} works on the local cluster alone: leave CLUSTER=kind out")
        case _:
            _use(asked, paths, kind.access(paths.name), kind.RELEASE)
    return 0


def _use(asked: argparse.Namespace, paths: Paths, cluster: Access, release: str) -> None:
    """Do what is the same on every cluster that is up."""
    match asked.command:
        case "env":
            _env(paths, cluster, release)
        case "gpus":
            gpus.put(cluster, asked.count)
        case "fake-node":
            _fake_node(cluster, asked)
        case "kubectl":
            os.execv(cluster.kubectl[0], [*cluster.kubectl, *asked.rest])  # noqa: S606 - no shell is wanted
        case "helm":
            words = [str(build.program("helm", release)), *cluster.kubectl[1:]]
            os.execv(words[0], [*words, *asked.rest])  # noqa: S606 - no shell is wanted


def _status(paths: Paths) -> int:
    chosen = state.read(paths)
    if chosen is None or not paths.ready.exists():
        left = paths.run.exists() or paths.data.exists() or bool(host.owners(paths))
        print(f"cluster {paths.name!r} is {'half-way: run up or down' if left else 'not up'}")
        return NOT_UP
    wrong = node.problem(paths)
    print(f"cluster     {paths.name}")
    print(f"state       {wrong or 'up'}")
    print(f"kubernetes  {chosen.kubernetes}")
    print(f"node        {NODE} {chosen.addresses.node}")
    print(f"kubeconfig  {paths.kubeconfig}")
    print(f"audit log   {paths.audit_log}")
    print(f"logs        {paths.logs}")
    return 1 if wrong else 0


def _env(paths: Paths, cluster: Access, release: str) -> None:
    settings = {
        "KUBECONFIG": cluster.kubectl[-1],
        "KUBECTL": cluster.kubectl[0],
        "HELM": build.program("helm", release),
        "SPECMODEL_LOCAL_CLUSTER": f"{sys.executable} {Path(__file__).resolve()} --name {paths.name}",
    }
    if cluster.node == NODE:
        settings["SPECMODEL_AUDIT_LOG"] = paths.audit_log
    for name, value in settings.items():
        print(f"export {name}={shlex.quote(str(value))}")


def _fake_node(cluster: Access, asked: argparse.Namespace) -> None:
    if asked.remove:
        gpus.remove_fake_node(cluster, asked.node_name)
        return
    if asked.sharing and asked.mig:
        raise ClusterError("a card is either cut up (--mig) or shared in time (--sharing): choose one")
    offer = gpus.Offer(
        product=gpus.product(asked.product),
        count=asked.gpus,
        replicas=asked.replicas if asked.sharing else 1,
        mig=asked.mig,
    )
    gpus.add_fake_node(cluster, asked.node_name, offer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
