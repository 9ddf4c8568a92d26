"""Whether a candidate fits the memory of its GPUs: arithmetic over what the checkpoints say, in GiB. Pure.

    memory of the product x gpu-memory-utilization
      ≥ weights / GPUs + drafter / GPUs + the engine's own + KV of one sequence of the served length

vLLM refuses to start when that does not hold, minutes after it took the GPUs. Figures of one GPU; the drafter is
sharded like the target, and shares the target's embedding. Compared with what vLLM 0.25.1 really had on H200s, in two
runs of eight configurations (tests/unit/test_memory.py), the KV cache is within 1 % and the weights within 0.25 GiB.
Where a term cannot be known it counts as 0: a refusal must be certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specmodel.api.model import KVCache, Weights
from specmodel.domain.checkpoint import FLOATS, Checkpoint

GIB = 2**30
#: Total memory in GiB as the driver reports it, by value of the label nvidia.com/gpu.product.
PRODUCT_GIB: dict[str, float] = {
    "NVIDIA-H100-80GB-HBM3": 79.6,
    "NVIDIA-H100-PCIe": 79.6,
    "NVIDIA-H100-NVL": 93.6,
    "NVIDIA-H200": 140.4,
    "NVIDIA-H200-NVL": 140.4,
    "NVIDIA-A100-SXM4-80GB": 80.0,
    "NVIDIA-A100-80GB-PCIe": 80.0,
    "NVIDIA-A100-SXM4-40GB": 40.0,
    "NVIDIA-A100-PCIE-40GB": 40.0,
    "NVIDIA-L40S": 45.0,
    "NVIDIA-L4": 22.5,
}
#: vLLM's default of --gpu-memory-utilization, the largest of the supported releases: a refusal must hold for all.
UTILIZATION = 0.92
#: vLLM's default of --max-num-batched-tokens for a server on GPUs of this size.
BATCHED_TOKENS = 8192
#: CUDA context, communication buffers and the allocator's rest of one GPU.
CONTEXT_BYTES = 0.6 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What `engine.extraArgs` say about memory. None: vLLM's default."""

    served_length: int | None = None
    utilization: float | None = None
    batched_tokens: int | None = None
    #: True when an argument changes what is in the GPU's memory in a way that is not counted here.
    is_beyond: bool = False


#: Flags after which the arithmetic here no longer holds.
BEYOND_FLAGS = frozenset(
    {
        "--cpu-offload-gb", "--cpu-offload-params", "--offload-backend", "--kv-cache-memory-bytes", "--hf-overrides",
        "--num-gpu-blocks-override", "--load-format", "--enable-expert-parallel", "-ep", "--dtype",
    }
)  # fmt: skip
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def limits_of(extra_args: Sequence[str]) -> Limits:
    """Return what the user's own arguments say about memory, the last of each flag, as vLLM reads them."""
    values: dict[str, str] = {}
    for index, argument in enumerate(extra_args):
        if not argument.startswith("-"):
            continue
        flag, has_value, value = argument.partition("=")
        flag = "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag
        follows = extra_args[index + 1] if index + 1 < len(extra_args) else ""
        values[flag.partition(".")[0]] = value if has_value else follows
    utilization = _fraction(values.get("--gpu-memory-utilization") or values.get("--device-memory-utilization"))
    return Limits(
        served_length=_whole(values.get("--max-model-len")),
        utilization=utilization,
        batched_tokens=_whole(values.get("--max-num-batched-tokens")),
        is_beyond=bool(BEYOND_FLAGS & set(values)) or values.get("--max-model-len", "") in ("-1", "auto"),
    )


def _whole(text: str | None) -> int | None:
    """Return 4096, 4k (4000) or 4K (4096) as vLLM reads them, None for what is no such number."""
    if not text:
        return None
    number, factor = (text[:-1], _SUFFIXES[text[-1]]) if text[-1] in _SUFFIXES else (text, 1)
    try:
        value = float(number) * factor
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and 0 < value < 2**40 else None


