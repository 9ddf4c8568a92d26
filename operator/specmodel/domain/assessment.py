"""What the measurements say of one candidate: its verdict, capacity and cost.

    cell ──judge_cell──► Judgement ─┐
    (one per level, temperature)    ├─ assess ─► Assessment (its gates' worst verdict, capacity, cost, missing)
    counters, demand, budget ───────┘

`judge_cell` is also what the benchmark Job stops and extends by: there is one rule for a cell. Cells are hostile input:
whatever they hold ends in a verdict, never in an exception. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise

from specmodel.api.benchmark import SAMPLES_MAXIMUM, Cell, CellRequest, Latency, Limit, Metric, StopRule
from specmodel.api.conditions import REASONS
from specmodel.api.model import SpeculativeModelSpec
from specmodel.api.wire import canonical_decimal
from specmodel.domain.candidate import Candidate
from specmodel.domain.measurement import CANDIDATE_FAULTS, REQUESTS_PER_STREAM, KnownPercentile, Measurement
from specmodel.domain.statistics import at_rank, lower_bound, upper_bound

#: A metric as people read it.
METRIC_WORDS = {Metric.E2E_LATENCY: "E2E latency", Metric.TTFT: "TTFT", Metric.TPOT: "TPOT"}

#: A cell by what identifies it: concurrency and canonical temperature.
Key = tuple[int, str]


class Verdict(StrEnum):
    """Worst first; a candidate has its gates' worst."""

    FAILED = "Failed"
    VIOLATES = "Violates"
    UNMEASURED = "Unmeasured"
    INCONCLUSIVE = "Inconclusive"
    ELIGIBLE = "Eligible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A limit that a candidate missed at its lowest failing level, with the number measured.

    The number is infinite when more requests failed than the percentile leaves room for.
    """

    limit: Limit
    concurrency: int
    temperature: str
    measured_milliseconds: float

    @property
    def excess(self) -> float:
        """Measured over allowed: the nearest miss has the smallest."""
        return self.measured_milliseconds / self.limit.max_milliseconds

    def __str__(self) -> str:
        bound = f"{METRIC_WORDS[self.limit.metric]} P{self.limit.percentile}"
        where = f"at concurrency {self.concurrency}"
        if math.isinf(self.measured_milliseconds):
            return f"{bound} {where} is not reached within {self.limit.max_milliseconds} ms: too many requests failed"
        return f"{bound} {self.measured_milliseconds:.2f} ms {where}, limit {self.limit.max_milliseconds} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one cell says under a stop rule."""

    verdict: Verdict
    reason: str
    message: str = ""
    miss: Miss | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """One candidate as judged. Figures are None where nothing measured says them.

    Figures are those at capacity; of a candidate without one, at the level that it may carry (Inconclusive) or else at
    the lowest level measured.
    """

    candidate: Candidate
    verdict: Verdict
    reason: str
    message: str
    capacity: int | None = None
    #: Of an Inconclusive candidate: the highest level that nothing measured speaks against.
    possible_capacity: int | None = None
    #: Requests per second at capacity: the lowest over temperatures.
    throughput: float | None = None
    output_tokens_per_second: float | None = None
    #: At capacity, the worst over temperatures, in milliseconds.
    p50_milliseconds: float | None = None
    p99_milliseconds: float | None = None
    #: Accepted / drafted tokens over all measured cells, 0..1.
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    #: What the demand needs; None without a demand.
    replicas: int | None = None
    gpus: int | None = None
    #: Cost per hour of what the demand needs (or, without a demand, GPU-hours x price per request/s), in price units.
    cost: float | None = None
    cost_per_million_tokens: float | None = None
    #: The SLA's first metric at the load that one replica would carry (LowestLatency), and at which concurrency.
    latency_milliseconds: float | None = None
    latency_concurrency: int | None = None
    miss: Miss | None = None
    #: Cells that the verdict still needs, with their sizes: what a next run has to measure.
    missing: tuple[CellRequest, ...] = ()
    runs: tuple[str, ...] = ()
    #: `vllm`, or `replay` when figures were replayed: they are then never a GPU's.
    engine: str = ""

    @property
    def carries(self) -> int | None:
        """The capacity, proven or possible."""
        return self.capacity if self.capacity is not None else self.possible_capacity


