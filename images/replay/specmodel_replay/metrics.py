"""The /metrics of vLLM: the same names, labels and buckets, filled with what is replayed.

Speculation counters exist only where the command line asks for speculation, as in vLLM. Series that a replay
has nothing to say about (prefix cache, preemptions) exist and stay at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specmodel_replay.engine import Job

_ITERATION: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST_TOKEN: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST: Final = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip


def decades(largest: int) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50 … up to `largest`: vLLM's buckets for token counts."""
    result: list[float] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > largest:
                return result or [1.0]
            result.append(float(digit * scale))
        scale *= 10


class Metrics:
    """Owns the registry; every method takes seconds and token counts."""

    def __init__(self, *, model_name: str, speculative_tokens: int, max_model_len: int, kv_cache_dtype: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._labels: Final = {"engine": "0", "model_name": model_name}
        self._speculative_tokens = speculative_tokens
        tokens = decades(max_model_len)
        if speculative_tokens:
            self._drafts = self._counter("spec_decode_num_drafts", "Number of drafts.")
            self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Number of drafted tokens.")
            self._accepted = self._counter("spec_decode_num_accepted_tokens", "Number of accepted draft tokens.")
            self._accepted_at = self._counters(
                "spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens per draft position.",
                "position", [str(position) for position in range(speculative_tokens)],
            )  # fmt: skip
        self._running = self._gauge("num_requests_running", "Number of requests that are being decoded or prefilled.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests that wait to be admitted.")
        self._waiting_for = self._gauges(
            "num_requests_waiting_by_reason", "Waiting requests by reason.", "reason", ["capacity", "deferred"]
        )
        states = self._gauges(
            "engine_sleep_state", "Whether the engine is in this sleep state.", "sleep_state",
            ["awake", "weights_offloaded", "discard_all"],
        )  # fmt: skip
        states["awake"].set(1)
        self._cache_usage = self._gauge("kv_cache_usage_perc", "Share of the key-value cache in use; always 0 here.")
        for name in (
            "prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries", "external_prefix_cache_hits",
            "mm_cache_queries", "mm_cache_hits", "num_preemptions", "prompt_tokens_cached",
        ):  # fmt: skip
            self._counter(name, "Always 0 in a replay.")
        self._prompt_tokens = self._counter("prompt_tokens", "Number of prompt tokens.")
        self._prompt_by_source = self._counters(
            "prompt_tokens_by_source", "Prompt tokens by where they came from.", "source",
            ["local_compute", "local_cache_hit", "external_kv_transfer"],
        )  # fmt: skip
        self._generated = self._counter("generation_tokens", "Number of generated tokens.")
        self._ended = self._counters(
            "request_success", "Number of ended requests by how they ended.", "finished_reason",
            ["stop", "length", "abort", "error", "repetition"],
        )  # fmt: skip
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self._request_generated = self._histogram("request_generation_tokens", "Generated tokens of a request.", tokens)
        self._iteration = self._histogram("iteration_tokens_total", "Tokens of an engine step.", _ITERATION)
        self._request_most = self._histogram(
            "request_max_num_generation_tokens", "Most generated tokens of a request's sequences.", tokens
        )
        self._params_n = self._histogram("request_params_n", "The n of a request.", (1, 2, 5, 10, 20))
        self._params_most = self._histogram("request_params_max_tokens", "The max_tokens of a request.", tokens)
        self._first_token = self._histogram("time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN)
        self._inter_token = self._histogram("inter_token_latency_seconds", "Time between steps of a request.", _TOKEN)
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per output token of a request.", _TOKEN
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "End-to-end latency of a request.", _REQUEST)
        self._queue = self._histogram("request_queue_time_seconds", "Time a request waited.", _REQUEST)
        self._inference = self._histogram("request_inference_time_seconds", "Time a request ran.", _REQUEST)
        self._prefill = self._histogram("request_prefill_time_seconds", "Time of a request's prefill.", _REQUEST)
        self._decode = self._histogram("request_decode_time_seconds", "Time of a request's decoding.", _REQUEST)
        self._kv_computed = self._histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens computed rather than found in a cache.", tokens
        )
        Gauge(
            "vllm:cache_config_info", "The cache configuration; a replay has no cache.",
            ["engine", "cache_dtype", "enable_prefix_caching"], registry=self.registry,
        ).labels("0", kv_cache_dtype, "False").set(1)  # fmt: skip

    def text(self) -> bytes:
        """Return everything in the Prometheus text format."""
        return generate_latest(self.registry)

    def load(self, *, running: int, waiting: int) -> None:
        """Note how many requests run and wait."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._waiting_for["capacity"].set(waiting)

    def first_token(self, latency: float, prompt_tokens: int) -> None:
        """Note that a request brought its first token."""
        self._first_token.observe(latency)
        self._prompt_tokens.inc(prompt_tokens)
        self._prompt_by_source["local_compute"].inc(prompt_tokens)
        self._generated.inc()
        self._iteration.observe(prompt_tokens + 1)

    def inter_token(self, latency: float, steps: int) -> None:
        """Note the time since a request's last tokens, shared by the steps that are due together."""
        for _ in range(steps):
            self._inter_token.observe(latency / steps)

    def step(self, tokens: int, accepted: int | None) -> None:
        """Note one step of one request: its tokens, and how many of its draft were accepted (None: no draft).

        As in vLLM a step whose tokens were not all wanted any more still counts its whole draft as accepted.
        """
        self._generated.inc(tokens)
        if accepted is None or not self._speculative_tokens:
            return
        self._drafts.inc()
        self._draft_tokens.inc(self._speculative_tokens)
        self._accepted.inc(accepted)
        for position in range(accepted):
            self._accepted_at[str(position)].inc()

    def ended(self, job: Job, now: float, *, finished_reason: str) -> None:
        """Note the end of a request ("stop", "length", "abort" or "error")."""
        self._ended[finished_reason].inc()
        if finished_reason not in {"stop", "length"}:
            return
        self._request_prompt.observe(job.wanted.prompt_tokens)
        self._kv_computed.observe(job.wanted.prompt_tokens)
        self._request_generated.observe(job.emitted)
        self._request_most.observe(job.emitted)
        self._params_n.observe(1)
        self._params_most.observe(job.wanted.max_tokens)
        self._e2e.observe(now - job.arrived)
        self._queue.observe(job.admitted - job.arrived)
        self._inference.observe(now - job.admitted)
        self._prefill.observe(job.first_token - job.admitted)
        self._decode.observe(now - job.first_token)
        if job.emitted > 1:
            self._per_token.observe((now - job.first_token) / (job.emitted - 1))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, list(self._labels), registry=self.registry).labels(**self._labels)

    def _counters(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        family = Counter(f"vllm:{name}", text, [*self._labels, label], registry=self.registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, list(self._labels), registry=self.registry).labels(**self._labels)

    def _gauges(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Gauge]:
        family = Gauge(f"vllm:{name}", text, [*self._labels, label], registry=self.registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(f"vllm:{name}", text, list(self._labels), buckets=buckets, registry=self.registry)
        return family.labels(**self._labels)
