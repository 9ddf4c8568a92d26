"""Every result of a folder, as measurements of the model's candidates.

    *.json, *.jsonl ── `vllm bench serve` results, or BenchmarkRuns ─┐
    *.yaml, *.yml ──── BenchmarkRuns (documents, or a List) ─────────┴─► Measurement by candidate digest

Results of shapes that the model does not name are left out. What contradicts itself, lacks a key or stands twice is an
error: silently judging half of a folder would be a wrong answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specmodel.api.benchmark import BenchmarkRunSpec, BenchmarkRunStatus
from specmodel.api.conditions import ConditionStatus, RunConditionType
from specmodel.api.labels import API_VERSION, CAVEATS, RUN_KIND
from specmodel.api.model import SpeculativeModel
from specmodel.api.wire import canonical_decimal
from specmodel.cli.raw import RawResult, is_raw, read_result, require_percentiles
from specmodel.cli.reading import InputError, problems_of, read_json, read_yaml, shown
from specmodel.domain.assessment import levels_of, temperatures_of
from specmodel.domain.candidate import Candidate, Shape
from specmodel.domain.measurement import Measurement, gather
from specmodel.domain.observation import Run

JSON_SUFFIXES = frozenset({".json", ".jsonl"})
YAML_SUFFIXES = frozenset({".yaml", ".yml"})
CAVEATS_MAXIMUM = 1000
LIST_KINDS = frozenset({"List", f"{RUN_KIND}List"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a folder holds for a model: measurements by candidate digest, and what was left out and why."""

    measurements: Mapping[str, Measurement]
    notes: tuple[str, ...] = ()
    #: When the newest of it was measured (RFC 3339), or nothing.
    time: str = ""


