"""One result of `vllm bench serve`, checked key by key.

The shape of what was measured comes from `config` = `{bf16|fp8}-tp{N}[-g{γ}]`, or from the metadata
`gpus_per_replica`, `speculative_tokens` and `weights` (`--metadata key=value`). Latencies of every request are taken
where a result has them: `samples_us`, or the lists of `--save-detailed`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from specmodel.api.benchmark import (
    SAMPLES_MAXIMUM,
    AcceptanceCounters,
    Cell,
    Latency,
    Metric,
    Percentiles,
)
from specmodel.api.model import SpeculativeModelSpec, Weights
from specmodel.api.wire import canonical_decimal
from specmodel.cli.reading import InputError, shown
from specmodel.domain.candidate import Shape
from specmodel.domain.measurement import KnownPercentile
from specmodel.domain.statistics import percentile

#: A metric's name in the keys of a result.
KEYS = {Metric.E2E_LATENCY: "e2el", Metric.TTFT: "ttft", Metric.TPOT: "tpot"}
WEIGHTS_OF = {"bf16": Weights.NONE.value, "fp8": Weights.FP8.value}

_CONFIG = re.compile(r"(bf16|fp8)-tp([1-9][0-9]{0,3})(?:-g([0-9]{1,4}))?")
_PERCENTILE = re.compile(r"(?:p([1-9][0-9]?)|(median))_(e2el|ttft|tpot|itl)_ms")
_LIMIT = 1e9
#: Streams x seconds that a closed loop spends in requests is throughput x latency. A P99 so many times below, or a
#: median so many times above, is in another unit.
_UNIT_FACTOR = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResult:
    """One result: what was measured, at which load, and the cell."""

    where: str
    shape: Shape
    cell: Cell
    percentiles: tuple[KnownPercentile, ...]
    engine: str
    #: When it was measured (RFC 3339), or nothing.
    time: str


def is_raw(value: object) -> bool:
    """Return whether a JSON value looks like a result rather than something else that lies beside it."""
    return isinstance(value, dict) and "kind" not in value


def read_result(value: Mapping[str, Any], where: str, temperatures: tuple[str, ...]) -> RawResult:
    """Return one result. `temperatures` are the workload's: a result that states none takes the only one.

    Raises `InputError` naming `where` (file and position) and the key.
    """
    reader = _Reader(value, where)
    temperature = reader.temperature(temperatures)
    concurrency = reader.whole("max_concurrency", least=1)
    stated = reader.percentiles()
    samples = reader.samples()
    shape = reader.shape()
    completed = reader.whole("completed")
    reader.require_closed_loop(concurrency)
    cell = Cell(
        concurrency=concurrency,
        temperature=temperature,
        completed=completed,
        failed=reader.failed(completed),
        duration_milliseconds=round(reader.number("duration") * 1000),
        output_tokens=reader.whole("total_output_tokens"),
        requests_per_second=_decimal(reader.number("request_throughput")),
        output_tokens_per_second=_decimal(reader.number("output_throughput")),
        e2e_latency=_latency(stated, samples, "e2el"),
        ttft=_latency(stated, samples, "ttft"),
        tpot=_latency(stated, samples, "tpot"),
        itl=_percentiles(stated),
        acceptance=reader.acceptance(),
    )
    reader.require_milliseconds(cell)
    return RawResult(
        where=where,
        shape=shape,
        cell=cell,
        percentiles=tuple(
            KnownPercentile(
                concurrency=concurrency,
                temperature=temperature,
                metric=metric,
                percentile=percent,
                milliseconds=milliseconds,
            )
            for metric, name in KEYS.items()
            for (key, percent), milliseconds in sorted(stated.items())
            if key == name
        ),
        engine="replay" if value.get("engine") == "replay" else "vllm",
        time=reader.time(),
    )


def require_percentiles(result: RawResult, spec: SpeculativeModelSpec) -> list[str]:
    """Return a line for each percentile that the SLA judges and the result does not hold."""
    held = {(known.metric, known.percentile) for known in result.percentiles}
    latencies = {
        Metric.E2E_LATENCY: result.cell.e2e_latency,
        Metric.TTFT: result.cell.ttft,
        Metric.TPOT: result.cell.tpot,
    }
    lines = []
    for limit in spec.sla.limits:
        latency = latencies[limit.metric]
        if (limit.metric, limit.percentile) in held or (latency is not None and latency.samples):
            continue
        key = f"p{limit.percentile}_{KEYS[limit.metric]}_ms"
        option = f"--percentile-metrics {KEYS[limit.metric]} --metric-percentiles {limit.percentile}"
        lines.append(f"{result.where}: {key}: is missing, and the SLA limits it; measure with {option}")
    return lines


class _Reader:
    """Takes keys of one result; every complaint names file, position and key."""

    def __init__(self, value: Mapping[str, Any], where: str) -> None:
        self.value = value
        self.where = where

    def fault(self, key: str, words: str) -> InputError:
        return InputError(f"{self.where}: {key}: {words}")

    def number(self, key: str) -> float:
        """Return a finite number of at least 0."""
        if key not in self.value:
            raise self.fault(key, "is missing")
        return self.checked(key, self.value[key])

    def checked(self, key: str, found: object) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.fault(key, f"must be a number, not {shown(found)}")
        if isinstance(found, float) and not math.isfinite(found):
            raise self.fault(key, f"must be a finite number, not {found!r}")
        if not 0 <= found < _LIMIT:
            raise self.fault(key, f"must be at least 0 and below {_LIMIT:g}, not {shown(found)}")
        return float(found)

    def whole(self, key: str, *, least: int = 0) -> int:
        """Return a whole number of at least `least`."""
        found = self.number(key)
        if found != int(found) or found < least:
            raise self.fault(key, f"must be a whole number of at least {least}, not {self.value[key]!r}")
        return int(found)

    def failed(self, completed: int) -> int:
        """Return how many requests failed: older results say only how many were sent."""
        if "failed" in self.value:
            return self.whole("failed")
        return max(0, self.whole("num_prompts") - completed) if "num_prompts" in self.value else 0

    def require_closed_loop(self, concurrency: int) -> None:
        """Refuse a result whose requests were paced: it says nothing of as many streams as it names."""
        rate = self.value.get("request_rate")
        if rate is not None and rate != "inf":
            words = f"must be inf, not {shown(rate)}: a paced load does not keep {concurrency} streams busy"
            raise self.fault("request_rate", words)

    def require_milliseconds(self, cell: Cell) -> None:
        """Refuse latencies that cannot be of this load in the unit of their keys."""
        rate, latency = float(cell.requests_per_second), cell.e2e_latency
        if latency is None or not rate or not cell.completed:
            return
        streams = min(cell.concurrency, cell.completed + cell.failed)
        is_low = rate * latency.p99_microseconds / 1e6 * _UNIT_FACTOR < streams
        is_high = rate * latency.p50_microseconds / 1e6 > streams * _UNIT_FACTOR
        if is_low or is_high:
            key, value = ("p99", latency.p99_microseconds) if is_low else ("p50", latency.p50_microseconds)
            words = (
                f"{value / 1000:g} ms cannot be at {rate:g} req/s with {streams} streams; latencies are milliseconds"
            )
            raise self.fault(f"{key}_e2el_ms", words)

    def temperature(self, temperatures: tuple[str, ...]) -> str:
        found = self.value.get("temperature")
        if found is None:
            if len(temperatures) == 1:
                return temperatures[0]
            raise self.fault("temperature", f"is missing, and the workload has several ({', '.join(temperatures)})")
        try:
            text = canonical_decimal(str(found))
        except ArithmeticError as error:
            raise self.fault("temperature", f"must be a number, not {shown(found)}") from error
        if not re.fullmatch(r"[0-2](\.[0-9]{1,3})?", text):
            raise self.fault("temperature", f"must be from 0 to 2.999 with at most three decimals, not {shown(found)}")
        return text

    def shape(self) -> Shape:
        """Return what was measured, from `config` or from metadata."""
        config = self.value.get("config")
        found = _CONFIG.fullmatch(config) if isinstance(config, str) else None
        if found is not None:
            return Shape(
                gpus_per_replica=int(found[2]), speculative_tokens=int(found[3] or 0), weights=WEIGHTS_OF[found[1]]
            )
        keys = ("gpus_per_replica", "speculative_tokens", "weights")
        missing = [key for key in keys if self.value.get(key) is None]
        if len(missing) == len(keys):
            form = "must be {bf16|fp8}-tp{N} or {bf16|fp8}-tp{N}-g{γ}, or give metadata " + ", ".join(keys)
            raise self.fault("config", f"{'is missing' if config is None else f'is {shown(config)}'}; it {form}")
        if missing:
            raise self.fault(missing[0], "is missing beside the other metadata of the shape")
        weights = self.value["weights"]
        names = [weight.value for weight in Weights]
        if weights not in names:
            raise self.fault("weights", f"must be one of {', '.join(names)}, not {weights!r}")
        return Shape(
            gpus_per_replica=self.label("gpus_per_replica", least=1),
            speculative_tokens=self.label("speculative_tokens", least=0),
            weights=str(weights),
        )

    def label(self, key: str, *, least: int) -> int:
        """Return a whole number that `--metadata` may have written as text."""
        found = self.value[key]
        text = str(found)
        if isinstance(found, bool) or not re.fullmatch(r"[0-9]{1,4}", text) or int(text) < least:
            raise self.fault(key, f"must be a whole number of at least {least}, not {found!r}")
        return int(text)

    def percentiles(self) -> dict[tuple[str, int], float]:
        """Return stated percentiles in milliseconds by metric's key and percent; a median is P50."""
        stated: dict[tuple[str, int], float] = {}
        for key, found in self.value.items():
            match = _PERCENTILE.fullmatch(key)
            if match is None:
                continue
            value = self.checked(key, found)
            percent = 50 if match[2] else int(match[1])
            if match[2]:
                stated.setdefault((match[3], 50), value)
            else:
                stated[match[3], percent] = value
        return stated

    def samples(self) -> dict[str, list[int]]:
        """Return every request's latency in microseconds by metric's key, in order of sending; empty without."""
        given = self.value.get("samples_us")
        if given is not None:
            if not isinstance(given, Mapping):
                raise self.fault("samples_us", "must be an object of lists")
            return {
                name: [round(value) for value in self.numbers(f"samples_us.{name}", given[name])]
                for name in KEYS.values()
                if name in given
            }
        if "ttfts" not in self.value or "itls" not in self.value:
            return {}
        return self.detailed()

    def numbers(self, key: str, found: object) -> list[float]:
        if not isinstance(found, list):
            raise self.fault(key, "must be a list of numbers")
        return [self.checked(f"{key}[{index}]", value) for index, value in enumerate(found)]

    def detailed(self) -> dict[str, list[int]]:
        """Return latencies from the lists of `--save-detailed`, in seconds there; failed requests left out."""
        ttfts = self.numbers("ttfts", self.value["ttfts"])
        itls = self.value["itls"]
        errors = self.value.get("errors") or [""] * len(ttfts)
        if not isinstance(itls, list) or not isinstance(errors, list) or not len(itls) == len(errors) == len(ttfts):
            raise self.fault("itls", f"must be a list of {len(ttfts)} lists, as many as ttfts")
        found: dict[str, list[int]] = {name: [] for name in KEYS.values()}
        for index, (ttft, gaps, error) in enumerate(zip(ttfts, itls, errors, strict=True)):
            rest = sum(self.numbers(f"itls[{index}]", gaps))
            if error:
                continue
            found["ttft"].append(round(ttft * 1e6))
            found["e2el"].append(round((ttft + rest) * 1e6))
        # Gaps are between chunks, not tokens, and speculation sends several tokens in one: TPOT needs the token counts.
        lengths = self.value.get("output_lens")
        if not isinstance(lengths, list) or len(lengths) != len(ttfts):
            return {name: values for name, values in found.items() if values}
        kept = [self.checked("output_lens", n) for n, error in zip(lengths, errors, strict=True) if not error]
        pairs = zip(found["e2el"], found["ttft"], kept, strict=True)
        found["tpot"] = [round((e2e - ttft) / (tokens - 1)) for e2e, ttft, tokens in pairs if tokens > 1]
        return {name: values for name, values in found.items() if values}

    def acceptance(self) -> AcceptanceCounters | None:
        names = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
        if all(self.value.get(name) is None for name in names):
            return None
        drafts, drafted, accepted = (self.whole(name) for name in names)
        return AcceptanceCounters(drafts=drafts, draft_tokens=drafted, accepted_tokens=accepted)

    def time(self) -> str:
        """Return `date` (20261130-011942, local to the machine that measured) in the form of a Timestamp."""
        found = re.fullmatch(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)", str(self.value.get("date", "")))
        return "{}-{}-{}T{}:{}:{}Z".format(*found.groups()) if found else ""


