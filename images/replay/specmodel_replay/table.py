"""The measured table: what is replayed, read from JSON and checked before anything is served.

One file is one configuration (tensor parallel size, γ, weights) with its concurrency levels; `README.md`
beside the code documents the format. Reading is the only input and output here: no clock, no randomness.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = "specmodel.dev/replay-table/v1"
BUILT_IN: Final = Path(__file__).parent / "tables" / "h200-llama-8b"
WEIGHTS: Final = ("BF16", "FP8")
_PERCENTILES: Final = ("p50", "p90", "p95", "p99")


class TableError(Exception):
    """A table cannot be used; the message names the file, the place in it and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Shape:
    """What a table has to hold measurements for: the axes read from the command line."""

    tensor_parallel_size: int
    speculative_tokens: int
    weights: str

    def __str__(self) -> str:
        gpus = "1 GPU" if self.tensor_parallel_size == 1 else f"{self.tensor_parallel_size} GPUs"
        speculation = f"γ={self.speculative_tokens}" if self.speculative_tokens else "no speculation"
        return f"{self.weights}, {gpus}, {speculation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A latency distribution in milliseconds: its mean and some percentiles."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p0: float | None = None
    p100: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One cell of the table: what was measured with `concurrency` requests in flight.

    `acceptance` holds, per draft position, the fraction of drafts whose token at that position was accepted
    (never rising along the positions, as a token counts only when all before it were accepted); empty without
    speculation.
    """

    concurrency: int
    requests: int
    e2e: Distribution
    ttft: Distribution
    acceptance: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One shape and its levels, ascending in concurrency, with the token counts they were measured at."""

    name: str
    shape: Shape
    input_tokens: int
    output_tokens: int
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All configurations of one source, keyed by shape."""

    name: str
    configurations: dict[Shape, Configuration]

    def shapes(self) -> Sequence[Shape]:
        """Return the shapes that can be replayed, in a stable order."""
        return sorted(self.configurations)


def load(path: Path = BUILT_IN) -> Table:
    """Return the table at `path`: a folder of JSON files, or one file with one configuration or a list of them.

    Raises TableError when nothing usable is there or anything in it is malformed.
    """
    if not path.exists():
        raise TableError(f"replay table {path}: no such file or folder")
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise TableError(f"replay table {path}: the folder holds no .json file")
    configurations: dict[Shape, Configuration] = {}
    for file in files:
        for where, document in _documents(file):
            configuration = _configuration(_Node(where, document))
            if configuration.shape in configurations:
                raise TableError(f"{where}: the shape ({configuration.shape}) occurs twice in this table; keep one")
            configurations[configuration.shape] = configuration
    return Table(name=path.name.removesuffix(".json"), configurations=configurations)


def _documents(file: Path) -> list[tuple[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TableError(f"{file}: not readable as JSON: {error}") from error
    if isinstance(content, list):
        return [(f"{file}[{index}]", item) for index, item in enumerate(content)]
    return [(str(file), content)]


@dataclass(frozen=True, slots=True)
class _Node:
    """A JSON object and where it stands, so that every complaint can say where."""

    where: str
    value: Any

    def object(self, key: str) -> _Node:
        return _Node(f"{self.where}: {key}", self._get(key))

    def objects(self, key: str) -> list[_Node]:
        items = self._get(key)
        if not isinstance(items, list) or not items:
            raise TableError(f"{self.where}: {key} must be a list with at least one element")
        return [_Node(f"{self.where}: {key}[{index}]", item) for index, item in enumerate(items)]

    def integer(self, key: str, *, at_least: int) -> int:
        value = self._get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise TableError(f"{self.where}: {key} must be a whole number of at least {at_least}, not {value!r}")
        return value

    def milliseconds(self, key: str) -> float:
        value = self._get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
            raise TableError(f"{self.where}: {key} must be a number of milliseconds above 0, not {value!r}")
        return float(value)

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str) or not value:
            raise TableError(f"{self.where}: {key} must be a text that is not empty, not {value!r}")
        return value

    def fractions(self, key: str, count: int) -> tuple[float, ...]:
        value = self._get(key)
        if not isinstance(value, list) or len(value) != count:
            raise TableError(f"{self.where}: {key} must be a list of {count} fractions, one for each draft position")
        for fraction in value:
            if not isinstance(fraction, int | float) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
                raise TableError(f"{self.where}: {key} holds {fraction!r}; write fractions from 0 to 1")
        if any(later > earlier for earlier, later in pairwise(value)):
            raise TableError(
                f"{self.where}: {key} rises; a token is accepted only when all before it were, so no fraction"
                " may exceed the one before it"
            )
        return tuple(float(fraction) for fraction in value)

    def has(self, key: str) -> bool:
        return isinstance(self.value, dict) and key in self.value

    def _get(self, key: str) -> Any:
        if not isinstance(self.value, dict):
            raise TableError(f"{self.where}: expected a JSON object, found {type(self.value).__name__}")
        if key not in self.value:
            raise TableError(f"{self.where}: {key} is missing")
        return self.value[key]


def _configuration(node: _Node) -> Configuration:
    if node.text("format") != FORMAT:
        raise TableError(f"{node.where}: format is {node.text('format')!r}; this engine reads {FORMAT!r}")
    weights = node.text("weights")
    if weights not in WEIGHTS:
        raise TableError(f"{node.where}: weights is {weights!r}; write one of {', '.join(WEIGHTS)}")
    shape = Shape(
        tensor_parallel_size=node.integer("tensorParallelSize", at_least=1),
        speculative_tokens=node.integer("speculativeTokens", at_least=0),
        weights=weights,
    )
    levels = tuple(_level(item, shape.speculative_tokens) for item in node.objects("levels"))
    concurrencies = [level.concurrency for level in levels]
    if concurrencies != sorted(set(concurrencies)):
        raise TableError(f"{node.where}: levels must ascend in concurrency without repetition, not {concurrencies}")
    return Configuration(
        name=node.text("name"),
        shape=shape,
        input_tokens=node.integer("inputTokens", at_least=1),
        output_tokens=node.integer("outputTokens", at_least=2),
        levels=levels,
    )


def _level(node: _Node, speculative_tokens: int) -> Level:
    concurrency = node.integer("concurrency", at_least=1)
    requests = node.integer("requests", at_least=2) if node.has("requests") else max(12, 6 * concurrency)
    acceptance: tuple[float, ...] = ()
    if speculative_tokens:
        acceptance = node.object("acceptance").fractions("perPosition", speculative_tokens)
    e2e, ttft = _distribution(node.object("e2eMilliseconds")), _distribution(node.object("ttftMilliseconds"))
    if ttft.p50 >= e2e.p50:
        raise TableError(
            f"{node.where}: the median time to first token ({ttft.p50} ms) is not below the median"
            f" end-to-end latency ({e2e.p50} ms)"
        )
    return Level(concurrency=concurrency, requests=requests, e2e=e2e, ttft=ttft, acceptance=acceptance)


def _distribution(node: _Node) -> Distribution:
    keys = (*(["p0"] if node.has("p0") else []), *_PERCENTILES, *(["p100"] if node.has("p100") else []))
    values = {key: node.milliseconds(key) for key in keys}
    if list(values.values()) != sorted(values.values()):
        raise TableError(
            f"{node.where}: the percentiles {', '.join(keys)} must not fall, but are {list(values.values())}"
        )
    mean = node.milliseconds("mean")
    if mean > values.get("p100", mean) or mean < values.get("p0", mean):
        raise TableError(f"{node.where}: the mean {mean} lies outside the distribution")
    return Distribution(
        mean=mean,
        p50=values["p50"],
        p90=values["p90"],
        p95=values["p95"],
        p99=values["p99"],
        p0=values.get("p0"),
        p100=values.get("p100"),
    )
