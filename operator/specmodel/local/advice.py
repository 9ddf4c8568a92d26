"""The recommended manifest: what the user wrote, narrowed to the candidate that won."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from specmodel.api.model import SpeculativeModel
from specmodel.domain.assessment import Assessment, gpu_budget
from specmodel.domain.decision import Decision


def recommended(
    written: Mapping[str, Any], model: SpeculativeModel, decision: Decision, measured_on: str, notes: Sequence[str] = ()
) -> str:
    """Return the manifest as YAML with what it rests on as a comment; empty when nothing may serve."""
    candidate = decision.serve
    if candidate is None:
        return ""
    manifest: dict[str, Any] = copy.deepcopy(dict(written))
    manifest.pop("status", None)
    spec: dict[str, Any] = manifest["spec"]
    # Left out, the budget would be twice the GPUs of the one candidate that is left: less than was decided for.
    spec.setdefault("hardware", {}).update(
        gpusPerReplica=[candidate.gpus_per_replica], gpuBudget=gpu_budget(model.spec)
    )
    spec.setdefault("quantization", {})["weights"] = [candidate.weights]
    if candidate.speculative_tokens:
        spec["drafter"]["speculativeTokens"] = [candidate.speculative_tokens]
    else:
        spec.pop("drafter", None)
    spec.setdefault("serving", {})["replicas"] = max(decision.replicas, model.spec.serving.replicas)
    lines = [f"{candidate.shape}, measured by `specmodel try` on {measured_on}."]
    assessment = decision.assessment_of(candidate)
    if assessment is not None:
        lines.append(_figures(assessment))
    lines.append(f"{decision.reason}: {decision.message}")
    lines += notes
    comment = "".join(f"# {' '.join(line.split())}\n" for line in lines if line)
    return comment + yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=100)


def _figures(assessment: Assessment) -> str:
    parts = []
    if assessment.capacity is not None:
        parts.append(f"{assessment.capacity} streams")
    if assessment.throughput is not None:
        parts.append(f"{assessment.throughput:.2f} req/s")
    if assessment.p50_milliseconds is not None:
        parts.append(f"E2E P50 {assessment.p50_milliseconds:.0f} ms")
    if assessment.p99_milliseconds is not None:
        parts.append(f"P99 {assessment.p99_milliseconds:.0f} ms")
    if assessment.acceptance_rate is not None:
        parts.append(f"{100 * assessment.acceptance_rate:.0f} % of drafted tokens accepted")
    return ", ".join(parts)