def _decimal(value: float) -> str:
    return format(Decimal(f"{value:.6f}").normalize(), "f")


def _latency(stated: Mapping[tuple[str, int], float], samples: Mapping[str, list[int]], name: str) -> Latency | None:
    """Return a metric from its samples, else from its percentiles; None when neither gives P50 and P99."""
    taken = samples.get(name)
    if taken:
        ordered = sorted(taken)
        return Latency(
            p50_microseconds=round(percentile(ordered, 50)),
            p90_microseconds=round(percentile(ordered, 90)),
            p95_microseconds=round(percentile(ordered, 95)),
            p99_microseconds=round(percentile(ordered, 99)),
            samples=_thinned(ordered),
        )

    def at(percent: int) -> int | None:
        value = stated.get((name, percent))
        return None if value is None else round(value * 1000)

    median, high = at(50), at(99)
    if median is None or high is None:
        return None
    return Latency(p50_microseconds=median, p90_microseconds=at(90), p95_microseconds=at(95), p99_microseconds=high)


def _thinned(ordered: list[int]) -> list[int]:
    """Return at most SAMPLES_MAXIMUM of sorted values, evenly spaced by rank."""
    if len(ordered) <= SAMPLES_MAXIMUM:
        return ordered
    step = (len(ordered) - 1) / (SAMPLES_MAXIMUM - 1)
    return [ordered[round(index * step)] for index in range(SAMPLES_MAXIMUM)]


def _percentiles(stated: Mapping[tuple[str, int], float]) -> Percentiles | None:
    median, high = stated.get(("itl", 50)), stated.get(("itl", 99))
    if median is None or high is None:
        return None
    return Percentiles(p50_microseconds=round(median * 1000), p99_microseconds=round(high * 1000))
