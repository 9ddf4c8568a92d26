"""What a decision without a cluster looks like: the status as data, or a table for people.

Shared by `specmodel decide` and `specmodel try`.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from typing import Any

import yaml

from specmodel.api.conditions import Condition
from specmodel.api.model import CandidateStatus, SpeculativeModel, SpeculativeModelStatus
from specmodel.domain.candidate import Shape
from specmodel.domain.decision import Decision
from specmodel.reconcile.summary import (
    benchmarked,
    candidate_statuses,
    decision_status,
    serving_status,
    within_sla,
)

OUTPUTS = ("table", "json", "yaml")
WIDTH = 100


def status_of(model: SpeculativeModel, decision: Decision, time: str) -> SpeculativeModelStatus:
    """Return the status that the operator would write, as far as it is known without a cluster. `time` is RFC 3339."""
    serving = None
    if decision.serve is not None:
        serving = serving_status(
            decision.serve, decision.assessment_of(decision.serve), replicas=decision.replicas
        ).model_copy(update={"revision": decision.serve.revision})
    findings = [benchmarked(decision), within_sla(decision, None, model.spec)]
    return SpeculativeModelStatus(
        observed_generation=model.generation,
        conditions=[
            Condition(
                type=finding.type.value,
                status=finding.status,
                reason=finding.reason,
                message=finding.message[:4000],
                observed_generation=model.generation,
                last_transition_time=time,
            )
            for finding in findings
        ],
        serving=serving,
        candidates=candidate_statuses(decision),
        decision=decision_status(decision),
    )


def rendered(status: SpeculativeModelStatus, output: str) -> str:
    """Return the status as `json`, `yaml` or a `table` for people."""
    wire = status.to_wire()
    shown: dict[str, Any] = {
        key: wire[key] for key in ("serving", "candidates", "decision", "conditions") if key in wire
    }
    # What only a cluster knows is left out.
    if isinstance(serving := shown.get("serving"), dict):
        shown["serving"] = {key: value for key, value in serving.items() if value != "" and key != "readyReplicas"}
    if output == "json":
        return json.dumps(shown, indent=2, ensure_ascii=False)
    if output == "yaml":
        return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=WIDTH).rstrip()
    return _table(status)


def written_out(text: str) -> str:
    """Print to stdout, whatever its encoding; return why nobody takes it, or nothing."""
    if sys.stdout is None:
        return "is closed"
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, errors="backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered is not tried again at exit
        return f"cannot be written: {error.strerror or error}"
    return ""


def _table(status: SpeculativeModelStatus) -> str:
    header = ("", "CANDIDATE", "VERDICT", "STREAMS", "REQ/S", "P50 MS", "P99 MS", "ACCEPT", "COST/1M", "REASON")
    chosen = status.serving.candidate if status.serving is not None else ""
    rows = [header, *(_row(one, is_chosen=one.candidate == chosen) for one in status.candidates)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    numbers = range(3, 9)
    lines = [
        "  ".join(
            text.rjust(width) if column in numbers else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.append("")
    if status.serving is not None:
        serving = status.serving
        count = f"{serving.replicas} replica{'' if serving.replicas == 1 else 's'}"
        shape = _shape(serving.gpus_per_replica, serving.speculative_tokens, serving.weights)
        lines += _paragraph("Serving", f"{shape}, {count}")
    if status.decision is not None:
        lines += _paragraph("Decision", f"{status.decision.reason}: {status.decision.message}")
        if status.decision.runner_up:
            lines += _paragraph("Runner-up", status.decision.runner_up)
    for condition in status.conditions:
        lines += _paragraph(condition.type, f"{condition.status.value} ({condition.reason}): {condition.message}")
    return "\n".join(lines)


def _row(one: CandidateStatus, *, is_chosen: bool) -> tuple[str, ...]:
    def shown(value: object, unit: str = "") -> str:
        return "-" if value is None else f"{value}{unit}"

    return (
        "*" if is_chosen else "",
        _shape(one.gpus_per_replica, one.speculative_tokens, one.weights),
        one.verdict,
        shown(one.capacity),
        shown(one.requests_per_second),
        shown(one.p50_milliseconds),
        shown(one.p99_milliseconds),
        shown(one.acceptance_rate_percent, " %"),
        shown(one.cost_per_million_tokens),
        one.reason,
    )


def _shape(gpus: int, tokens: int, weights: str) -> str:
    return str(Shape(gpus_per_replica=gpus, speculative_tokens=tokens, weights=weights))


def _paragraph(title: str, text: str) -> list[str]:
    return textwrap.wrap(f"{title + ':':<13}{text}", width=WIDTH, subsequent_indent=" " * 13, break_on_hyphens=False)
