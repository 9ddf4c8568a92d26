"""`specmodel decide`: the operator's decision from saved results, without a cluster.

    MODEL.yaml ──► model ──► candidates ─┐
    DIR ───────────────────► measurements ┴─ decide_model ─► status (json, yaml or a table)

Exit codes: 0 decided, 2 input that cannot be used (each problem with file and key), 3 nobody is eligible.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from specmodel.api.conditions import Condition
from specmodel.api.model import CandidateStatus, SpeculativeModel, SpeculativeModelStatus
from specmodel.cli.manifest import read_model
from specmodel.cli.reading import InputError
from specmodel.cli.results import Results, read_results
from specmodel.domain.assessment import Verdict
from specmodel.domain.candidate import Shape, enumerate_candidates
from specmodel.domain.decision import Decision, decide_model
from specmodel.domain.engine import resolve_engine
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.settings import Settings
from specmodel.reconcile.summary import (
    benchmarked,
    candidate_statuses,
    decision_status,
    serving_status,
    within_sla,
)

EXIT_INPUT = 2
EXIT_NOBODY_ELIGIBLE = 3
WIDTH = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the status that the operator would write, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        model = read_model(options.file)
        decision, results = _decide(model, options.results)
    except InputError as error:
        for problem in error.problems:
            print(f"specmodel decide: {problem}", file=sys.stderr)
        return EXIT_INPUT
    except InvalidModelError as error:
        print(f"specmodel decide: {options.file}: {error.reason}: {error.message}", file=sys.stderr)
        return EXIT_INPUT
    for note in results.notes:
        print(f"specmodel decide: {note}", file=sys.stderr)
    status = _status(model, decision, results)
    if not _print(_rendered(status, options.output)):
        return EXIT_INPUT
    if any(one.verdict is Verdict.ELIGIBLE for one in decision.assessments):
        return 0
    print(f"specmodel decide: {decision.message}", file=sys.stderr)
    return EXIT_NOBODY_ELIGIBLE


def _print(text: str) -> bool:
    """Print, whatever the terminal's encoding; return False, and say so, when nobody takes it."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, errors="backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        print(f"specmodel decide: stdout: cannot be written: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered is not tried again at exit
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specmodel decide",
        description="Decide from saved results what a SpeculativeModel would serve, without a cluster.",
        epilog="Exit codes: 0 decided; 2 files or arguments cannot be used; 3 nobody is eligible.",
    )
    parser.add_argument(
        "-f", "--file", type=Path, required=True, metavar="MODEL.yaml", help="file with one SpeculativeModel"
    )
    parser.add_argument(
        "--results",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with saved BenchmarkRuns (YAML or JSON) or `vllm bench serve` results (JSON)",
    )
    parser.add_argument(
        "-o", "--output", choices=["table", "json", "yaml"], default="table", help="how to print (default: table)"
    )
    return parser


def _decide(model: SpeculativeModel, folder: Path) -> tuple[Decision, Results]:
    settings = Settings()
    candidates = enumerate_candidates(model, resolve_engine(model, None, settings), settings)
    results = read_results(folder, model, candidates)
    return decide_model(model, candidates, results.measurements, None), results


def _status(model: SpeculativeModel, decision: Decision, results: Results) -> SpeculativeModelStatus:
    time = results.time or datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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


def _rendered(status: SpeculativeModelStatus, output: str) -> str:
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
