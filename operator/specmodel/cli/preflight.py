"""`specmodel preflight -f MODEL.yaml`: does the drafter fit the target, and both the GPUs? Without a GPU or a cluster.

The same reading and the same rules as the operator's. Weights are never downloaded: config.json and the headers of the
safetensors files are enough.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specmodel.api.conditions import ConditionStatus
from specmodel.cli.answer import written_out
from specmodel.cli.manifest import read_model
from specmodel.cli.reading import InputError, problems_in
from specmodel.domain.candidate import Candidate, enumerate_candidates
from specmodel.domain.checkpoint import Checkpoint
from specmodel.domain.engine import resolve_engine
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.memory import GIB, PRODUCT_GIB, UTILIZATION, Need, estimate
from specmodel.domain.preflight import (
    Cause,
    Judgement,
    Question,
    Reading,
    Unread,
    findings_of,
    judge,
    load_of,
    policy_of,
    question_of,
)
from specmodel.domain.settings import Settings
from specmodel.manifests.engine_arguments import CLAIM
from specmodel.preflight.read import read

EXIT_INPUT = 2
EXIT_DOES_NOT_FIT = 3
EXIT_NOT_READ = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, judge, print; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        model = read_model(options.file)
        settings = Settings()
        candidates = enumerate_candidates(model, resolve_engine(model, None, settings), settings)
    except (InputError, InvalidModelError) as error:
        for problem in problems_in(error, options.file):
            print(f"specmodel preflight: {problem}", file=sys.stderr)
        return EXIT_INPUT
    question = question_of(model, candidates)
    reading = asyncio.run(_read(question, options.target, options.drafter))
    judgement = judge(reading, candidates, policy_of(model), proven=())
    value = _answer(reading, candidates, judgement)
    if unwritten := written_out(json.dumps(value, indent=2) if options.output == "json" else _table(value)):
        print(f"specmodel preflight: stdout: {unwritten}", file=sys.stderr)
        return EXIT_INPUT
    return _exit_code(reading, candidates, judgement)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specmodel preflight",
        description="Read a model's target and drafter, without their weights, and say which candidates may start.",
        epilog="Exit codes: 0 the drafter fits and every candidate may start; 2 files or arguments cannot be used;"
        " 3 a candidate must not start; 4 something could not be read.",
    )
    parser.add_argument(
        "-f", "--file", type=Path, required=True, metavar="MODEL.yaml", help="file with one SpeculativeModel"
    )
    parser.add_argument("--target", metavar="DIR", help="folder of the target, instead of spec.model.uri")
    parser.add_argument("--drafter", metavar="DIR", help="folder of the drafter, instead of spec.drafter.uri")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print")
    return parser


async def _read(question: Question, target: str | None, drafter: str | None) -> Reading:
    """Read both. `engine.env` and this process's own HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE count."""
    environment = {**os.environ, **dict(question.env)}
    works = [_one(target, question.model_uri, question.model_revision, environment, "--target")]
    if question.drafter_uri is not None:
        revision = question.drafter_revision or "main"
        works.append(_one(drafter, question.drafter_uri, revision, environment, "--drafter"))
    found = await asyncio.gather(*works)
    return Reading(target=found[0], drafter=found[1] if len(found) > 1 else None)


async def _one(
    folder: str | None, uri: str, revision: str, environment: dict[str, str], option: str
) -> Checkpoint | Unread:
    if folder is not None:
        return await read(folder, revision, Path(), environment)
    if uri.startswith(CLAIM):
        words = f"{uri} is on a volume of a cluster: name a folder that holds the same files with {option} DIR"
        return Unread(cause=Cause.UNREACHABLE, message=words)
    found = await read(uri, revision, Path(), environment)
    if isinstance(found, Unread) and found.cause is Cause.UNREACHABLE:
        words = f"{found.message}; name a folder that holds the same files with {option} DIR"
        return replace(found, message=words)
    return found


def _answer(reading: Reading, candidates: Sequence[Candidate], judgement: Judgement) -> dict[str, Any]:
    """Return everything as plain data: what was read, the condition, and each candidate."""
    status, reason, message = judgement.drafter
    return {
        **json.loads(reading.to_json()),
        "drafterCompatible": {"status": status.value, "reason": reason, "message": message},
        "candidates": [_candidate(reading, one, judgement) for one in candidates],
    }