@dataclass(slots=True)
class _Found:
    """What the files hold, before it is matched to candidates."""

    raw: list[RawResult] = field(default_factory=list)
    runs: list[tuple[str, Run]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    caveats: set[str] = field(default_factory=set)


def read_results(folder: Path, model: SpeculativeModel, candidates: Sequence[Candidate]) -> Results:
    """Return the measurements that a folder holds of a model's candidates. Raises `InputError`."""
    found = _Found()
    for path in _files(folder):
        try:
            _read_file(path, model, found)
        except InputError as error:
            found.problems += error.problems
    found.problems += _twice(found)
    if found.problems:
        raise InputError(*found.problems)
    if not found.raw and not found.runs:
        suffixes = ", ".join(f"*{suffix}" for suffix in sorted(JSON_SUFFIXES | YAML_SUFFIXES))
        raise InputError(
            f"{folder}: holds no results; looked for `vllm bench serve` results and {RUN_KIND}s in {suffixes}"
        )
    return _match(found, folder, model, candidates)


def _files(folder: Path) -> list[Path]:
    try:
        if not folder.exists():
            raise InputError(f"{folder}: there is no such folder")
        if not folder.is_dir():
            raise InputError(f"{folder}: is no folder; --results takes the folder that holds the results")
        if (folder / "conditions.json").is_file() and (folder / "runs").is_dir():
            folder = folder / "runs"  # of `specmodel try --results`
        return sorted(path for path in folder.iterdir() if path.suffix.lower() in JSON_SUFFIXES | YAML_SUFFIXES)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _read_file(path: Path, model: SpeculativeModel, found: _Found) -> None:
    if path.is_fifo() or path.is_socket() or path.is_char_device() or path.is_block_device():
        raise InputError(f"{path}: is no file that can be read")
    is_json = path.suffix.lower() in JSON_SUFFIXES
    values = read_json(path) if is_json else read_yaml(path)
    if not values:
        raise InputError(f"{path}: is empty")
    flat = [(value, f"{path}{f' [{index}]' if len(values) > 1 else ''}") for index, value in enumerate(values)]
    for value, where in flat:
        inner = (
            [(one, f"{where} [{at}]") for at, one in enumerate(value)] if isinstance(value, list) else [(value, where)]
        )
        if not inner:
            found.problems.append(f"{where}: is an empty list; it must hold results")
        for one, place in inner:
            try:
                _read_value(one, place, model, found, is_json=is_json)
            except InputError as error:
                found.problems += error.problems


def _read_value(value: Any, where: str, model: SpeculativeModel, found: _Found, *, is_json: bool) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{where}: must be an object, not {type(value).__name__}")
    if is_json and is_raw(value):
        found.raw.append(read_result(value, where, temperatures_of(model.spec)))
        return
    kind = value.get("kind")
    if not isinstance(kind, str):
        raise InputError(f"{where}: kind: is missing; it must be {RUN_KIND}")
    if kind in LIST_KINDS:
        listed = value.get("items")
        if not isinstance(listed, list):
            raise InputError(f"{where}: items: must be a list of {RUN_KIND}s")
        for index, one in enumerate(listed):
            if isinstance(one, dict) and one.get("kind") in LIST_KINDS:
                raise InputError(f"{where} items[{index}]: kind: must be {RUN_KIND}, not a list in a list")
            _read_value(one, f"{where} items[{index}]", model, found, is_json=is_json)
        return
    # Other objects may lie beside the runs, the model itself for one.
    if kind == RUN_KIND:
        found.runs.append((where, read_run(value, where)))
        annotations = value["metadata"].get("annotations")
        caveats = annotations.get(CAVEATS) if isinstance(annotations, dict) else None
        if isinstance(caveats, str):
            found.caveats.add(caveats[:CAVEATS_MAXIMUM])


def read_run(value: Mapping[str, Any], where: str) -> Run:
    """Return a saved BenchmarkRun; `where` names it in messages. Raises `InputError`."""
    if value.get("apiVersion") != API_VERSION:
        raise InputError(f"{where}: apiVersion: must be {API_VERSION}, not {shown(value.get('apiVersion'))}")
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}: metadata.name: is required")
    problems: list[str] = []
    spec, status = None, BenchmarkRunStatus()
    try:
        spec = BenchmarkRunSpec.model_validate(value.get("spec", {}))
    except ValidationError as error:
        problems += problems_of(error, prefix="spec", kind=BenchmarkRunSpec)
    try:
        status = BenchmarkRunStatus.model_validate(value.get("status") or {})
    except ValidationError as error:
        problems += problems_of(error, prefix="status", kind=BenchmarkRunStatus)
    if spec is not None and spec.candidate is None:
        problems.append("spec.candidate: is missing: what was measured cannot be told (gpusPerReplica, weights, ...)")
    if problems or spec is None or spec.candidate is None:
        raise InputError(*(f"{where}: {problem}" for problem in problems))
    true = {one.type: one for one in status.conditions if one.status is ConditionStatus.TRUE}
    failed = true.get(RunConditionType.FAILED.value)
    return Run(
        name=name,
        uid="",
        candidate=spec.candidate.digest,
        workload="",
        created_at=datetime.fromtimestamp(0, tz=UTC),
        spec=spec,
        status=status,
        is_complete=RunConditionType.COMPLETE.value in true,
        failure=(failed.reason, failed.message) if failed is not None else None,
    )


def _twice(found: _Found) -> list[str]:
    """Return a line for each run or raw cell that stands twice."""
    names: dict[str, str] = {}
    problems = []
    for where, run in found.runs:
        if run.name in names:
            problems.append(f"{where}: metadata.name: {run.name} stands twice, first in {names[run.name]}")
        names.setdefault(run.name, where)
    cells: dict[tuple[Shape, int, str], str] = {}
    for raw in found.raw:
        key = (raw.shape, raw.cell.concurrency, raw.cell.temperature)
        if key in cells:
            what = f"{raw.shape} at concurrency {raw.cell.concurrency}, temperature {raw.cell.temperature}"
            problems.append(f"{raw.where}: max_concurrency: {what} stands twice, first in {cells[key]}; remove one")
        cells.setdefault(key, raw.where)
    return problems


