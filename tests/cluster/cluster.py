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

from tests.cluster import build, clients, gpus, host, images, node, prepare, state, versions  # noqa: E402
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


def _do(asked: argparse.Namespace, paths: Paths) -> int:  # noqa: C901 - one case per command
    match asked.command:
        case "prepare":
            prepare.require_root()
            prepare.prepare()
        case "build":
            build.build(versions.kubernetes_version(asked.kubernetes))
        case "up":
            node.up(paths, release=versions.kubernetes_version(asked.kubernetes), gpu_count=asked.gpus)
            print(paths.kubeconfig)
        case "down":
            node.down(paths)
        case "status":
            return _status(paths)
        case "env":
            _env(paths)
        case "image":
            images.provide(paths, asked.names)
        case "load-image":
            state.of_running(paths)
            for archive in asked.archives:
                images.load(paths, archive)
        case "gpus":
            state.of_running(paths)
            gpus.put(paths, asked.count)
        case "fake-node":
            state.of_running(paths)
            _fake_node(paths, asked)
        case "kubectl" | "ctr" | "helm":
            _become(paths, asked.command, asked.rest)
    return 0


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


def _env(paths: Paths) -> None:
    chosen = state.of_running(paths)
    settings = {
        "KUBECONFIG": paths.kubeconfig,
        "KUBECTL": build.program("kubectl", chosen.kubernetes),
        "HELM": build.program("helm", chosen.kubernetes),
        "SPECMODEL_AUDIT_LOG": paths.audit_log,
        "SPECMODEL_LOCAL_CLUSTER": f"{sys.executable} {Path(__file__).resolve()} --name {paths.name}",
    }
    for name, value in settings.items():
        print(f"export {name}={shlex.quote(str(value))}")


def _fake_node(paths: Paths, asked: argparse.Namespace) -> None:
    if asked.remove:
        gpus.remove_fake_node(paths, asked.node_name)
        return
    if asked.sharing and asked.mig:
        raise ClusterError("a card is either cut up (--mig) or shared in time (--sharing): choose one")
    offer = gpus.Offer(
        product=gpus.product(asked.product),
        count=asked.gpus,
        replicas=asked.replicas if asked.sharing else 1,
        mig=asked.mig,
    )
    gpus.add_fake_node(paths, asked.node_name, offer)


def _become(paths: Paths, program: str, rest: list[str]) -> None:
    chosen = state.of_running(paths)
    words = {
        "kubectl": clients.kubectl_command(paths),
        "ctr": clients.ctr_command(paths),
        "helm": [str(build.program("helm", chosen.kubernetes)), "--kubeconfig", str(paths.kubeconfig)],
    }[program]
    os.execv(words[0], [*words, *rest])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
