"""A real vLLM in the cluster: the tiny pair on a volume as a user's claim has it, and a model that serves it on CPUs.

Everything goes through what a user writes: `pvc://` addresses, `engine.extraArgs`, `engine.env`. Where vLLM itself is
wanted at fault, a drafter is, as drafters are in the wild; the program is never touched.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

from tests.e2e.models import merge
from tests.e2e.world import REPOSITORY, Json, World

IMAGE = "localhost/specmodel-vllm-cpu:dev"
VERSION = "0.32.0"
PAIR = REPOSITORY / "tests" / "data" / "tiny-eagle3"
CLAIM = "weights"
#: The drafter whose positions end before the workload's prompts do: vLLM then drafts nothing that could be accepted.
SHORT = "eagle3-short"
#: The drafter whose tokens are none of the target's: vLLM starts well with it, and dies at its first request.
WILD = "eagle3-wild"


def lay_out(folder: Path) -> None:
    """Write target and drafters into a folder that any user may read."""
    for name in ("target", "eagle3"):
        shutil.copytree(PAIR / name, folder / name)
    for name in (SHORT, WILD):
        shutil.copytree(PAIR / "eagle3", folder / name)
    shorten(folder / SHORT / "config.json")
    go_wild(folder / WILD / "model.safetensors")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def shorten(config: Path) -> None:
    """Let a drafter have 32 positions."""
    value = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**value, "max_position_embeddings": 32}), encoding="utf-8")


def go_wild(weights: Path) -> None:
    """Let a drafter's tokens stand for tokens far beyond the target's vocabulary (tensor d2t, 64-bit offsets)."""
    content = bytearray(weights.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    begin, end = header["d2t"]["data_offsets"]
    count = (end - begin) // 8
    struct.pack_into(f"<{count}q", content, 8 + length + begin, *[100_000] * count)
    weights.write_bytes(content)


def give_volume(world: World, folder: Path) -> None:
    """Make a claim of the world's namespace that holds the folder, read-only, on the cluster's one real node."""
    name = f"{world.namespace}-{CLAIM}"[:63]
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": world.namespace, "name": CLAIM},
            },
        }
    )
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
        }
    )


def take_volume(world: World) -> None:
    """Delete the volume; the claim goes with its namespace."""
    world.kubectl("delete", "pv", f"{world.namespace}-{CLAIM}"[:63], "--ignore-not-found", "--wait=false")


def real_model(name: str = "tiny", *, drafter: str = "eagle3", **changes: Json) -> Json:
    """Return a model of the tiny pair: one candidate with γ=3 and one without, measured one after the other.

    The limit is generous: which of the two is faster on this machine is what is measured.
    """
    model: Json = {
        "apiVersion": "specmodel.dev/v1alpha1",
        "kind": "SpeculativeModel",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": f"pvc://{CLAIM}/target"},
            "drafter": {"uri": f"pvc://{CLAIM}/{drafter}", "speculativeTokens": [3]},
            "hardware": {"gpusPerReplica": [1], "gpuBudget": 1},
            "engine": {
                "image": IMAGE,
                "version": VERSION,
                "extraArgs": ["--enforce-eager", "--kv-cache-memory-bytes=67108864", "--max-model-len=1024"],
                "startupTimeoutSeconds": 300,
                "resources": {"cpu": "500m", "memory": "4Gi"},
            },
            "workload": {
                "concurrency": [1, 2],
                "dataset": {"synthetic": {"inputTokens": 64, "outputTokens": 64}},
                "requestsPerCell": {"min": 20},
            },
            "sla": {
                "confidencePercent": 0,
                "limits": [{"metric": "E2ELatency", "percentile": 50, "maxMilliseconds": 30_000}],
            },
            "serving": {"rollout": {"drainSeconds": 10}},
        },
    }
    return merge(model, {"spec": changes}) if changes else model
