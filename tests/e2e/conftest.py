"""The cluster of the scenarios: the one that KUBECONFIG names, or a local one of our own, and an operator in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rehearsal import OPERATOR_NAMESPACE, install_operator, remove_operator
from tests.e2e.world import World


@pytest.fixture(scope="session")
def cluster() -> World:
    """The cluster that KUBECONFIG names. `make test` and `make e2e` set it."""
    path = os.environ.get("KUBECONFIG")
    if not path:
        pytest.skip("KUBECONFIG is not set: run these through `make test` or `make e2e`")
    return World(Path(path), os.environ.get("KUBECTL", "kubectl"))


@pytest.fixture(scope="session")
def operator(cluster: World) -> Iterator[World]:
    """The cluster with the operator installed from its chart, seen from the operator's namespace.

    On a cluster that is not ours to throw away the operator is removed again.
    """
    install_operator(cluster)
    yield cluster.within(OPERATOR_NAMESPACE)
    if not os.environ.get("SPECMODEL_LOCAL_CLUSTER"):
        remove_operator(cluster)


@pytest.fixture
def world(cluster: World, operator: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace of the scenario's own, deleted with all that is in it when the scenario ends.

    Nobody waits for that: the next scenario meets pods that still hold GPUs, as real clusters do.
    """
    assert operator
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true", timeout=180)
    cluster.kubectl("create", "namespace", name)
    yield cluster.within(name)
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def scarce_gpus(cluster: World) -> Iterator[None]:
    """The node offers two GPUs during the scenario, and four again afterwards."""
    cluster.gpus(2)
    yield
    cluster.gpus(4)
