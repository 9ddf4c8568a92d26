"""The memory estimate agrees with what vLLM really had, and refuses with its arithmetic what cannot start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specmodel.domain.checkpoint import Checkpoint, read_config, read_headers
from specmodel.domain.memory import GIB, PRODUCT_GIB, UTILIZATION, Limits, Load, estimate, limits_of, misfit
from specmodel.domain.settings import H100_PRODUCTS
from tests.support.checkpoints import (
    LLAMA_8B,
    LLAMA_8B_DRAFTER,
    LLAMA_70B,
    Config,
    drafter_shapes,
    header_of,
    target_shapes,
)

H100 = ("NVIDIA-H100-80GB-HBM3",)


def made(config: Config, *, headers: bool = False) -> Checkpoint:
    checkpoint = read_config(config, source="hf://org/one@main")
    if not headers:
        return checkpoint
    shapes = drafter_shapes(config) if "draft_vocab_size" in config else target_shapes(config)
    return replace(checkpoint, tensors=read_headers([header_of(shapes)], source="x"))


def refusal(config: Config, products: tuple[str, ...] = H100, **load: Any) -> str | None:
    load = {"gpus_per_replica": 1} | load
    limits = load.get("limits", Limits())
    return misfit(estimate(made(config), None, Load(**load)), products, limits)


#: num_gpu_blocks of 16 tokens that vLLM 0.25.1 made on H200s with gpu_memory_utilization 0.8, --max-num-seqs 64:
#: (weights, GPUs, γ, blocks). From the servers' own metrics, vllm:cache_config_info.
MEASURED = [
    ("None", 1, 0, 48_900),
    ("None", 1, 3, 47_120),
    ("None", 2, 0, 105_628),
    ("None", 2, 3, 101_728),
    ("FP8", 1, 0, 52_192),
    ("FP8", 1, 3, 50_045),
    ("FP8", 2, 0, 108_932),
    ("FP8", 2, 3, 104_924),
]


@pytest.mark.parametrize("headers", [False, True], ids=["config.json alone", "with headers"])
@pytest.mark.parametrize(("weights", "gpus", "gamma", "blocks"), MEASURED)
def test_the_estimated_cache_is_within_one_percent_of_the_real_one(
    weights: str, gpus: int, gamma: int, blocks: int, headers: bool
) -> None:
    drafter = made(LLAMA_8B_DRAFTER, headers=headers) if gamma else None
    load = Load(gpus_per_replica=gpus, weights=weights)
    need = estimate(made(LLAMA_8B, headers=headers), drafter, load)
    tokens = need.tokens(PRODUCT_GIB["NVIDIA-H200"] * 0.8 * GIB)
    assert tokens == pytest.approx(blocks * 16, rel=0.01)


#: What vLLM 0.25.1 said at its start on H200s with its default utilization, in the run of
#: benchmarks/results/h200-2026-11-30 (--max-model-len 4096 --max-num-seqs 64 --load-format dummy): (weights, GPUs, γ,
#: "Model loading took" in GiB, "Available KV cache memory" in GiB, "GPU KV cache size" in tokens).
LOGGED = [
    ("None", 1, 0, 15.0, 112.28, 919_824),
    ("None", 1, 3, 15.58, 111.12, 882_672),
    ("None", 2, 0, 7.54, 119.93, 1_964_896),
    ("None", 2, 3, 7.9, 119.23, 1_894_176),
    ("FP8", 1, 0, 8.54, 118.71, 972_496),
    ("FP8", 1, 3, 9.12, 117.58, 934_000),
    ("FP8", 2, 0, 4.31, 123.16, 2_017_760),
    ("FP8", 2, 3, 4.68, 122.63, 1_948_336),
]


@pytest.mark.parametrize("logged", LOGGED, ids=lambda logged: "-".join(map(str, logged[:3])))
def test_every_term_is_near_what_the_engine_said_at_its_start(logged: tuple[str, int, int, float, float, int]) -> None:
    weights, gpus, gamma, loaded, available, tokens = logged
    need = estimate(
        made(LLAMA_8B), made(LLAMA_8B_DRAFTER) if gamma else None, Load(gpus_per_replica=gpus, weights=weights)
    )
    assert need.weights is not None
    usable = PRODUCT_GIB["NVIDIA-H200"] * UTILIZATION
    assert (need.weights + need.drafter) / GIB == pytest.approx(loaded, abs=0.25)
    assert usable - need.fixed / GIB == pytest.approx(available, rel=0.01)
    assert need.tokens(usable * GIB) == pytest.approx(tokens, rel=0.01)


def test_the_weights_of_70_billion_in_8_bits_are_those_that_vllm_loaded() -> None:
    """The log for Llama-3.1-70B in 8 bits: "Loading model weights took 67.7229 GB" (vllm-project/vllm#12569)."""
    need = estimate(made(LLAMA_70B), None, Load(gpus_per_replica=1, weights="FP8"))
    assert need.weights is not None
    assert need.weights / GIB == pytest.approx(67.72, rel=0.005)


def test_70_billion_in_16_bits_fit_no_single_h100_and_the_arithmetic_is_said() -> None:
    text = refusal(LLAMA_70B)
    assert text is not None
    assert text.startswith("needs 173.6 GiB a GPU")
    for words in ("weights 131.4", "KV of one sequence of 131072 tokens 40.0", "gives 73.2 GiB (79.6 x 0.92)"):
        assert words in text
    assert "gpusPerReplica" in text


def test_four_gpus_are_enough_for_it() -> None:
    assert refusal(LLAMA_70B, gpus_per_replica=4) is None


def test_a_length_that_does_not_fit_is_refused_with_one_that_does() -> None:
    text = refusal(LLAMA_70B, gpus_per_replica=2)
    assert text is not None
    assert "--max-model-len=" in text
    length = int(text.partition("--max-model-len=")[2].partition(" ")[0])
    assert 10_000 < length < 40_000
    fitting = Limits(served_length=length)
    assert refusal(LLAMA_70B, gpus_per_replica=2, limits=fitting) is None
    assert refusal(LLAMA_70B, gpus_per_replica=2, limits=Limits(served_length=length + 1000)) is not None


def test_an_fp8_cache_halves_what_a_sequence_needs() -> None:
    two = [estimate(made(LLAMA_8B), None, Load(gpus_per_replica=1, kv_cache=kind)).sequence for kind in ("Auto", "FP8")]
    assert two[0] == 2 * two[1] == 131_072 * 131_072


def test_the_largest_product_that_pods_may_land_on_counts() -> None:
    limits = Limits(served_length=60_000)
    assert refusal(LLAMA_70B, (*H100, "NVIDIA-H200"), gpus_per_replica=1, weights="FP8", limits=limits) is None
    assert refusal(LLAMA_70B, H100, gpus_per_replica=1, weights="FP8", limits=limits) is not None


@pytest.mark.parametrize(
    "arguments", [["--cpu-offload-gb=200"], ["--kv-cache-memory-bytes", "1G"], ["--max-model-len=auto"]]
)
def test_nothing_is_refused_where_an_argument_changes_the_arithmetic(arguments: list[str]) -> None:
    assert refusal(LLAMA_70B, limits=limits_of(arguments)) is None


def test_nothing_is_refused_where_something_is_not_known() -> None:
    assert refusal(LLAMA_70B, ("NVIDIA-B300",)) is None
    assert refusal(LLAMA_70B, ()) is None
    assert refusal({"architectures": ["MambaForCausalLM"]}) is None
    assert refusal(LLAMA_8B | {"sliding_window": 4096, "max_position_embeddings": 10**9}) is None


def test_experts_are_not_guessed_from_config_json() -> None:
    assert estimate(made(LLAMA_70B | {"num_local_experts": 8}), None, Load(gpus_per_replica=1)).weights is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Limits()),
        (["--max-model-len=4096"], Limits(served_length=4096)),
        (["--max-model-len", "4k", "--max_model_len=8K"], Limits(served_length=8192)),
        (["--gpu-memory-utilization=0.8"], Limits(utilization=0.8)),
        (["--gpu-memory-utilization", "7"], Limits()),
        (["--max-num-batched-tokens=2048"], Limits(batched_tokens=2048)),
        (["--max-model-len=-1"], Limits(is_beyond=True)),
        (["--max-model-len=many"], Limits()),
    ],
)
def test_the_users_own_arguments_are_read_as_vllm_reads_them(arguments: list[str], expected: Limits) -> None:
    assert limits_of(arguments) == expected


def test_every_default_product_has_its_memory() -> None:
    assert set(H100_PRODUCTS) <= set(PRODUCT_GIB)
