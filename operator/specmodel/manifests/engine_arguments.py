"""A candidate as vLLM's command line and environment. Knows nothing of Kubernetes: `specmodel try` runs the same.

The image's entry point is `vllm serve`; what is returned follows it. Every flag here is one of every release in
`engines`, which a test holds it to, so that nothing is rendered by version. What is left to the engine on purpose:
`--max-model-len`, `--gpu-memory-utilization` and prefix caching (the benchmark's prompts are unique, so that caching
changes nothing that is measured); `engine.extraArgs` sets them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from specmodel.api.model import DrafterMethod, KVCache, Weights
from specmodel.domain.candidate import Candidate

PORT = 8000
HUB = "hf://"
CLAIM = "pvc://"
#: Larger CUDA graphs cost start-up time and memory for batches that are compute bound anyway.
CAPTURE_MAXIMUM = 1024
#: Up to here vLLM captures every eighth size, above every sixteenth.
CAPTURE_FINE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where the engine finds the weights: a hub id or a path in its own file system."""

    model: str
    drafter: str | None = None


def claim_of(uri: str) -> tuple[str, str] | None:
    """Return (claim, path) of a `pvc://claim/path` address, or None for another."""
    if not uri.startswith(CLAIM):
        return None
    claim, _, path = uri.removeprefix(CLAIM).partition("/")
    return claim, path


def drain_seconds(candidate: Candidate) -> tuple[int, int, int]:
    """Return (preStop sleep, the engine's shutdown timeout, grace) in seconds.

    A pod first leaves the endpoints (the sleep covers the time until every node's rules know), then finishes its
    requests, and the engine's own exit takes up to 8 s more than its timeout: grace = sleep + timeout + 15.
    """
    drain = candidate.placement.drain_seconds
    sleep = min(15, max(5, drain // 4))
    shutdown = max(10, drain)
    return sleep, shutdown, sleep + shutdown + 15


def capture_size(candidate: Candidate) -> int:
    """Return the largest CUDA graph in tokens: max_num_seqs sequences of 1 + γ tokens, as vLLM sizes them."""
    tokens = min(CAPTURE_MAXIMUM, candidate.max_num_seqs * (1 + candidate.speculative_tokens))
    step = 8 if tokens <= CAPTURE_FINE else 16
    return -(-tokens // step) * step


def speculative_config(candidate: Candidate, drafter: str) -> str:
    """Return the value of `--speculative-config`. The method is always written: without it vLLM guesses by the path."""
    value: dict[str, str | int] = {
        "method": DrafterMethod.EAGLE3.value.lower(),
        "model": drafter,
        "num_speculative_tokens": candidate.speculative_tokens,
    }
    is_hub = candidate.drafter_uri == f"{HUB}{drafter}"
    if is_hub and candidate.drafter_revision:
        value["revision"] = candidate.drafter_revision
    return json.dumps(value, separators=(",", ":"))


def engine_arguments(candidate: Candidate, paths: Paths, *, host: str = "0.0.0.0", port: int = PORT) -> list[str]:  # noqa: S104 — the pod's own network
    """Return what follows `vllm serve`, one list item per argument, the user's own arguments last."""
    shutdown = drain_seconds(candidate)[1]
    arguments = [
        paths.model,
        *("--served-model-name", candidate.placement.served_name),
        *("--host", host),
        *("--port", str(port)),
    ]
    if candidate.model_uri == f"{HUB}{paths.model}":
        arguments += ["--revision", candidate.model_revision]
    arguments += ["--tensor-parallel-size", str(candidate.gpus_per_replica)]
    if candidate.speculative_tokens and paths.drafter:
        arguments += ["--speculative-config", speculative_config(candidate, paths.drafter)]
    if candidate.weights == Weights.FP8.value:
        arguments += ["--quantization", "fp8"]
    if candidate.kv_cache == KVCache.FP8.value:
        arguments += ["--kv-cache-dtype", "fp8"]
    arguments += [
        *("--max-num-seqs", str(candidate.max_num_seqs)),
        *("--max-cudagraph-capture-size", str(capture_size(candidate))),
        *("--generation-config", "vllm"),
        *("--shutdown-timeout", str(shutdown)),
    ]
    return [*arguments, *candidate.extra_args]


def engine_environment(candidate: Candidate, *, cache: str) -> dict[str, str]:
    """Return the engine's environment: every cache below one writable folder, no usage reports, a bounded start.

    A user's own variables override these.
    """
    names = {
        "HF_HOME": "huggingface",
        "VLLM_CACHE_ROOT": "vllm",
        "VLLM_CONFIG_ROOT": "vllm-config",
        "XDG_CACHE_HOME": "xdg",
        "XDG_CONFIG_HOME": "xdg-config",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "NUMBA_CACHE_DIR": "numba",
        "OUTLINES_CACHE_DIR": "outlines",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "CUDA_CACHE_PATH": "cuda",
    }
    environment = {
        "HOME": cache,
        "USER": "vllm",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(candidate.placement.startup_timeout_seconds),
    }
    environment |= {name: f"{cache}/{folder}" for name, folder in names.items()}
    uris = [candidate.model_uri, candidate.drafter_uri if candidate.speculative_tokens else None]
    if all(uri is None or uri.startswith(CLAIM) for uri in uris):
        environment["HF_HUB_OFFLINE"] = "1"
    return environment | dict(candidate.env)
