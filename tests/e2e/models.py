"""Models for scenarios: the demo's own shape, on an engine that replays the measured table five times as fast.

Speeding up keeps every ratio between candidates, so that the same choices come out of limits divided by five.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.e2e.rehearsal import REPLAY_IMAGE
from tests.e2e.world import Json

HASTE = "slow:0.2"


def merge(base: Json, changes: Json) -> Json:
    """Return base with changes merged into it, objects member by member, everything else replaced."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        merged[key] = (
            merge(merged[key], value) if isinstance(value, dict) and isinstance(merged.get(key), dict) else value
        )
    return merged


def quick_model(name: str = "agent", *, limit: int = 520, faults: tuple[str, ...] = (), **changes: Any) -> Json:
    """Return a model with four BF16 candidates with one limit, E2E P50 <= `limit` ms.

    The median, because a dozen requests beside a starting process have an honest P99 that says nothing of the engine.
    """
    model: Json = {
        "apiVersion": "specmodel.dev/v1alpha1",
        "kind": "SpeculativeModel",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "hf://nvidia/Llama-3.1-Nemotron-Nano-8B-v1"},
            "drafter": {"uri": "hf://example/commerce-eagle3", "speculativeTokens": [3]},
            "hardware": {"gpusPerReplica": [1, 2], "gpuBudget": 4},
            "engine": {
                "image": REPLAY_IMAGE,
                "version": "0.25.1",
                "startupTimeoutSeconds": 60,
                "resources": {"cpu": "50m", "memory": "256Mi"},
                "env": [
                    {"name": "SPECMODEL_REPLAY_FAULT", "value": ";".join((HASTE, *faults))},
                    {"name": "SPECMODEL_REPLAY_STARTUP_SECONDS", "value": "1"},
                ],
            },
            "workload": {"concurrency": [1, 4], "requestsPerCell": {"min": 12}},
            "sla": {
                "confidencePercent": 0,
                "limits": [{"metric": "E2ELatency", "percentile": 50, "maxMilliseconds": limit}],
            },
            "serving": {"rollout": {"drainSeconds": 5}},
        },
    }
    return merge(model, {"spec": changes}) if changes else model
