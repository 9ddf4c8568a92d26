"""Where everything lies: the cache outside the repository, and the folders of one cluster. Nothing is created here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.faults import ClusterError

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
RUN_ROOT = Path("/run/specmodel")
DATA_ROOT = Path("/var/lib/specmodel")
DEFAULT_NAME = "dev"
NODE = "node-1"
"""Name of the one real node."""
LONGEST_NAME = 20


def cache() -> Path:
    """Return the folder that outlives clusters: programs, base images, image layers."""
    return Path(os.environ.get("SPECMODEL_CACHE") or Path.home() / ".cache" / "specmodel")


def programs_cache() -> Path:
    """Return where built programs lie, one folder per group and recipe."""
    return cache() / "cluster"


def images_cache() -> Path:
    """Return where image archives and buildah's layers lie."""
    return cache() / "images"


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of one cluster. `run` is small (sockets, keys, configuration); `data` is large (images, etcd, logs)."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", self.name) or len(self.name) > LONGEST_NAME:
            raise ClusterError(
                f"{self.name!r} cannot name a cluster: use at most {LONGEST_NAME} of a-z, 0-9 and -, as in 'dev'"
            )

    @property
    def run(self) -> Path:
        """Folder of sockets, keys and configuration."""
        return RUN_ROOT / self.name

    @property
    def data(self) -> Path:
        """Folder of images, containers, etcd and logs."""
        return DATA_ROOT / self.name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig: the path that users and tests are given."""
        return self.run / "admin.kubeconfig"

    @property
    def pki(self) -> Path:
        """Folder of keys, certificates and the components' kubeconfigs."""
        return self.run / "pki"

    @property
    def socket(self) -> Path:
        """Socket of containerd."""
        return self.run / "containerd.sock"

    @property
    def state(self) -> Path:
        """What was chosen when the cluster was made: `state.State` as JSON."""
        return self.run / "state.json"

    @property
    def ready(self) -> Path:
        """Present once `up` has come to its end."""
        return self.run / "ready"

    @property
    def plan(self) -> Path:
        """What the supervisor starts; its path in the process table is also how the supervisor is found."""
        return self.run / "plan.json"

    @property
    def loaded(self) -> Path:
        """Which images were loaded: reference → key of the archive."""
        return self.run / "loaded.json"

    @property
    def logs(self) -> Path:
        """Folder of one log per process."""
        return self.data / "log"

    def log(self, process: str) -> Path:
        """Return the log of one process."""
        return self.logs / f"{process}.log"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON object a line, at the level Metadata."""
        return self.logs / "audit.log"

    @property
    def cgroup(self) -> str:
        """Parent of the pods' cgroups, below the root of every hierarchy."""
        return f"/specmodel/{self.name}"


def default_name() -> str:
    """Return the cluster that is meant when none is named."""
    return os.environ.get("SPECMODEL_CLUSTER") or DEFAULT_NAME