def _match(found: _Found, folder: Path, model: SpeculativeModel, candidates: Sequence[Candidate]) -> Results:
    notes = [f"{folder}: {caveats}" for caveats in sorted(found.caveats)]
    problems: list[str] = []
    measurements: dict[str, Measurement] = {}
    for candidate in candidates:
        runs = _runs_of(candidate, found.runs, model, notes, problems)
        raw = [one for one in found.raw if one.shape == candidate.shape]
        problems += _lacking(raw, model)
        measured = gather(candidate.digest, [run for _, run in runs])
        if measured is None and not raw:
            continue
        problems += _both(runs, raw)
        measurements[candidate.digest] = _joined(candidate, measured, raw)
    if problems:
        raise InputError(*problems)
    if not measurements:
        wanted = ", ".join(str(candidate.shape) for candidate in candidates)
        there = ", ".join(str(shape) for shape in sorted(_shapes(found)))
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise InputError(
            f"{folder}: no result is for a candidate of the model{reasons}: wanted {wanted}; found {there}"
        )
    times = [one.time for one in found.raw]
    times += [cell.finished_at or "" for _, run in found.runs for cell in run.status.cells]
    # Nothing more can be measured here: a candidate without a result holds up no decision.
    nothing = {one.digest: Measurement(candidate=one.digest, cells=(), is_final=True) for one in candidates}
    return Results(measurements={**nothing, **measurements}, notes=tuple(notes), time=max(times, default=""))


def _shapes(found: _Found) -> set[Shape]:
    return {one.shape for one in found.raw} | {shape for _, run in found.runs if (shape := _shape(run)) is not None}


def _shape(run: Run) -> Shape | None:
    measured = run.spec.candidate
    if measured is None:
        return None
    return Shape(
        gpus_per_replica=measured.gpus_per_replica,
        speculative_tokens=measured.speculative_tokens,
        weights=measured.weights,
    )


def _runs_of(
    candidate: Candidate,
    runs: Iterable[tuple[str, Run]],
    model: SpeculativeModel,
    notes: list[str],
    problems: list[str],
) -> list[tuple[str, Run]]:
    """Return the runs of a candidate: those of its digest, else those of its shape if they are of one digest."""
    same: list[tuple[str, Run]] = []
    for where, run in runs:
        if _shape(run) != candidate.shape:
            continue
        if run.spec.dataset != model.spec.workload.dataset:
            notes.append(f"{where}: left out: spec.dataset is another than the model's spec.workload.dataset")
            continue
        same.append((where, run))
    exact = [(where, run) for where, run in same if run.candidate == candidate.digest]
    if exact:
        return exact
    digests = sorted({run.candidate for _, run in same})
    if len(digests) > 1:
        places = ", ".join(where for where, _ in same)
        problems.append(
            f"{places}: spec.candidate.digest: {candidate.shape} was measured as different candidates "
            f"({', '.join(digests)}); leave those of one"
        )
    return same


def _lacking(raw: Iterable[RawResult], model: SpeculativeModel) -> list[str]:
    """Return a line for each SLA percentile that a result of the workload lacks."""
    levels, temperatures = levels_of(model.spec), temperatures_of(model.spec)
    asked = (one for one in raw if one.cell.concurrency in levels and one.cell.temperature in temperatures)
    return [line for one in asked for line in require_percentiles(one, model.spec)]


def _both(runs: Iterable[tuple[str, Run]], raw: Iterable[RawResult]) -> list[str]:
    """Return a line for each cell that both a run and a raw result hold."""
    held: dict[tuple[int, str], str] = defaultdict(str)
    for where, run in runs:
        for cell in run.status.cells:
            held[cell.concurrency, canonical_decimal(cell.temperature)] = where
    return [
        f"{one.where}: max_concurrency: concurrency {one.cell.concurrency} stands twice, also in {there}; remove one"
        for one in raw
        if (there := held.get((one.cell.concurrency, one.cell.temperature)))
    ]


def _joined(candidate: Candidate, measured: Measurement | None, raw: Sequence[RawResult]) -> Measurement:
    if measured is not None and not raw:
        return replace(measured, is_final=True)
    base = measured or Measurement(candidate=candidate.digest, cells=())
    engines = {one.engine for one in raw} | ({base.engine} if base.engine else set())
    cells = sorted((*base.cells, *(one.cell for one in raw)), key=lambda cell: (cell.concurrency, cell.temperature))
    return replace(
        base,
        cells=tuple(cells),
        engine="replay" if "replay" in engines else min(engines),
        is_final=True,
        has_counters=False,
        percentiles=tuple(known for one in raw for known in one.percentiles),
    )
