"""GPUs that are not there: extended resources and the labels that GPU feature discovery would set.

Capacity is patched into the node's status, the documented way to advertise an extended resource; the kubelet keeps it
and the real scheduler counts it. No container is given a device: what runs here must not need one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.cluster import clients
from tests.cluster.clients import Access
from tests.cluster.faults import ClusterError, wait_for

RESOURCE = "nvidia.com/gpu"
SXM = "NVIDIA-H100-80GB-HBM3"
MIG_PROFILE = "1g.10gb"
SETTLE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Product:
    """A card as feature discovery names it. `memory` is MiB per card."""

    name: str
    memory: int
    machine: str


PRODUCTS = {
    each.name: each
    for each in (
        Product(SXM, 81559, "DGXH100"),
        Product("NVIDIA-H100-PCIe", 81559, "PowerEdge-R760xa"),
        Product("NVIDIA-H100-NVL", 95830, "ThinkSystem-SR675-V3"),
        Product("NVIDIA-H200", 143771, "DGXH200"),
        Product("NVIDIA-A100-SXM4-80GB", 81920, "DGXA100-920-23687-2530-000"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a node offers: cards of a product, whole, shared in time (`replicas` per card) or cut up by MIG."""

    product: Product
    count: int
    replicas: int = 1
    mig: bool = False

    @property
    def allocatable(self) -> int:
        """How many `nvidia.com/gpu` the node offers. MIG cuts a card into seven."""
        return self.count * (7 if self.mig else self.replicas)


def product(name: str) -> Product:
    """Return a product by its label. Raises ClusterError for one that is not known here."""
    if name not in PRODUCTS:
        raise ClusterError(f"product {name!r} is not known: use one of {', '.join(sorted(PRODUCTS))}")
    return PRODUCTS[name]


def labels(offer: Offer) -> dict[str, str]:
    """Return the labels that GPU feature discovery sets for an offer (MIG: strategy `single`)."""
    card = offer.product
    shared = offer.replicas > 1
    suffix = f"-MIG-{MIG_PROFILE}" if offer.mig else ""
    suffix += "-SHARED" if shared else ""
    is_hopper = card.name.startswith(("NVIDIA-H100", "NVIDIA-H200"))
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": card.name + suffix,
        "nvidia.com/gpu.count": str(offer.count * (7 if offer.mig else 1)),
        "nvidia.com/gpu.replicas": str(offer.replicas),
        "nvidia.com/gpu.memory": str(9984 if offer.mig else card.memory),
        "nvidia.com/gpu.family": "hopper" if is_hopper else "ampere",
        "nvidia.com/gpu.compute.major": "9" if is_hopper else "8",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.machine": card.machine,
        "nvidia.com/gpu.sharing-strategy": "time-slicing" if shared else "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/cuda.driver.major": "580",
        "nvidia.com/cuda.runtime.major": "13",
        "nvidia.com/cuda.runtime.minor": "0",
    }


def offer(cluster: Access, count: int) -> None:
    """Make the real node a machine with `count` H100 SXM."""
    wanted = labels(Offer(product=product(SXM), count=count))
    patch = json.dumps({"metadata": {"labels": wanted}})
    clients.kubectl(cluster, "patch", "node", cluster.node, "--type=merge", "--patch", patch)
    put(cluster, count)


def put(cluster: Access, count: int) -> None:
    """Change the number of GPUs of the real node, and wait until the scheduler would see it.

    Pods that hold a GPU keep it, as they would on a node that loses a card.
    """
    if count < 0:
        raise ClusterError(f"{count} GPUs cannot be offered: give 0 or more")
    label = json.dumps({"metadata": {"labels": {"nvidia.com/gpu.count": str(count)}}})
    clients.kubectl(cluster, "patch", "node", cluster.node, "--type=merge", "--patch", label)
    resources = {RESOURCE: str(count)}
    patch = json.dumps({"status": {"capacity": resources, "allocatable": resources}})
    clients.kubectl(cluster, "patch", "node", cluster.node, "--subresource=status", "--type=merge", "--patch", patch)

    def is_offered() -> bool:
        node = clients.find(cluster, "node", cluster.node) or {}
        status = node.get("status", {})
        return all(status.get(kind, {}).get(RESOURCE) == str(count) for kind in ("capacity", "allocatable"))

    logs = [cluster.kubelet_log] if cluster.kubelet_log else []
    wait_for(f"{count} GPUs on {cluster.node}", is_offered, seconds=SETTLE_SECONDS, logs=logs)


def add_fake_node(cluster: Access, name: str, node: Offer) -> None:
    """Add a node that kwok plays: pods are scheduled on it and said to run, and nothing runs."""
    resources = {
        "cpu": "96", "memory": "1024Gi", "pods": "110", "ephemeral-storage": "1024Gi", RESOURCE: str(node.allocatable),
    }  # fmt: skip
    manifest = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "specmodel.dev/fake": "true",
                **labels(node),
            },
        },
        # As on many a GPU node: what does not tolerate GPUs (it would never run) stays away.
        "spec": {"taints": [{"key": RESOURCE, "value": "present", "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources, "phase": "Running"},
    }
    clients.kubectl(cluster, "apply", "--filename=-", stdin=json.dumps(manifest))

    def is_ready() -> bool:
        found = clients.find(cluster, "node", name) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    wait_for(f"node {name}", is_ready, seconds=SETTLE_SECONDS)


def remove_fake_node(cluster: Access, name: str) -> None:
    """Remove a node that kwok plays; the real node is never removed."""
    if name == cluster.node:
        raise ClusterError(f"{cluster.node} is the real node: use `gpus set 0` to take its GPUs")
    clients.kubectl(cluster, "delete", "node", name, "--ignore-not-found")