# --- one cell ---------------------------------------------------------------------------------------------------------


def stop_rule(spec: SpeculativeModelSpec) -> StopRule:
    """Return the rule by which cells of this model are judged, in the Job and here."""
    return StopRule(
        limits=list(spec.sla.limits),
        confidence_percent=spec.sla.confidence_percent,
        max_error_rate_percent=spec.sla.max_error_rate_percent,
    )


def judge_cell(
    cell: Cell, rule: StopRule, *, output_tokens: int | None = None, known: Iterable[KnownPercentile] = ()
) -> Judgement:
    """Return what one cell says: Failed, Violates, Inconclusive or Eligible.

    `output_tokens` is how many a request was asked for at most (None: not known). `known` holds percentiles that the
    source states beside those of the cell.
    """
    if cell.failure is not None:
        return Judgement(
            verdict=Verdict.FAILED, reason=_reason(cell.failure.reason), message=_at(cell, cell.failure.message)
        )
    if cell.completed == 0 or cell.output_tokens == 0:
        text = (
            f"{cell.completed} of {cell.completed + cell.failed} requests completed, {cell.output_tokens} output tokens"
        )
        return Judgement(verdict=Verdict.FAILED, reason="NoOutput", message=_at(cell, text))
    contradiction = _contradiction(cell, output_tokens)
    if contradiction:
        return Judgement(verdict=Verdict.FAILED, reason="ImplausibleCell", message=_at(cell, contradiction))
    requests = cell.completed + cell.failed
    if Fraction(cell.failed * 100, requests) > Fraction(rule.max_error_rate_percent):
        share = 100 * cell.failed / requests
        text = f"{cell.failed} of {requests} requests failed ({share:.2f} %), allowed {rule.max_error_rate_percent} %"
        return Judgement(verdict=Verdict.VIOLATES, reason="ErrorRateExceeded", message=_at(cell, text))
    stated = tuple(known)
    judged = [_judge_limit(cell, limit, rule.confidence_percent, stated) for limit in rule.limits]
    missed = [one for one in judged if one.verdict is Verdict.VIOLATES]
    if missed:
        return max(missed, key=lambda one: one.miss.excess if one.miss else 0)
    undecided = next((one for one in judged if one.verdict is Verdict.INCONCLUSIVE), None)
    return undecided or Judgement(verdict=Verdict.ELIGIBLE, reason="Passed")


def observed_milliseconds(
    cell: Cell, metric: Metric, percent: int, known: Iterable[KnownPercentile] = ()
) -> tuple[float, float] | None:
    """Return bounds (lowest, highest) on the sample percentile over completed and failed requests, in milliseconds.

    They are equal where the cell holds the percentile or the samples, and apart where failed requests shift the rank
    between percentiles that the source states. None when nothing in the cell says it.
    """
    latency = _latency(cell, metric)
    samples = latency.samples if latency is not None else []
    key = (cell.concurrency, canonical_decimal(cell.temperature), metric)
    beside = {k.percentile: k.milliseconds for k in known if (k.concurrency, k.temperature, k.metric) == key}
    if cell.failed == 0 and percent in beside:
        return beside[percent], beside[percent]
    stated = {**_stated(latency), **beside}
    if cell.failed == 0 and percent in stated and len(samples) < cell.completed:
        return stated[percent], stated[percent]
    rank = percent * (cell.completed + cell.failed - 1) / 100
    if rank > cell.completed - 1:
        return math.inf, math.inf
    if samples:
        is_whole = len(samples) == cell.completed
        value = at_rank(samples, rank if is_whole else rank * (len(samples) - 1) / max(1, cell.completed - 1)) / 1000
        return value, value
    if not stated or (cell.failed == 0 and percent not in stated):
        return None
    shifted = 100 * rank / max(1, cell.completed - 1)
    below = max((p for p in stated if p <= shifted), default=None)
    above = min((p for p in stated if p >= shifted), default=None)
    return (0.0 if below is None else stated[below]), (math.inf if above is None else stated[above])