def _candidate(reading: Reading, candidate: Candidate, judgement: Judgement) -> dict[str, Any]:
    value: dict[str, Any] = {"candidate": str(candidate.shape), "mayStart": candidate.digest not in judgement.refused}
    if candidate.digest in judgement.refused:
        reason, message = judgement.refused[candidate.digest]
        value |= {"reason": reason, "message": message}
    if isinstance(reading.target, Unread):
        return value
    drafter = reading.drafter if candidate.speculative_tokens and isinstance(reading.drafter, Checkpoint) else None
    found = findings_of(reading.target, drafter, candidate)
    value["findings"] = [
        {"code": one.code, "severity": one.severity.value, "about": one.about.value, "message": one.message}
        for one in found
    ]
    load = load_of(candidate)
    return value | {"memory": _memory(estimate(reading.target, drafter, load), candidate, load.limits.utilization)}


def _memory(need: Need, candidate: Candidate, utilization: float | None) -> dict[str, Any]:
    """Return the estimate for one GPU in GiB, and how many tokens and sequences each product has room for."""
    rooms = {}
    for product in candidate.gpu_products:
        if product in PRODUCT_GIB:
            usable = PRODUCT_GIB[product] * (utilization or UTILIZATION)
            tokens = need.tokens(usable * GIB)
            sequences = round(tokens / need.length, 1) if tokens is not None and need.length else None
            rooms[product] = {"usableGiB": round(usable, 1), "tokens": tokens, "sequences": sequences}
    return {
        "weightsGiB": None if need.weights is None else round(need.weights / GIB, 2),
        "drafterGiB": round(need.drafter / GIB, 2),
        "engineGiB": round(need.engine / GIB, 2),
        "sequenceGiB": round(need.sequence / GIB, 2),
        "sequenceTokens": need.length,
        "products": rooms,
    }


def _table(value: dict[str, Any]) -> str:
    lines = [f"{name:<8} {_described(value[name])}" for name in ("target", "drafter") if name in value]
    condition = value["drafterCompatible"]
    lines += ["", f"DrafterCompatible={condition['status']} {condition['reason']}: {condition['message']}", ""]
    rows = [("candidate", "", "GiB a GPU: weights", "drafter", "engine", "one sequence", "room for sequences")]
    for one in value["candidates"]:
        memory = one.get("memory", {})
        rows.append(
            (
                one["candidate"],
                "may start" if one["mayStart"] else one["reason"],
                *(_cell(memory.get(name)) for name in ("weightsGiB", "drafterGiB", "engineGiB", "sequenceGiB")),
                ", ".join(_room(memory, product) for product in memory.get("products", {})),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    said: list[str] = []
    for one in value["candidates"]:
        said += [f"{one['reason']}: {one['message']}"] if not one["mayStart"] else []
        said += [f"{each['severity']}: {each['message']}" for each in one.get("findings", []) if one["mayStart"]]
    return "\n".join([*lines, *([""] if said else []), *dict.fromkeys(said)])


def _room(memory: dict[str, Any], product: str) -> str:
    room = memory["products"][product]
    return f"{_cell(room['sequences'])} of {_cell(memory['sequenceTokens'])} tokens ({product})"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _described(facts: dict[str, Any]) -> str:
    if "unread" in facts:
        return f"not read ({facts['unread']}): {facts['message']}"
    names = ", ".join(facts.get("architectures", []))
    sizes = [
        f"{name} {facts[name]}"
        for name in ("hidden_size", "num_layers", "vocab_size", "draft_vocab_size")
        if name in facts
    ]
    return f"{facts['source']}: {names} ({', '.join(sizes)})"


def _exit_code(reading: Reading, candidates: Sequence[Candidate], judgement: Judgement) -> int:
    if judgement.drafter[0] is ConditionStatus.FALSE or any(one.digest in judgement.refused for one in candidates):
        return EXIT_DOES_NOT_FIT
    return 0 if reading.is_certain else EXIT_NOT_READ
