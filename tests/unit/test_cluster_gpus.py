"""GPUs that are not there carry the labels of those that are."""

from __future__ import annotations

import pytest

from tests.cluster import gpus
from tests.cluster.faults import ClusterError
from tests.cluster.gpus import Offer


def offer(name: str, *, count: int = 4, replicas: int = 1, mig: bool = False) -> Offer:
    return Offer(product=gpus.product(name), count=count, replicas=replicas, mig=mig)


@pytest.mark.parametrize(
    ("node", "product", "memory", "sharing", "offered"),
    [
        (offer(gpus.SXM), "NVIDIA-H100-80GB-HBM3", "81559", "none", 4),
        (offer("NVIDIA-H100-PCIe", count=2), "NVIDIA-H100-PCIe", "81559", "none", 2),
        (offer("NVIDIA-H100-NVL", count=2), "NVIDIA-H100-NVL", "95830", "none", 2),
        (offer(gpus.SXM, count=1, mig=True), "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "9984", "none", 7),
        (offer(gpus.SXM, count=2, replicas=4), "NVIDIA-H100-80GB-HBM3-SHARED", "81559", "time-slicing", 8),
    ],
)
def test_a_node_is_labelled_as_gpu_feature_discovery_would(
    node: Offer, product: str, memory: str, sharing: str, offered: int
) -> None:
    labels = gpus.labels(node)
    assert labels["nvidia.com/gpu.product"] == product
    assert labels["nvidia.com/gpu.memory"] == memory
    assert labels["nvidia.com/gpu.sharing-strategy"] == sharing
    assert labels["nvidia.com/gpu.family"] == "hopper"
    assert labels["nvidia.com/gpu.compute.major"] == "9"
    assert node.allocatable == offered


def test_a_card_of_another_family_is_not_called_hopper() -> None:
    labels = gpus.labels(offer("NVIDIA-A100-SXM4-80GB"))
    assert (labels["nvidia.com/gpu.family"], labels["nvidia.com/gpu.compute.major"]) == ("ampere", "8")


def test_a_card_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ClusterError, match=r"'H100' is not known: use one of .*NVIDIA-H100-NVL"):
        gpus.product("H100")