def _judge_limit(cell: Cell, limit: Limit, confidence: int, known: Sequence[KnownPercentile]) -> Judgement:
    words = f"{METRIC_WORDS[limit.metric]} P{limit.percentile}"
    observed = observed_milliseconds(cell, limit.metric, limit.percentile, known)
    if observed is None:
        text = f"neither samples nor {words} are there"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason="SamplesMissing", message=_at(cell, text))
    low, high = observed
    miss = Miss(
        limit=limit,
        concurrency=cell.concurrency,
        temperature=canonical_decimal(cell.temperature),
        measured_milliseconds=low,
    )
    violates = Judgement(verdict=Verdict.VIOLATES, reason="LimitExceeded", message=str(miss), miss=miss)
    if confidence == 0:
        if high <= limit.max_milliseconds:
            return Judgement(verdict=Verdict.ELIGIBLE, reason="Passed")
        if low > limit.max_milliseconds:
            return violates
        text = f"{cell.failed} failed requests move {words} beyond the percentiles that are there"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason="SamplesMissing", message=_at(cell, text))
    latency = _latency(cell, limit.metric)
    samples = latency.samples if latency is not None else []
    if not samples:
        text = f"{words} is there without the samples that {confidence} % confidence needs"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason="SamplesMissing", message=_at(cell, text))
    # Of a cell whose samples were thinned, failed requests are thinned alike.
    failed = math.ceil(cell.failed * len(samples) / cell.completed)
    exceeding = failed + sum(sample > limit.max_milliseconds * 1000 for sample in samples)
    total = failed + len(samples)
    allowed = (100 - limit.percentile) / 100
    if upper_bound(exceeding, total, confidence / 100) <= allowed:
        return Judgement(verdict=Verdict.ELIGIBLE, reason="Passed")
    if lower_bound(exceeding, total, confidence / 100) > allowed:
        return violates
    seen = f"{low:.2f} ms" if math.isfinite(low) else "not reached"
    text = (
        f"{words} {seen} against limit {limit.max_milliseconds} ms is undecided at {confidence} % confidence: "
        f"{exceeding} of {total} requests above it"
    )
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason="SamplesTooFew", message=_at(cell, text), miss=miss)


def _reason(reason: str) -> str:
    return reason if reason in CANDIDATE_FAULTS else "ImplausibleCell"


def _at(cell: Cell, text: str) -> str:
    return f"at concurrency {cell.concurrency}, temperature {canonical_decimal(cell.temperature)}: {text}"


def _latency(cell: Cell, metric: Metric) -> Latency | None:
    return {Metric.E2E_LATENCY: cell.e2e_latency, Metric.TTFT: cell.ttft, Metric.TPOT: cell.tpot}[metric]


def _stated(latency: Latency | None) -> dict[int, float]:
    """Return the percentiles that a latency states, in milliseconds."""
    if latency is None:
        return {}
    stated = {
        50: latency.p50_microseconds,
        90: latency.p90_microseconds,
        95: latency.p95_microseconds,
        99: latency.p99_microseconds,
    }
    return {percent: value / 1000 for percent, value in stated.items() if value is not None}


def _contradiction(cell: Cell, output_tokens: int | None) -> str:
    """Return how the cell's numbers contradict each other, or nothing."""
    if cell.duration_milliseconds == 0 or Fraction(cell.requests_per_second) == 0:
        return f"{cell.completed} requests completed in no time or at 0 req/s"
    implied = Fraction(cell.completed * 1000, cell.duration_milliseconds)
    if not implied / 2 <= Fraction(cell.requests_per_second) <= implied * 2:
        return f"{cell.requests_per_second} req/s is not {cell.completed} requests in {cell.duration_milliseconds} ms"
    if output_tokens is not None and cell.output_tokens > cell.completed * output_tokens:
        return f"{cell.output_tokens} tokens came from {cell.completed} requests for at most {output_tokens} each"
    for metric, words in METRIC_WORDS.items():
        latency = _latency(cell, metric)
        problem = _disorder(latency, cell.completed) if latency is not None else ""
        if problem:
            return f"{words}: {problem}"
    counted = cell.acceptance
    if counted is not None and counted.accepted_tokens > counted.draft_tokens:
        return f"{counted.accepted_tokens} tokens were accepted of {counted.draft_tokens} drafted: counters were reset"
    return _first_token_after_end(cell.ttft, cell.e2e_latency)


