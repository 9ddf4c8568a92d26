"""`specmodel decide`: the operator's decision from saved results, without a cluster.

    MODEL.yaml ──► model ──► candidates ─┐
    DIR ───────────────────► measurements ┴─ decide_model ─► status (json, yaml or a table)

Exit codes: 0 decided, 2 input that cannot be used (each problem with file and key), 3 nobody is eligible.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from specmodel.api.model import SpeculativeModel
from specmodel.cli.answer import OUTPUTS, rendered, status_of, written_out
from specmodel.cli.manifest import read_model
from specmodel.cli.reading import InputError, problems_in
from specmodel.cli.results import Results, read_results
from specmodel.domain.assessment import Verdict
from specmodel.domain.candidate import enumerate_candidates
from specmodel.domain.decision import Decision, decide_model
from specmodel.domain.engine import resolve_engine
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.settings import Settings

EXIT_INPUT = 2
EXIT_NOBODY_ELIGIBLE = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the status that the operator would write, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        model = read_model(options.file)
        decision, results = _decide(model, options.results)
    except (InputError, InvalidModelError) as error:
        for problem in problems_in(error, options.file):
            print(f"specmodel decide: {problem}", file=sys.stderr)
        return EXIT_INPUT
    for note in results.notes:
        print(f"specmodel decide: {note}", file=sys.stderr)
    status = status_of(model, decision, results.time or datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    if unwritten := written_out(rendered(status, options.output)):
        print(f"specmodel decide: stdout: {unwritten}", file=sys.stderr)
        return EXIT_INPUT
    if any(one.verdict is Verdict.ELIGIBLE for one in decision.assessments):
        return 0
    print(f"specmodel decide: {decision.message}", file=sys.stderr)
    return EXIT_NOBODY_ELIGIBLE


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
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table", help="how to print (default: table)")
    return parser


def _decide(model: SpeculativeModel, folder: Path) -> tuple[Decision, Results]:
    settings = Settings()
    candidates = enumerate_candidates(model, resolve_engine(model, None, settings), settings)
    results = read_results(folder, model, candidates)
    return decide_model(model, candidates, results.measurements, None), results
