"""What Prometheus sees. One table (docs are generated from it); labels are bounded; a model's series go with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from specmodel.api.model import SpeculativeModelStatus
from specmodel.reconcile.action import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: its type (counter, gauge or histogram), its labels, and what it tells."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


_MODEL = ("namespace", "name")
_CANDIDATE = (*_MODEL, "candidate")


def _metric(name: str, kind: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name=name, type=kind, labels=labels, help=text)


#: Every metric of the operator itself. Beside them: the usual `process_*`, `python_*` ones.
METRICS: tuple[Metric, ...] = (
    _metric("specmodel_reconcile_total", "counter", ("kind",), "Passes made."),
    _metric("specmodel_reconcile_errors_total", "counter", ("kind", "reason"), "Passes that failed or were refused."),
    _metric("specmodel_reconcile_duration_seconds", "histogram", ("kind",), "How long passes took."),
    _metric("specmodel_writes_total", "counter", ("verb", "kind"), "Writes that the API server accepted."),
    _metric("specmodel_leader", "gauge", (), "1 in the process that holds the Lease."),
    _metric("specmodel_model_info", "gauge", (*_MODEL, "revision", "weights", "engine"), "1; what a model serves."),
    _metric("specmodel_model_condition", "gauge", (*_MODEL, "type", "status"), "1 for the condition's current status."),
    _metric("specmodel_model_replicas", "gauge", _MODEL, "Replicas that a model wants."),
    _metric("specmodel_model_ready_replicas", "gauge", _MODEL, "Replicas of a model that are Ready."),
    _metric("specmodel_model_gpus_per_replica", "gauge", _MODEL, "GPUs of each replica that serves."),
    _metric("specmodel_model_speculative_tokens", "gauge", _MODEL, "Speculative tokens (γ) of what serves."),
    _metric("specmodel_model_capacity_streams", "gauge", _MODEL, "Concurrent streams per replica within the SLA."),
    _metric("specmodel_model_acceptance_ratio", "gauge", _MODEL, "Measured share of draft tokens accepted, 0 to 1."),
    _metric("specmodel_model_requests_per_second", "gauge", _MODEL, "Measured requests per second of what serves."),
    _metric("specmodel_model_p99_seconds", "gauge", _MODEL, "Measured P99 of the SLA's latency of what serves."),
    _metric("specmodel_candidate_verdict", "gauge", (*_CANDIDATE, "verdict"), "1 for a candidate's current verdict."),
    _metric("specmodel_candidate_acceptance_ratio", "gauge", _CANDIDATE, "Measured share of draft tokens accepted."),
    _metric("specmodel_candidate_gpus", "gauge", _CANDIDATE, "GPUs that a candidate needs for the demand."),
)

_HISTOGRAM_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """The metrics of one process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            if metric.type == "counter":
                self._counters[metric.name] = Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            elif metric.type == "gauge":
                self._gauges[metric.name] = Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
            else:
                self._histograms[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, registry=self.registry, buckets=_HISTOGRAM_BUCKETS
                )
        self._series: dict[Key, set[tuple[str, tuple[str, ...]]]] = {}

    def count(self, name: str, *labels: str) -> None:
        """Add one to a counter."""
        self._counters[name].labels(*labels).inc()

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        self._histograms[name].labels(*labels).observe(value)

    def set_leader(self, *, is_leader: bool) -> None:
        """Say whether this process holds the Lease."""
        self._gauges["specmodel_leader"].set(1 if is_leader else 0)

    def show(self, key: Key, status: SpeculativeModelStatus) -> None:
        """Show a model's status; series that it no longer has are removed."""
        wanted = {(name, labels): value for name, labels, value in _series(key, status)}
        for name, labels in self._series.get(key, set()) - set(wanted):
            self._gauges[name].remove(*labels)
        for (name, labels), value in wanted.items():
            self._gauges[name].labels(*labels).set(value)
        self._series[key] = set(wanted)

    def forget(self, key: Key) -> None:
        """Remove every series of a model."""
        for name, labels in self._series.pop(key, set()):
            self._gauges[name].remove(*labels)

    def forget_all_but(self, keys: Iterable[Key]) -> None:
        """Remove the series of every model that is not among these."""
        for key in set(self._series) - set(keys):
            self.forget(key)


def _series(key: Key, status: SpeculativeModelStatus) -> Iterable[tuple[str, tuple[str, ...], float]]:
    own = (key.namespace, key.name)
    for condition in status.conditions:
        yield "specmodel_model_condition", (*own, condition.type, condition.status.value), 1
    yield from _known("specmodel_model_replicas", own, status.replicas)
    yield from _known("specmodel_model_ready_replicas", own, status.ready_replicas)
    serving = status.serving
    if serving is not None:
        yield "specmodel_model_info", (*own, serving.revision, serving.weights, serving.engine), 1
        yield "specmodel_model_gpus_per_replica", own, serving.gpus_per_replica
        yield "specmodel_model_speculative_tokens", own, serving.speculative_tokens
        yield from _known("specmodel_model_capacity_streams", own, serving.capacity)
        yield from _known("specmodel_model_acceptance_ratio", own, serving.acceptance_rate_percent, 0.01)
        yield from _known("specmodel_model_requests_per_second", own, _number(serving.requests_per_second))
        yield from _known("specmodel_model_p99_seconds", own, serving.p99_milliseconds, 0.001)
    for candidate in status.candidates:
        labels = (*own, candidate.candidate)
        yield "specmodel_candidate_verdict", (*labels, candidate.verdict), 1
        yield from _known("specmodel_candidate_acceptance_ratio", labels, candidate.acceptance_rate_percent, 0.01)
        yield from _known("specmodel_candidate_gpus", labels, candidate.gpus_needed)


def _known(
    name: str, labels: tuple[str, ...], value: float | None, scale: float = 1
) -> Iterable[tuple[str, tuple[str, ...], float]]:
    if value is not None:
        yield name, labels, value * scale


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