def _first_token_after_end(ttft: Latency | None, e2e: Latency | None) -> str:
    if ttft is None:
        return ""
    if ttft.p50_microseconds == 0 or (ttft.samples and ttft.samples[0] == 0):
        return "the first token came after 0 µs"
    if e2e is None:
        return ""
    pairs = [(ttft.p50_microseconds, e2e.p50_microseconds), (ttft.p99_microseconds, e2e.p99_microseconds)]
    if len(ttft.samples) == len(e2e.samples):
        pairs += zip(ttft.samples, e2e.samples, strict=True)
    late = next(((first, last) for first, last in pairs if first > last), None)
    return f"TTFT {late[0]} µs is above E2E latency {late[1]} µs" if late else ""


def _disorder(latency: Latency, completed: int) -> str:
    stated = [latency.p50_microseconds, latency.p90_microseconds, latency.p95_microseconds, latency.p99_microseconds]
    rising = [value for value in stated if value is not None]
    if any(low > high for low, high in pairwise(rising)):
        return "a lower percentile is above a higher one"
    samples = latency.samples
    if not samples:
        return ""
    if len(samples) > min(completed, SAMPLES_MAXIMUM):
        return f"{len(samples)} samples from {completed} requests"
    if any(low > high for low, high in pairwise(samples)):
        return "the samples are not sorted"
    if not (samples[0] - 1 <= rising[0] and rising[-1] <= samples[-1] + 1):
        return "the percentiles lie outside the samples"
    return ""


# --- one candidate ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Levels:
    """The cells of one candidate as judged, level by level."""

    levels: tuple[int, ...]
    temperatures: tuple[str, ...]
    cells: Mapping[Key, Cell] = field(default_factory=dict)
    judged: Mapping[Key, Judgement] = field(default_factory=dict)
    #: Cells that are lacking or too small, with what to ask for.
    lacking: Mapping[Key, CellRequest] = field(default_factory=dict)
    #: The lacking ones that a run can still bring.
    askable: frozenset[Key] = frozenset()

    def verdicts(self, level: int) -> list[Verdict]:
        """Return what is known at one level, lacking cells left out."""
        keys = ((level, temperature) for temperature in self.temperatures)
        return [self.judged[key].verdict for key in keys if key in self.judged and key not in self.lacking]

    @property
    def ceiling(self) -> int | None:
        """The lowest level that is known not to pass: nothing above it matters."""
        stops = (Verdict.FAILED, Verdict.VIOLATES, Verdict.INCONCLUSIVE)
        return next((level for level in self.levels if any(v in stops for v in self.verdicts(level))), None)

    @property
    def relevant(self) -> tuple[int, ...]:
        """The levels that the verdict rests on."""
        return tuple(level for level in self.levels if self.ceiling is None or level <= self.ceiling)

    @property
    def capacity(self) -> int | None:
        """The highest level that passes with all lower ones, at every temperature."""
        return self._carried((Verdict.ELIGIBLE,))

    @property
    def possible_capacity(self) -> int | None:
        """The highest level that nothing measured speaks against, from what happens to be there."""
        return self._carried((Verdict.ELIGIBLE, Verdict.INCONCLUSIVE))

    def _carried(self, good: tuple[Verdict, ...]) -> int | None:
        carried = None
        for level in self.levels:
            verdicts = self.verdicts(level)
            if len(verdicts) < len(self.temperatures) or any(verdict not in good for verdict in verdicts):
                break
            carried = level
        return carried

    def needed(self) -> tuple[Key, ...]:
        """Return the lacking cells that the verdict still needs.

        At the ceiling itself nothing more is needed, save at the lowest level while it is merely undecided.
        """
        ceiling = self.ceiling
        keys = sorted(self.lacking)
        if ceiling is None:
            return tuple(keys)
        is_open = ceiling == self.levels[0] and Verdict.VIOLATES not in self.verdicts(ceiling)
        return tuple(key for key in keys if key[0] < ceiling or (is_open and key[0] == ceiling))


