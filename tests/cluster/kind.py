"""The same cluster in Docker, through kind: for machines where Docker is at hand and root is not.

kind, kubectl and helm come from the cache as everything else. What this cluster lacks: nodes played by kwok, and the
API server's audit log; scenarios that need them are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster import build, clients, gpus, images, paths
from tests.cluster.clients import Access
from tests.cluster.faults import ClusterError, say
from tests.cluster.paths import HERE, REPOSITORY
from tests.cluster.versions import DEFAULT_MINOR, MINORS

PROGRAMS = frozenset({"kind", "kubectl", "helm"})
RELEASE = MINORS[DEFAULT_MINOR]
"""Release of kubectl. The nodes run what kind's default image holds, or KIND_NODE_IMAGE."""
UP_SECONDS = 900
IMAGE_SECONDS = 1800
ANSWER_SECONDS = 60


def name_of(name: str) -> str:
    """Return the name of the cluster in kind's words."""
    return f"specmodel-{name}"


def kubeconfig(name: str) -> Path:
    """Return the path of the kubeconfig: stable, and not the user's own."""
    return paths.cache() / "kind" / f"{name}.kubeconfig"


def require_docker() -> None:
    """Raise ClusterError where Docker does not answer."""
    if not shutil.which("docker"):
        raise ClusterError("CLUSTER=kind needs Docker, and there is no `docker` here: install it, or leave CLUSTER out")
    done = clients.try_command(["docker", "info"], seconds=ANSWER_SECONDS)
    if done.returncode != 0:
        raise ClusterError(f"CLUSTER=kind needs Docker, which does not answer: {done.stderr.strip()}")


def access(name: str) -> Access:
    """Return how the cluster is talked to."""
    kubectl = str(build.program("kubectl", RELEASE))
    return Access(
        kubectl=(kubectl, "--kubeconfig", str(kubeconfig(name))), node=f"{name_of(name)}-worker", kubelet_log=None
    )


def is_up(name: str) -> bool:
    """Whether kind knows the cluster and its API server answers."""
    done = _kind("get", "clusters", seconds=ANSWER_SECONDS)
    if name_of(name) not in done.stdout.split():
        return False
    return kubeconfig(name).exists() and clients.find(access(name), "node", access(name).node) is not None


def up(name: str, *, gpu_count: int) -> None:
    """Bring the cluster up. Does nothing when it is up; makes it anew when it is broken."""
    require_docker()
    minor = os.environ.get("K8S") or DEFAULT_MINOR
    image = os.environ.get("KIND_NODE_IMAGE")
    if not image and minor not in {DEFAULT_MINOR, RELEASE}:
        raise ClusterError(
            f"kind's own node image is of {DEFAULT_MINOR}: for Kubernetes {minor} set "
            f"KIND_NODE_IMAGE=kindest/node:v{MINORS.get(minor, minor)} or another of that minor"
        )
    build.build(RELEASE, PROGRAMS)
    if is_up(name):
        say(f"cluster {name!r} is up in kind")
        return
    down(name)
    kubeconfig(name).parent.mkdir(parents=True, exist_ok=True)
    chosen = ("--image", image) if image else ()
    say(f"creating {name_of(name)} with kind; it fetches its node image the first time (about 400 MB)")
    _must(
        "create", "cluster", "--name", name_of(name), "--config", str(HERE / "kind.yaml"),
        "--kubeconfig", str(kubeconfig(name)), "--wait", "180s", *chosen, seconds=UP_SECONDS,
    )  # fmt: skip
    gpus.offer(access(name), gpu_count)


def down(name: str) -> None:
    """Delete the cluster. Does nothing when there is none."""
    require_docker()
    build.build(RELEASE, PROGRAMS)
    _must("delete", "cluster", "--name", name_of(name), "--kubeconfig", str(kubeconfig(name)), seconds=UP_SECONDS)
    kubeconfig(name).unlink(missing_ok=True)


def provide(name: str, image: str, reference: str) -> None:
    """Build an image with Docker and load it into the cluster when it is up."""
    require_docker()
    containerfile = REPOSITORY / "images" / image / "Containerfile"
    if not containerfile.exists():
        raise ClusterError(f"there is no {containerfile}")
    packages = images.packages_of(image)
    more = [] if packages is None else [f"--build-context=packages={packages}"]
    command = ["docker", "build", "--quiet", "--file", str(containerfile), "--tag", reference, *more, str(REPOSITORY)]
    done = clients.try_command(command, seconds=IMAGE_SECONDS)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed\n{done.stderr.strip()[-4000:]}")
    if build.has("kind", RELEASE) and is_up(name):
        _must("load", "docker-image", reference, "--name", name_of(name), seconds=IMAGE_SECONDS)


def load(name: str, archive: Path) -> None:
    """Load an image archive into the cluster."""
    _must("load", "image-archive", str(archive), "--name", name_of(name), seconds=IMAGE_SECONDS)


def _kind(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return clients.try_command([str(build.program("kind", RELEASE)), *arguments], seconds=seconds)


def _must(*arguments: str, seconds: float) -> None:
    done = _kind(*arguments, seconds=seconds)
    if done.returncode != 0:
        raise ClusterError(f"kind {' '.join(arguments)} failed\n{done.stderr.strip()[-4000:]}")
