"""The configuration for kind says what the local cluster says, and kind's own program takes it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster import build, gpus, kind
from tests.cluster.gpus import Offer
from tests.cluster.paths import HERE

CONFIGURATION = HERE / "kind.yaml"
DOCKER = """\
#!/bin/sh
case "$1" in
  info) echo '{"CgroupVersion":"2","CgroupDriver":"systemd","MemoryLimit":true,"PidsLimit":true,"CPUShares":true}' ;;
  ps|inspect) ;;
  *) echo "the test's docker makes no cluster" >&2; exit 1 ;;
esac
"""
"""A Docker that has no clusters, has every image, and refuses to make anything."""


def create(configuration: Path, scratch: Path) -> str:
    """Return what kind says when it is asked to make a cluster where nothing can be made."""
    if not build.has("kind", kind.RELEASE):
        pytest.skip("kind is not built: run `python3 tests/cluster/cluster.py build`")
    docker = scratch / "docker"
    docker.write_text(DOCKER, encoding="utf-8")
    docker.chmod(0o755)
    done = subprocess.run(
        [
            str(build.program("kind", kind.RELEASE)), "create", "cluster", "--name", "unit-test",
            "--config", str(configuration), "--kubeconfig", str(scratch / "kubeconfig"),
        ],
        env={
            "PATH": f"{scratch}:{os.environ['PATH']}",
            "HOME": str(scratch),
            "KIND_EXPERIMENTAL_PROVIDER": "docker",
        },
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr


def test_the_worker_has_the_labels_of_the_local_clusters_node() -> None:
    worker = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))["nodes"][1]
    assert worker["labels"] == gpus.labels(Offer(product=gpus.product(gpus.SXM), count=4))


@pytest.mark.cluster
def test_kind_reads_the_configuration_and_goes_on_to_make_nodes(tmp_path: Path) -> None:
    told = create(CONFIGURATION, tmp_path)
    assert 'Creating cluster "unit-test"' in told
    assert "the test's docker makes no cluster" in told


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("mistake", "told"),
    [("rolle: worker", "field rolle not found"), ("role: wrker", '"wrker" is not a valid node role')],
)
def test_kind_would_say_so_if_the_configuration_were_wrong(tmp_path: Path, mistake: str, told: str) -> None:
    wrong = tmp_path / "kind.yaml"
    wrong.write_text(CONFIGURATION.read_text(encoding="utf-8").replace("role: worker", mistake), encoding="utf-8")
    said = create(wrong, tmp_path)
    assert told in said
    assert "Creating cluster" not in said