def assess(candidate: Candidate, measurement: Measurement | None, spec: SpeculativeModelSpec) -> Assessment:
    """Judge one candidate by what is measured of it. Total: hostile cells end in a verdict, never in an exception."""
    measured = measurement or Measurement(candidate=candidate.digest, cells=())
    levels = _judge_levels(measured, spec)
    figures = _figures(candidate, measured, levels, spec)
    for gate in (_failed, _speculation, _acceptance, _violated, _budget, _unmeasured, _undecided):
        judged = gate(figures, measured, levels, spec)
        if judged is not None:
            return judged
    return replace(figures, verdict=Verdict.ELIGIBLE, reason="Passed", message=_passed(figures, levels, spec))


def levels_of(spec: SpeculativeModelSpec) -> tuple[int, ...]:
    """Return the workload's levels of concurrency, ascending, each once."""
    return tuple(sorted(set(spec.workload.concurrency)))


def temperatures_of(spec: SpeculativeModelSpec) -> tuple[str, ...]:
    """Return the workload's temperatures, canonical, ascending, each once."""
    return tuple(sorted({canonical_decimal(text) for text in spec.workload.temperature}, key=Fraction))


def request_of(spec: SpeculativeModelSpec, concurrency: int, temperature: str) -> CellRequest:
    """Return one cell with its sizes: at least 6 requests a stream, and never a maximum below the minimum."""
    least = max(spec.workload.requests_per_cell.min, REQUESTS_PER_STREAM * concurrency)
    most = max(spec.workload.requests_per_cell.max, least)
    return CellRequest(concurrency=concurrency, temperature=temperature, min_requests=least, max_requests=most)


def gpu_budget(spec: SpeculativeModelSpec) -> int:
    """Return the most GPUs that the model may hold: as set, else twice the largest replica."""
    return spec.hardware.gpu_budget or 2 * max(spec.hardware.gpus_per_replica)


def least_replicas(spec: SpeculativeModelSpec) -> int:
    """Return the fewest replicas that the demand can need, whatever the candidate."""
    demand = spec.workload.demand
    if demand is None or demand.concurrency is None:
        return 1
    return math.ceil(demand.concurrency / max(spec.workload.concurrency))


def price_of(spec: SpeculativeModelSpec) -> float:
    """Return the price of a GPU-hour: 1 when none is given, so that costs are GPU-hours."""
    return float(spec.hardware.gpu_hour_price) if spec.hardware.gpu_hour_price is not None else 1.0


def first_metric(spec: SpeculativeModelSpec) -> tuple[Metric, int]:
    """Return metric and percentile of the SLA's first limit: E2E latency P99 without one."""
    first = next(iter(spec.sla.limits), None)
    return (Metric.E2E_LATENCY, 99) if first is None else (first.metric, first.percentile)


def _judge_levels(measured: Measurement, spec: SpeculativeModelSpec) -> _Levels:
    rule = stop_rule(spec)
    dataset = spec.workload.dataset
    asked = dataset.prompts or dataset.synthetic
    tokens = asked.output_tokens if asked is not None and measured.has_counters else None
    cells: dict[Key, Cell] = {}
    judged: dict[Key, Judgement] = {}
    lacking: dict[Key, CellRequest] = {}
    askable: set[Key] = set()
    for level in levels_of(spec):
        for temperature in temperatures_of(spec):
            key = (level, temperature)
            wanted = request_of(spec, level, temperature)
            cell = measured.cell(level, temperature)
            can_ask = not measured.is_final and measured.fault is None and not _is_asked(measured, wanted, rule)
            if cell is None or (cell.failure is not None and cell.failure.reason not in CANDIDATE_FAULTS):
                lacking[key] = wanted
                askable |= {key} if can_ask else set()
                continue
            cells[key] = cell
            judged[key] = judge_cell(cell, rule, output_tokens=tokens, known=measured.percentiles)
            if can_ask and _is_short(cell, wanted, judged[key], rule.confidence_percent):
                lacking[key] = wanted
                askable.add(key)
    return _Levels(
        levels=levels_of(spec),
        temperatures=temperatures_of(spec),
        cells=cells,
        judged=judged,
        lacking=lacking,
        askable=frozenset(askable),
    )


