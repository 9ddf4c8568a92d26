"""The results folder: what was measured, one BenchmarkRun per file, and under which conditions.

    DIR/conditions.json      machine, engine, options: what a second start must have in common with the first
    DIR/sessions.jsonl       one line per start, and one per event of it, with the time
    DIR/runs/NAME.json       a BenchmarkRun as a cluster would hold it; `specmodel decide --results DIR` reads them
    DIR/requests/NAME.jsonl  every request of every cell, in the order in which they ended
    DIR/logs/NAME.log        what the engine printed

A file is written whole under another name and renamed, so that whatever kills this program leaves the last state.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specmodel.api.benchmark import BenchmarkRunSpec, Cell, CellRequest, Provenance, RunProgress
from specmodel.api.conditions import Condition, ConditionStatus, RunConditionType
from specmodel.bench.job import Outcome
from specmodel.bench.load import RequestRecord
from specmodel.bench.run_status import Found
from specmodel.cli.reading import InputError, read_json
from specmodel.cli.results import read_run
from specmodel.domain.measurement import CANDIDATE_FAULTS, load_digest
from specmodel.domain.observation import Run

#: Members of `conditions.json` in which a second start may differ: they change no figure that is compared.
MAY_DIFFER = frozenset({"command", "driver"})
#: Those of them that tell weights apart.
WEIGHTS = frozenset({"model", "drafter"})
A_RUN = "a BenchmarkRun; remove the file to measure it anew"
_NUMBERS = re.compile(r"\[\s*(-?\d+(?:,\s*-?\d+)*)\s*\]")


@dataclass(slots=True, kw_only=True)
class Store:
    """A results folder."""

    folder: Path
    #: Held, as the lock on it is, until this program ends.
    _lock: int | None = None

    def open(self, conditions: Mapping[str, Any]) -> None:
        """Make the folder, or check that what it holds was measured under the same conditions. Raises `InputError`."""
        path = self.folder / "conditions.json"
        try:
            for name in ("runs", "requests", "logs"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._take()
        except OSError as error:
            raise InputError(f"{error.filename}: {error.strerror}") from error
        if not path.exists():
            if next(self._files(), None) is not None:
                raise InputError(
                    f"{path}: is not there, so that nobody knows what the runs beside it were measured with; give "
                    "another --results folder"
                )
            _write(path, conditions)
            return
        had = _read(path, "the conditions of what is in the folder; give another --results folder")
        for key in sorted(set(had) | set(conditions)):
            if key in MAY_DIFFER or had.get(key) == conditions.get(key):
                continue
            if key in WEIGHTS:
                if had.get(key) is None or conditions.get(key) is None:
                    continue  # of a manifest without a drafter
                raise InputError(
                    f"{path}: {key}: what is there was measured with other files than --{key} names now; give another "
                    "--results folder"
                )
            raise InputError(
                f"{path}: {key}: what is there was measured with {had.get(key)!r}, this start has "
                f"{conditions.get(key)!r}; give another --results folder"
            )
        learnt = {key: conditions[key] for key in WEIGHTS if had.get(key) is None and conditions.get(key) is not None}
        if learnt:
            _write(path, {**had, **learnt})

    def _take(self) -> None:
        """Keep a second start off: it would stop the engines of the first. Raises `InputError` and `OSError`."""
        place = self.folder / ".lock"
        self._lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise InputError(
                    f"{self.folder}: another `specmodel try` is measuring in this folder: wait for its end, or give "
                    "another --results folder"
                ) from error
            # A file system that knows no locks: then nobody is kept off.

    def note(self, event: str, **details: Any) -> None:
        """Append one event with its time to sessions.jsonl."""
        line = json.dumps({"time": _now().isoformat(timespec="milliseconds"), "event": event, **details})
        with (self.folder / "sessions.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def runs(self, workload: str) -> list[Run]:
        """Return the runs of a workload, by name. Raises `InputError` for a file that cannot be read."""
        found: list[Run] = []
        for path in self._files():
            run = _run(path)[0]
            if load_digest(run.spec.dataset, run.spec.dataset_digest) == workload:
                found.append(run)
        return found

    def _files(self) -> Iterator[Path]:
        """Yield the files of runs, by name; what begins with a dot is an editor's or an archive's."""
        return (path for path in sorted((self.folder / "runs").glob("*.json")) if not path.name.startswith("."))

    def reopen(self) -> None:
        """Take back the failures for which no candidate was to blame: this start tries those again."""
        for path in self._files():
            run, value = _run(path)
            if run.failure is not None and run.failure[0] not in CANDIDATE_FAULTS:
                del value["status"]["conditions"]
                _write(path, value)

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Write a new run."""
        _write(self.path_of(manifest["metadata"]["name"]), manifest)

    def path_of(self, run: str) -> Path:
        """Return the file of a run."""
        return self.folder / "runs" / f"{run}.json"

    def log_of(self, run: str) -> Path:
        """Return the file of what the engine of a run prints."""
        return self.folder / "logs" / f"{run}.log"

    def keep_requests(self, run: str, asked: CellRequest, records: Sequence[RequestRecord]) -> None:
        """Append every request of a finished cell, times in microseconds."""
        with (self.folder / "requests" / f"{run}.jsonl").open("a", encoding="utf-8") as file:
            for record in records:
                line = {
                    "concurrency": asked.concurrency,
                    "temperature": asked.temperature,
                    "ttft_us": round(record.ttft * 1e6),
                    "e2e_us": round(record.e2e * 1e6),
                    "output_tokens": record.output_tokens,
                    "prompt_tokens": record.prompt_tokens,
                }
                file.write(json.dumps(line | ({"error": record.error} if record.error else {})) + "\n")


