"""Makes a replay table from what `vllm bench serve` saved, so that users can replay engines they measured themselves.

Input is the JSON that `--save-result` writes: one result per file, or a list of results (one per
concurrency). Nothing is smoothed or invented: the table holds the numbers as measured.
"""

from __future__ import annotations

from typing import Any

from specmodel_replay.table import FORMAT, Shape, TableError

_STATISTICS = ("mean", "std", "p50", "p90", "p95", "p99")


def table_from_results(
    results: list[dict[str, Any]], shape: Shape, name: str, provenance: dict[str, str]
) -> dict[str, Any]:
    """Return one configuration in the table format; raises TableError naming the key that a result lacks."""
    ordered = sorted(results, key=lambda result: int(_need(result, "max_concurrency", name)))
    if not ordered:
        raise TableError(f"{name}: no results to make a table of")
    first = ordered[0]
    completed = int(_need(first, "completed", name))
    return {
        "format": FORMAT,
        "name": name,
        "tensorParallelSize": shape.tensor_parallel_size,
        "speculativeTokens": shape.speculative_tokens,
        "weights": shape.weights,
        "inputTokens": round(_need(first, "total_input_tokens", name) / completed),
        "outputTokens": round(_need(first, "total_output_tokens", name) / completed),
        "provenance": provenance,
        "levels": [_level(result, shape.speculative_tokens, name) for result in ordered],
    }


def _level(result: dict[str, Any], speculative_tokens: int, name: str) -> dict[str, Any]:
    if _need(result, "failed", name):
        raise TableError(
            f"{name}: the result at concurrency {result['max_concurrency']} has failed requests; measure again"
        )
    level: dict[str, Any] = {
        "concurrency": _need(result, "max_concurrency", name),
        "requests": _need(result, "completed", name),
        "durationSeconds": round(_need(result, "duration", name), 6),
        "requestsPerSecond": round(_need(result, "request_throughput", name), 6),
    }
    for theirs, ours in (("e2el", "e2e"), ("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl")):
        level[f"{ours}Milliseconds"] = {
            statistic: round(_need(result, f"{statistic}_{theirs}_ms", name), 3) for statistic in _STATISTICS
        }
    if speculative_tokens:
        level["acceptance"] = {
            "drafts": _need(result, "spec_decode_num_drafts", name),
            "draftTokens": _need(result, "spec_decode_draft_tokens", name),
            "acceptedTokens": _need(result, "spec_decode_accepted_tokens", name),
            "perPosition": [
                round(rate, 6) for rate in _need(result, "spec_decode_per_position_acceptance_rates", name)
            ],
        }
    return level


def _need(result: dict[str, Any], key: str, name: str) -> Any:
    if result.get(key) is None:
        raise TableError(
            f"{name}: a result lacks {key!r}; run `vllm bench serve` with --save-result"
            " --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,95,99"
        )
    return result[key]