def _is_short(cell: Cell, wanted: CellRequest, judged: Judgement, confidence: int) -> bool:
    """Return whether more requests are due before this cell concludes anything."""
    sent = cell.completed + cell.failed
    if judged.verdict is Verdict.FAILED or (judged.verdict is Verdict.VIOLATES and confidence):
        return False
    if judged.verdict is Verdict.INCONCLUSIVE and confidence:
        return sent < wanted.max_requests
    return sent < wanted.min_requests


def _is_asked(measured: Measurement, wanted: CellRequest, rule: StopRule) -> bool:
    """Return whether a complete run was asked for as much under the same rule: another would bring nothing new."""
    return any(
        (asked.cell.concurrency, asked.cell.temperature) == (wanted.concurrency, wanted.temperature)
        and asked.cell.min_requests >= wanted.min_requests
        and asked.cell.max_requests >= wanted.max_requests
        and set(asked.stop.limits) == set(rule.limits)
        and asked.stop.confidence_percent == rule.confidence_percent
        and canonical_decimal(asked.stop.max_error_rate_percent) == canonical_decimal(rule.max_error_rate_percent)
        for asked in measured.asked
    )


def _figures(candidate: Candidate, measured: Measurement, levels: _Levels, spec: SpeculativeModelSpec) -> Assessment:
    """Return every figure that the cells say, with no verdict yet."""
    rated = [levels.cells[key] for key in sorted(levels.cells) if key[0] in levels.relevant]
    counted = [cell.acceptance for cell in rated if cell.acceptance is not None]
    drafts, drafted = sum(c.drafts for c in counted), sum(c.draft_tokens for c in counted)
    accepted = sum(c.accepted_tokens for c in counted)
    possible = levels.possible_capacity if levels.capacity is None else None
    bare = Assessment(
        candidate=candidate,
        verdict=Verdict.UNMEASURED,
        reason="CellsMissing",
        message="",
        capacity=levels.capacity,
        possible_capacity=possible,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_acceptance_length=1 + accepted / drafts if drafts else None,
        runs=measured.runs,
        engine=measured.engine,
    )
    level = bare.carries or min((key[0] for key in levels.cells), default=None)
    here = [] if level is None else [levels.cells[key] for key in sorted(levels.cells) if key[0] == level]
    throughput = min((Fraction(cell.requests_per_second) for cell in here), default=Fraction(0))
    if level is None or not throughput:
        return bare
    tokens = float(min(Fraction(cell.output_tokens_per_second) for cell in here))
    price, gpus = price_of(spec), candidate.gpus_per_replica
    figures = replace(
        bare,
        throughput=float(throughput),
        output_tokens_per_second=tokens,
        p50_milliseconds=_worst(here, Metric.E2E_LATENCY, 50, measured),
        p99_milliseconds=_worst(here, Metric.E2E_LATENCY, 99, measured),
        cost_per_million_tokens=gpus * price / (tokens * 3600) * 1e6 if tokens else None,
    )
    if figures.carries is None:
        return figures
    replicas = _replicas(figures.carries, throughput, spec)
    cost = gpus / float(throughput) * price if replicas is None else replicas * gpus * price
    at = _load_of_one(figures.carries, replicas, levels, spec)
    metric, percent = first_metric(spec)
    there = [levels.cells[key] for key in sorted(levels.cells) if key[0] == at]
    return replace(
        figures,
        replicas=replicas,
        gpus=None if replicas is None else replicas * gpus,
        cost=cost,
        latency_milliseconds=_worst(there, metric, percent, measured),
        latency_concurrency=at,
    )


def _worst(cells: Sequence[Cell], metric: Metric, percent: int, measured: Measurement) -> float | None:
    """Return the highest observed percentile over cells (temperatures) in milliseconds, None where one is unknown."""
    bounds = [observed_milliseconds(cell, metric, percent, measured.percentiles) for cell in cells]
    values = [bound[0] for bound in bounds if bound is not None and math.isfinite(bound[0])]
    return max(values) if values and len(values) == len(bounds) else None