@dataclass(slots=True, kw_only=True)
class FileRun:
    """One run's file, as the benchmark reads and writes it."""

    path: Path
    #: Where the engine listens this time.
    url: str
    told: Callable[[RunProgress], None] = lambda _: None
    measured: Callable[[Cell], None] = lambda _: None
    _value: dict[str, Any] = field(default_factory=dict)

    async def read(self) -> Found:
        """Return the run, its target set to the engine of this start."""
        self._value = _read(self.path, A_RUN)
        self._value["spec"]["target"]["url"] = self.url
        status = self._value["status"] = self._value.get("status") or {}
        provenance = status.get("provenance")
        return Found(
            uid=self._value["metadata"]["name"],
            spec=BenchmarkRunSpec.model_validate(self._value["spec"]),
            cells=tuple(Cell.model_validate(cell) for cell in status.get("cells", [])),
            outcome="",
            # A run is gone on with on another day: its deadline counts from this start.
            provenance=None if provenance is None else Provenance.model_validate({**provenance, "startedAt": None}),
        )

    async def write(
        self,
        *,
        progress: RunProgress,
        cells: Sequence[Cell] | None = None,
        provenance: Provenance | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        """Write what is given into the file; progress alone is only told."""
        del patience_seconds
        status = self._value["status"]
        status["progress"] = progress.to_wire()
        had = {(cell["concurrency"], cell["temperature"]) for cell in status.get("cells", [])}
        if cells is not None:
            status["cells"] = [cell.to_wire() for cell in cells]
        if provenance is not None:
            status["provenance"] = provenance.to_wire()
        if cells is not None or provenance is not None:
            _write(self.path, self._value)
        for cell in cells or ():
            if (cell.concurrency, cell.temperature) not in had:
                self.measured(cell)
        self.told(progress)

    def close(self, outcome: Outcome) -> None:
        """Write down how the run ended, as the operator would."""
        value = self._value or _read(self.path, A_RUN)
        is_complete = outcome.name == "Complete"
        kind = RunConditionType.COMPLETE if is_complete else RunConditionType.FAILED
        condition = Condition(
            type=kind.value,
            status=ConditionStatus.TRUE,
            reason=outcome.name,
            message=outcome.message[:4000],
            last_transition_time=_now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        value["status"] = {**(value.get("status") or {}), "conditions": [condition.to_wire()]}
        _write(self.path, value)


def _run(path: Path) -> tuple[Run, dict[str, Any]]:
    """Return the run of a file, and the file's object. Raises `InputError`."""
    value = _read(path, A_RUN)
    run = read_run(value, str(path))
    if run.name != path.stem:
        raise InputError(f"{path}: metadata.name: is {run.name}, and a run's file is named after it; remove the copy")
    return run, value


def _read(path: Path, what: str) -> dict[str, Any]:
    """Return the one object of a file; `what` it must be goes into the message. Raises `InputError`."""
    values = read_json(path) if path.is_file() else []
    if len(values) != 1 or not isinstance(values[0], dict):
        raise InputError(f"{path}: must be a file that holds {what}")
    found: dict[str, Any] = values[0]
    return found


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file whole or not at all; lists of numbers stand on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    text = _NUMBERS.sub(lambda found: "[" + re.sub(r"\s+", "", found.group(1)) + "]", text)
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _now() -> datetime:
    return datetime.now(UTC)