def _fraction(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one GPU of a candidate must hold, in bytes. A term that is not known is None and counts as 0."""

    weights: float | None
    drafter: float
    engine: float
    kv_per_token: float | None
    #: Tokens of the longest sequence that is served.
    length: int | None

    @property
    def fixed(self) -> float:
        """Everything but the KV cache."""
        return (self.weights or 0) + self.drafter + self.engine

    @property
    def sequence(self) -> float:
        """KV of one sequence of the served length."""
        return (self.kv_per_token or 0) * (self.length or 0)

    @property
    def total(self) -> float:
        """The least memory with which the engine starts."""
        return self.fixed + self.sequence

    def tokens(self, memory: float) -> int | None:
        """Return how many tokens of KV cache fit into that much usable memory, None when that is not known."""
        if self.weights is None or not self.kv_per_token:
            return None
        return max(0, math.floor((memory - self.fixed) / self.kv_per_token))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What of a candidate matters for memory."""

    gpus_per_replica: int
    weights: str = Weights.NONE.value
    kv_cache: str = KVCache.AUTO.value
    max_num_seqs: int = 64
    limits: Limits = Limits()


def estimate(target: Checkpoint, drafter: Checkpoint | None, load: Load) -> Need:
    """Return what one GPU must hold. `drafter` None: a candidate without one."""
    gpus = load.gpus_per_replica
    weights = _weights(target, load.weights)
    kv = _kv_per_token(target, gpus, load.kv_cache)
    own = 0.0
    if drafter is not None:
        own = max(0.0, (_weights(drafter, Weights.NONE.value) or 0) - _shared_embedding(target, drafter)) / gpus
        if kv is not None:
            kv += _kv_per_token(drafter, gpus, load.kv_cache) or 0
    return Need(
        weights=None if weights is None else weights / gpus,
        drafter=own,
        engine=_engine(target, load),
        kv_per_token=kv,
        length=load.limits.served_length or target.max_positions,
    )


def misfit(need: Need, products: Iterable[str], limits: Limits) -> str | None:
    """Return why the engine cannot start on any of these products, with the arithmetic; None when it may.

    None too where a product's memory is not known, and where an argument of the user changes the arithmetic.
    """
    known = {product: PRODUCT_GIB.get(product) for product in products}
    if limits.is_beyond or not known or None in known.values():
        return None
    product, size = max(((name, gib or 0.0) for name, gib in known.items()), key=lambda pair: pair[1])
    utilization = limits.utilization or UTILIZATION
    usable = size * utilization
    if need.total / GIB <= usable:
        return None
    parts = [f"weights {_gib(need.weights or 0)}"]
    if need.drafter:
        parts.append(f"drafter {_gib(need.drafter)}")
    parts.append(f"engine {_gib(need.engine)}")
    if need.sequence:
        parts.append(f"KV of one sequence of {need.length} tokens {_gib(need.sequence)}")
    text = f"needs {_gib(need.total)} GiB a GPU ({', '.join(parts)}), {product} gives {usable:.1f} GiB "
    text += f"({size:.1f} x {utilization:g})"
    return f"{text}: {_way_out(need, usable)}"


def _way_out(need: Need, usable: float) -> str:
    room = usable * GIB - need.fixed
    if room > 0 and need.kv_per_token:
        fitting = int(room / need.kv_per_token) // 16 * 16
        return f"write --max-model-len={fitting} or less in engine.extraArgs, or use more gpusPerReplica"
    return "use more gpusPerReplica, FP8 weights or a product with more memory"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def _weights(checkpoint: Checkpoint, weights: str) -> float | None:
    """Return the bytes of a checkpoint's weights as the engine holds them, None when they cannot be known."""
    is_fp8 = weights == Weights.FP8.value
    if checkpoint.tensors is not None:
        sizes = dict(checkpoint.tensors.bytes_by_dtype)
        narrowed = sum(size / {"F64": 4, "F32": 2}.get(dtype, 1) for dtype, size in sizes.items())
        if not is_fp8:
            return narrowed
        floats = sum(size for dtype, size in sizes.items() if dtype in FLOATS)
        linear = min(checkpoint.tensors.linear_bytes, floats)
        return narrowed - linear / 2 if floats == sizes.get("BF16", 0) + sizes.get("F16", 0) else narrowed / 2
    if checkpoint.file_bytes is not None:
        return checkpoint.file_bytes / (2 if is_fp8 else 1)
    count = _parameters(checkpoint)
    if count is None:
        return None
    return count[0] * (1 if is_fp8 else _element(checkpoint)) + count[1] * _element(checkpoint)


def _element(checkpoint: Checkpoint) -> float:
    """Return the bytes of one weight by config.json; F32 is narrowed by the engine."""
    if checkpoint.quantization:
        return 0.5
    return 1 if "float8" in checkpoint.dtype else 2


def _parameters(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Return (weights of matrices, weights of embeddings and head) of a dense Llama-like model by its config alone.

    None for another kind of model, and where config.json does not say enough.
    """
    c = checkpoint
    hidden, inner, layers, heads = c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads
    if hidden is None or inner is None or layers is None or heads is None or c.vocab_size is None:
        return None
    if c.num_experts is not None or c.kv_lora_rank is not None:
        return None
    size = c.head_dim or hidden // heads
    is_drafter = any("eagle3" in name.lower() for name in c.architectures) or bool(c.speculators_type)
    width = 2 * hidden if is_drafter else hidden
    attention = width * size * (heads + 2 * (c.num_kv_heads or heads)) + heads * size * hidden
    linear = layers * (attention + 3 * hidden * inner)
    if is_drafter:
        return linear + AUX_WIDTH * hidden * hidden, hidden * (c.vocab_size + (c.draft_vocab_size or c.vocab_size))
    return linear, hidden * c.vocab_size * (1 if c.has_tied_embeddings else 2)


#: EAGLE3's fc matrix takes three hidden states to one.
AUX_WIDTH = 3


def _shared_embedding(target: Checkpoint, drafter: Checkpoint) -> float:
    """Return the bytes of the drafter's embedding that the engine drops in favour of the target's."""
    if drafter.hidden_size is None or drafter.hidden_size != target.hidden_size or drafter.vocab_size is None:
        return 0
    has_own = drafter.tensors is None or drafter.tensors.shape("embed_tokens") is not None
    return 2.0 * drafter.hidden_size * drafter.vocab_size if has_own else 0


def _kv_per_token(checkpoint: Checkpoint, gpus: int, kv_cache: str) -> float | None:
    """Return the bytes of one token's keys and values on one GPU, None where layers keep less than every token's."""
    c, element = checkpoint, 1 if kv_cache == KVCache.FP8.value else 2
    if not c.has_full_attention or c.num_layers is None:
        return None
    if c.kv_lora_rank is not None:
        return float(c.num_layers * (c.kv_lora_rank + (c.rope_head_dim or 0)) * element)
    if c.num_heads is None or (c.head_dim is None and c.hidden_size is None):
        return None
    size = c.head_dim or (c.hidden_size or 0) // c.num_heads
    heads = math.ceil((c.num_kv_heads or c.num_heads) / gpus)
    return float(2 * c.num_layers * heads * size * element)


def _engine(target: Checkpoint, load: Load) -> float:
    """Return what one GPU holds beside weights and KV: the context, and the activations of the largest batch.

    Two hidden states and the two halves and the product of one gated MLP, in 16 bits, and the logits in 32.
    """
    tokens = load.limits.batched_tokens or BATCHED_TOKENS
    hidden, inner = target.hidden_size or 0, (target.intermediate_size or 0) / load.gpus_per_replica
    logits = 4.0 * load.max_num_seqs * (target.vocab_size or 0)
    return CONTEXT_BYTES + 2.0 * tokens * (2 * hidden + 3 * inner) + logits