def _replicas(capacity: int, throughput: Fraction, spec: SpeculativeModelSpec) -> int | None:
    """Return how many replicas the demand needs, or None without a demand."""
    demand = spec.workload.demand
    if demand is None:
        return None
    if demand.concurrency is not None:
        return math.ceil(demand.concurrency / capacity)
    if demand.requests_per_second is None:
        return None
    usable = throughput * spec.workload.target_utilization_percent / 100
    return max(1, math.ceil(Fraction(demand.requests_per_second) / usable))


def _load_of_one(capacity: int, replicas: int | None, levels: _Levels, spec: SpeculativeModelSpec) -> int:
    """Return the measured concurrency at which one of the replicas would run: the lowest level without a demand.

    A demand in requests per second runs at the lowest level whose throughput carries one replica's share.
    """
    demand = spec.workload.demand
    passing = [level for level in levels.levels if level <= capacity]
    if demand is None or replicas is None:
        return passing[0]
    if demand.concurrency is not None:
        share = math.ceil(demand.concurrency / replicas)
        return next((level for level in passing if level >= share), capacity)
    wanted = Fraction(demand.requests_per_second or "0") / replicas

    def carried(level: int) -> Fraction:
        return min(Fraction(cell.requests_per_second) for key, cell in levels.cells.items() if key[0] == level)

    return next((level for level in passing if carried(level) >= wanted), capacity)


# --- the gates, worst first: each returns the assessment that it ends in, or None -------------------------------------


def _failed(figures: Assessment, measured: Measurement, levels: _Levels, _: SpeculativeModelSpec) -> Assessment | None:
    if measured.failure is not None:
        reason, message = _candidates_reason(*measured.failure)
        return replace(figures, verdict=Verdict.FAILED, reason=reason, message=message)
    for level in levels.relevant:
        for temperature in levels.temperatures:
            judged = levels.judged.get((level, temperature))
            if judged is not None and judged.verdict is Verdict.FAILED:
                reason, message = _candidates_reason(judged.reason, judged.message)
                return replace(figures, verdict=Verdict.FAILED, reason=reason, message=message)
    return None


def _candidates_reason(reason: str, message: str) -> tuple[str, str]:
    """Return a run's reason as a candidate's: what only runs know by name is a failure of the engine, told in words."""
    return (reason, message) if reason in REASONS else ("EngineFailed", f"{reason}: {message}")


def _speculation(
    figures: Assessment, measured: Measurement, levels: _Levels, _: SpeculativeModelSpec
) -> Assessment | None:
    is_active = figures.mean_acceptance_length is not None and figures.acceptance_rate != 0
    if figures.candidate.speculative_tokens == 0 or not levels.cells or is_active:
        return None
    counts = [cell.acceptance for cell in levels.cells.values() if cell.acceptance is not None]
    if not counts and not measured.has_counters:
        return None
    drafted = sum(count.draft_tokens for count in counts)
    text = "the engine drafted nothing" if counts else "the engine has no speculation counters"
    text = f"none of {drafted} drafted tokens was accepted" if drafted else text
    message = f"γ={figures.candidate.speculative_tokens} is configured, but {text} over {len(levels.cells)} cells"
    return replace(figures, verdict=Verdict.FAILED, reason="SpeculationInactive", message=message)


def _acceptance(figures: Assessment, _: Measurement, __: _Levels, spec: SpeculativeModelSpec) -> Assessment | None:
    least = spec.drafter.min_acceptance_rate_percent if spec.drafter is not None else None
    rate = figures.acceptance_rate
    if least is None or rate is None or figures.candidate.speculative_tokens == 0 or rate * 100 >= least:
        return None
    message = f"{rate * 100:.1f} % of drafted tokens were accepted, wanted at least {least} %"
    return replace(figures, verdict=Verdict.VIOLATES, reason="AcceptanceTooLow", message=message)


def _violated(figures: Assessment, _: Measurement, levels: _Levels, __: SpeculativeModelSpec) -> Assessment | None:
    """Return a violation at the lowest level: then nothing is carried at all."""
    missed = _misses(levels, levels.levels[0])
    if not missed:
        return None
    worst = max(missed, key=_excess)
    return replace(figures, verdict=Verdict.VIOLATES, reason=worst.reason, message=worst.message, miss=worst.miss)


