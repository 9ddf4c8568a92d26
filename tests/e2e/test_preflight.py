"""The checkpoints' files are read before a GPU is taken: from a volume, and from a hub that cannot be reached."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.models import quick_model
from tests.e2e.test_lifecycle import ONE_GPU, SETTLES, settle
from tests.e2e.world import Json, World, condition, shape_of
from tests.support.checkpoints import TINY_DRAFTER, TINY_TARGET, drafter_shapes, safetensors, target_shapes

WRONG_DRAFTER = TINY_DRAFTER | {"hidden_size": 160}
#: Seconds for a reading: a pod that starts on a busy machine, and the operator's next look.
READ = 90


def files_of(config: Json, weights: bytes) -> dict[str, str]:
    """Return a checkpoint's files as a ConfigMap's binaryData would take them."""
    return {
        name: base64.b64encode(text).decode()
        for name, text in (("config.json", json.dumps(config).encode()), ("model.safetensors", weights))
    }


@pytest.fixture
def weights(world: World) -> Iterator[str]:
    """A claim `weights` with a target, a drafter that fits it and one that does not, in a folder of the one node."""
    if not os.environ.get("SPECMODEL_LOCAL_CLUSTER"):
        pytest.skip("only the local test cluster's node is ours to write files to")
    volume = f"weights-{world.namespace}"
    checkpoints = {
        "target": files_of(TINY_TARGET, safetensors(target_shapes(TINY_TARGET))),
        "drafter": files_of(TINY_DRAFTER, safetensors(drafter_shapes(TINY_DRAFTER))),
        "wrong": files_of(WRONG_DRAFTER, safetensors(drafter_shapes(WRONG_DRAFTER))),
    }
    path = f"/var/lib/specmodel-e2e/{world.namespace}"
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "claimRef": {"namespace": world.namespace, "name": "weights"},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": path, "type": "DirectoryOrCreate"},
            },
        }
    )
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "weights"},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )
    _fill(world, path, checkpoints)
    yield "weights"
    _empty(world, path)
    world.kubectl("delete", "pv", volume, "--wait=false")


def _fill(world: World, path: str, checkpoints: dict[str, dict[str, str]]) -> None:
    """Have a pod copy the files from ConfigMaps to the folder of the node."""
    for name, files in checkpoints.items():
        world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "binaryData": files})
    copy = " && ".join(f"mkdir -p /out/{name} && cp -L /in/{name}/* /out/{name}/" for name in checkpoints)
    _run_on_node(world, "fill", path, copy, sorted(checkpoints))


def _empty(world: World, path: str) -> None:
    _run_on_node(world, "empty", path, "rm -rf /out/*", [])


def _run_on_node(world: World, name: str, path: str, command: str, maps: list[str]) -> None:
    mounts = [{"name": each, "mountPath": f"/in/{each}"} for each in maps]
    volumes = [{"name": each, "configMap": {"name": each}} for each in maps]
    container = {
        "name": "copy",
        "image": "localhost/specmodel-benchmark:dev",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [*mounts, {"name": "out", "mountPath": "/out"}],
    }
    out = {"name": "out", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": [*volumes, out]}
    world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    world.wait_until(
        f"pod {name} has ended", lambda: world.get("pod", name)["status"].get("phase") == "Succeeded", seconds=READ
    )


def model_on(claim: str, drafter: str, **more: Any) -> Json:
    """Return a model with two candidates whose files are on a claim."""
    return quick_model(
        model={"uri": f"pvc://{claim}/target"},
        drafter={"uri": f"pvc://{claim}/{drafter}", "speculativeTokens": [3], **more},
        hardware=ONE_GPU,
    )


def drafter_condition(world: World) -> Json:
    return condition(world.get("specm", "agent"), "DrafterCompatible")


def preflight_jobs(world: World) -> list[Json]:
    return world.list("jobs", "-l", "specmodel.dev/preflight")


def test_a_drafter_that_does_not_fit_takes_no_gpu_and_one_that_does_is_measured(world: World, weights: str) -> None:
    world.apply(model_on(weights, "wrong", onIncompatible="Fail"))
    stalled: Json = world.wait_until(
        "the wrong drafter stalls the model",
        lambda: condition(world.get("specm", "agent"), "Stalled"),
        seconds=READ,
    )
    assert (stalled["status"], stalled["reason"]) == ("True", "DrafterIncompatible")
    assert "drafter hidden_size 160, target hidden_size 128" in stalled["message"]
    assert world.list("deploy") == []

    world.patch("specm", "agent", {"spec": {"drafter": {"onIncompatible": "Baseline"}}})
    model = settle(world)
    assert shape_of(model["status"]["serving"]) == (1, 0, "None")
    assert drafter_condition(world)["status"] == "False"
    assert "Without the drafter that the spec names" in condition(model, "Ready")["message"]
    reasons = {one["speculativeTokens"]: one["reason"] for one in model["status"]["candidates"]}
    assert reasons == {0: "Passed", 3: "DrafterIncompatible"}

    world.patch("specm", "agent", {"spec": {"drafter": {"uri": f"pvc://{weights}/drafter"}}})
    model = settle(world)
    found = drafter_condition(world)
    assert (found["status"], found["reason"]) == ("True", "Compatible"), found
    assert shape_of(model["status"]["serving"]) == (1, 3, "None")
    world.wait_until("the preflight Jobs are gone", lambda: not preflight_jobs(world), seconds=READ)


def test_a_folder_that_is_not_on_the_volume_takes_no_gpu(world: World, weights: str) -> None:
    model = model_on(weights, "drafter")
    model["spec"]["model"]["uri"] = f"pvc://{weights}/nowhere"
    world.apply(model)
    stalled: Json = world.wait_until(
        "the missing folder stalls the model",
        lambda: condition(world.get("specm", "agent"), "Stalled"),
        seconds=READ,
    )
    assert stalled["reason"] == "ModelNotFound"
    assert "pvc://weights/nowhere" in stalled["message"]
    assert world.list("deploy") == []


def test_a_hub_that_cannot_be_reached_holds_nothing_up(world: World) -> None:
    world.apply(quick_model(hardware=ONE_GPU))
    world.wait_until("a server is started all the same", lambda: world.list("deploy"), seconds=READ)
    found: Json = drafter_condition(world)
    assert (found["status"], found["reason"]) == ("Unknown", "NotRead")
    assert "cannot be reached" in found["message"]
    settle(world, seconds=SETTLES)


@pytest.fixture
def hub(world: World) -> str:
    """A hub in the cluster: a pod that serves two repositories as files; returns its URL."""
    repositories = {"target": TINY_TARGET, "drafter": TINY_DRAFTER}
    files = {f"{name}.json": json.dumps(config) for name, config in repositories.items()}
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hub"}, "data": files})
    items = [{"key": f"{name}.json", "path": f"example/{name}/resolve/main/config.json"} for name in repositories]
    container = {
        "name": "hub",
        "image": "localhost/specmodel-benchmark:dev",
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "http.server", "8000", "--directory", "/hub"],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
        "volumeMounts": [{"name": "hub", "mountPath": "/hub"}],
    }
    volumes = [{"name": "hub", "configMap": {"name": "hub", "items": items}}]
    metadata = {"name": "hub", "labels": {"app": "hub"}}
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [container], "volumes": volumes},
        }
    )
    spec = {"selector": {"app": "hub"}, "ports": [{"port": 8000}]}
    world.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hub"}, "spec": spec})
    world.wait_until(
        "the hub is Ready", lambda: condition(world.get("pod", "hub"), "Ready")["status"] == "True", seconds=READ
    )
    return f"http://hub.{world.namespace}:8000"


def test_a_hub_is_asked_where_the_engine_would_ask_it(world: World, hub: str) -> None:
    model = quick_model(
        model={"uri": "hf://example/target"},
        drafter={"uri": "hf://example/drafter", "speculativeTokens": [3]},
        hardware=ONE_GPU,
    )
    model["spec"]["engine"]["env"].append({"name": "HF_ENDPOINT", "value": hub})
    world.apply(model)

    def reason() -> str:
        found: str = drafter_condition(world).get("reason", "")
        return found if found in ("Compatible", "Incompatible") else ""

    assert world.wait_until("the pair is judged", reason, seconds=READ) == "Compatible"
    assert "no safetensors header" in drafter_condition(world)["message"]
