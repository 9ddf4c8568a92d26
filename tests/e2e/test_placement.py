"""Pods go to exactly the GPUs that were asked for: never to a slice, never to a shared card, never by prefix."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.models import quick_model
from tests.e2e.test_lifecycle import SETTLES
from tests.e2e.world import World, condition

NODES = {
    "pcie-0": ("--product", "NVIDIA-H100-PCIe", "--gpus", "2"),
    "nvl-0": ("--product", "NVIDIA-H100-NVL", "--gpus", "2"),
    "shared-0": ("--product", "NVIDIA-H100-PCIe", "--gpus", "8", "--sharing", "time-slicing"),
    "mig-0": ("--product", "NVIDIA-H100-PCIe", "--gpus", "7", "--mig"),
}


@pytest.fixture
def fake_nodes(cluster: World) -> Iterator[None]:
    """Nodes that only the scheduler believes in, of every kind of H100 that must be told apart."""
    program = os.environ.get("SPECMODEL_LOCAL_CLUSTER")
    if not program:
        pytest.skip("only the local test cluster can be given nodes")
    for name, arguments in NODES.items():
        subprocess.run([*program.split(), "fake-node", name, *arguments], check=True, timeout=60, capture_output=True)
    yield
    for name in NODES:
        subprocess.run([*program.split(), "fake-node", name, "--remove"], check=True, timeout=60, capture_output=True)


def test_pods_land_on_the_product_that_was_asked_for_and_on_whole_cards_only(world: World, fake_nodes: None) -> None:
    for product, node in (("NVIDIA-H100-PCIe", "pcie-0"), ("NVIDIA-H100-NVL", "nvl-0")):
        name = node.removesuffix("-0")
        world.apply(quick_model(name, hardware={"gpuProducts": [product], "gpusPerReplica": [2]}))

        selector = f"specmodel.dev/model={name},specmodel.dev/role"

        def landed_on(selector: str = selector) -> set[str]:
            return {pod["spec"].get("nodeName", "") for pod in world.list("pods", "-l", selector)} - {""}

        landed = world.wait_until(f"{name}'s pod has a node", landed_on, seconds=60)
        assert landed == {node}
        world.kubectl("delete", "specm", name, "--wait=true")


def test_where_no_card_matches_the_products_that_were_seen_are_named(world: World, fake_nodes: None) -> None:
    world.apply(quick_model(hardware={"gpuProducts": ["NVIDIA-H100"]}))

    def says() -> str:
        found = condition(world.get("specm", "agent"), "Ready")
        return found["message"] if found["reason"] == "NoMatchingGPU" else ""

    message = world.wait_until("the missing product is explained", says, seconds=SETTLES / 4)
    assert "NVIDIA-H100-80GB-HBM3" in message
    assert "NVIDIA-H100-NVL" in message