def _budget(figures: Assessment, _: Measurement, levels: _Levels, spec: SpeculativeModelSpec) -> Assessment | None:
    budget = gpu_budget(spec)
    per_replica = figures.candidate.gpus_per_replica
    is_judged = figures.gpus is not None and figures.capacity is not None and not levels.needed()
    gpus = figures.gpus if is_judged and figures.gpus is not None else least_replicas(spec) * per_replica
    if gpus <= budget:
        return None
    message = f"{_needs(gpus // per_replica, gpus, spec)}, hardware.gpuBudget is {budget}"
    return replace(figures, verdict=Verdict.VIOLATES, reason="OverBudget", message=message)


def _unmeasured(
    figures: Assessment, measured: Measurement, levels: _Levels, _: SpeculativeModelSpec
) -> Assessment | None:
    needed = levels.needed()
    if not needed:
        return None
    missing = tuple(levels.lacking[key] for key in needed if key in levels.askable)
    names = ", ".join(f"{level} at temperature {temperature}" for level, temperature in needed[:8])
    names += ", ..." if len(needed) > 8 else ""
    total = len(levels.levels) * len(levels.temperatures)
    message = f"{len(needed)} of {total} cells are not measured yet: concurrency {names}"
    if measured.is_final:
        message = f"the results lack {len(needed)} of {total} cells: concurrency {names}"
    if measured.fault is not None:
        message = f"{measured.fault[0]}: {measured.fault[1]}"
    return replace(figures, verdict=Verdict.UNMEASURED, reason="CellsMissing", message=message, missing=missing)


def _undecided(figures: Assessment, _: Measurement, levels: _Levels, __: SpeculativeModelSpec) -> Assessment | None:
    if levels.capacity is not None:
        return None
    keys = ((levels.levels[0], temperature) for temperature in levels.temperatures)
    judged = next(levels.judged[key] for key in keys if levels.judged[key].verdict is Verdict.INCONCLUSIVE)
    return replace(
        figures, verdict=Verdict.INCONCLUSIVE, reason=judged.reason, message=judged.message, miss=judged.miss
    )


def _misses(levels: _Levels, level: int) -> list[Judgement]:
    keys = ((level, temperature) for temperature in levels.temperatures)
    judged = [levels.judged[key] for key in keys if key in levels.judged and key not in levels.lacking]
    return [one for one in judged if one.verdict is Verdict.VIOLATES]


def _excess(judged: Judgement) -> float:
    return judged.miss.excess if judged.miss is not None else math.inf


def _needs(replicas: int, gpus: int, spec: SpeculativeModelSpec) -> str:
    """Return what a demand needs, in words."""
    count = f"{replicas} replica{'s' if replicas != 1 else ''} ({gpus} GPU{'s' if gpus != 1 else ''})"
    demand = spec.workload.demand
    if demand is None:
        return f"one replica needs {gpus} GPU{'s' if gpus != 1 else ''}"
    if demand.concurrency is not None:
        return f"{demand.concurrency} concurrent requests need {count}"
    return f"{demand.requests_per_second} req/s at {spec.workload.target_utilization_percent} % need {count}"


def _passed(figures: Assessment, levels: _Levels, spec: SpeculativeModelSpec) -> str:
    """Return what an eligible candidate carries, and where it ends."""
    text = f"carries {figures.capacity} streams at {figures.throughput or 0:.2f} req/s"
    if figures.p99_milliseconds is not None:
        text += f", E2E latency P99 {figures.p99_milliseconds:.2f} ms"
    if figures.replicas is not None and figures.gpus is not None:
        text += f"; {_needs(figures.replicas, figures.gpus, spec)}"
    ceiling = levels.ceiling
    if ceiling is None:
        return text
    keys = ((ceiling, temperature) for temperature in levels.temperatures)
    ends = [levels.judged[key] for key in keys if key in levels.judged]
    end = next((one for one in ends if one.verdict is not Verdict.ELIGIBLE), None)
    return f"{text}; no more, because {end.message}" if end is not None and end.message else text
