"""What a checkpoint says of itself: the facts of its config.json, its safetensors headers and its tokenizer.

    config.json ─┐
    headers ─────┼─► Checkpoint ──► compatibility (does the drafter fit?), memory (does it fit the GPU?)
    tokenizer ───┘

Files come from anywhere and are hostile: what is no plausible value becomes None, and nothing here reads a file.
`to_json` and `checkpoint_from_json` carry the facts from where the files are to where the decision is made; every text
in them is bounded, so that two checkpoints fit into a pod's termination message (4096 bytes).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

#: Bytes of one element by the name that a safetensors header gives it; F4 is packed by two.
DTYPE_BYTES: dict[str, float] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1, "F4": 0.5,
}  # fmt: skip
#: Types that the engine quantises on load and whose F32 it narrows; the others are kept as they are stored.
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
TEXT_MAXIMUM = 96
LISTED_MAXIMUM = 8
#: No number of a model is larger than that; weights in bytes have a bound of their own.
NUMBER_MAXIMUM = 2**31 - 1
BYTES_MAXIMUM = 2**50
DIMENSIONS_MAXIMUM = 6
HASH_DIGITS = 16
#: Members of a config.json that speak of layers with windows, chunks, states or shared caches.
_LESS_THAN_FULL = re.compile(
    "window|chunk|linear_|mamba|ssm|state_size|hybrid|kv_shar|compress|block_type|attn_layer|cross_attention|no_rope"
)
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


class CheckpointError(Exception):
    """What was read is no checkpoint; the message says what is wrong and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """What the safetensors headers say: sizes, and the shapes that tell whether a drafter fits."""

    #: (element type, bytes), sorted by type.
    bytes_by_dtype: tuple[tuple[str, int], ...]
    #: Bytes of the float matrices that `--quantization fp8` would halve: all but embeddings, heads and norms.
    linear_bytes: int = 0
    #: Shapes of those of `SHAPES` that are there, by short name.
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    has_kv_scales: bool = False

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(size for _, size in self.bytes_by_dtype)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of `d2t`, `t2d`, `fc`, `embed_tokens` or `lm_head`, or None when it is not there."""
        return dict(self.shapes).get(name)


#: Short name by the end of a tensor's name.
SHAPES: dict[str, str] = {
    "d2t": "d2t",
    "t2d": "t2d",
    "fc.weight": "fc",
    "embed_tokens.weight": "embed_tokens",
    "lm_head.weight": "lm_head",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """What tells two tokenizers apart."""

    #: First digits of SHA-256 over tokenizer.json, where it could be read.
    fingerprint: str | None = None
    #: Entries of its vocabulary, special ones included, where tokenizer.json could be read.
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The facts of one checkpoint. None: it does not say so, or what it says is not believed."""

    #: Where it is, in a user's words: hf://organisation/name@revision, pvc://claim/path or a folder.
    source: str
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    hidden_size: int | None = None
    #: Hidden size of the target that a drafter was made for, where it says so.
    target_hidden_size: int | None = None
    intermediate_size: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    max_positions: int | None = None
    #: Type of the rotary embedding's scaling, for example llama3 or yarn; empty without one.
    rope: str = ""
    #: Type of the weights by config.json, for example bfloat16.
    dtype: str = ""
    #: quantization_config.quant_method, for example fp8 or compressed-tensors; empty without one.
    quantization: str = ""
    has_tied_embeddings: bool = False
    #: Layers of the target whose hidden states an EAGLE3 drafter reads, where it names them.
    aux_layers: tuple[int, ...] = ()
    #: False for a drafter that says that it reads the target's last hidden state alone: it then needs no fc matrix.
    reads_aux_states: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    #: Multi-head latent attention: what one token's cache holds instead of keys and values.
    kv_lora_rank: int | None = None
    rope_head_dim: int | None = None
    #: False when some layers keep less than every token's keys and values (sliding windows, state space layers).
    has_full_attention: bool = True
    num_experts: int | None = None
    #: Of a checkpoint in speculators' format: its kind of drafter, and the target that it was trained for.
    speculators_type: str = ""
    verifier: str = ""
    verifier_architectures: tuple[str, ...] = ()
    #: None where no safetensors header could be read: then only config.json speaks.
    tensors: Tensors | None = None
    #: Bytes of the weight files, where no header could be read but their sizes could.
    file_bytes: int | None = None
    #: True when the weights are pickle files (pytorch_model.bin), which are never loaded here.
    is_pickle: bool = False
    tokenizer: Tokenizer | None = None

    def to_json(self) -> str:
        """Return the facts as compact JSON without what is not known, for `checkpoint_from_json`."""
        known = {key: value for key, value in asdict(self).items() if value not in (None, "", (), [])}
        kept = {key: value for key, value in known.items() if key not in _TRUTHS or value != _TRUTHS[key]}
        return json.dumps(kept, separators=(",", ":"), ensure_ascii=True)


def read_config(config: object, *, source: str) -> Checkpoint:
    """Return the facts of a parsed config.json, without tensors. Raises `CheckpointError` when it describes no model.

    A multimodal model is described by its `text_config`, a checkpoint in speculators' format by its
    `transformer_layer_config`.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError(f"{source}: config.json is no JSON object")
    inner = _inner(config)
    verifier = _mapping(_mapping(config.get("speculators_config")).get("verifier"))
    eagle = _mapping(config.get("eagle_config"))
    aux = eagle.get("eagle_aux_hidden_state_layer_ids", config.get("eagle_aux_hidden_state_layer_ids"))
    checkpoint = Checkpoint(
        source=_text(source),
        architectures=_texts(config.get("architectures")) or _texts(inner.get("architectures")),
        model_type=_text(inner.get("model_type")) or _text(config.get("model_type")),
        hidden_size=_number(_first(inner, "hidden_size", "n_embd", "d_model")),
        target_hidden_size=_number(config.get("target_hidden_size")),
        intermediate_size=_number(inner.get("intermediate_size")),
        num_layers=_number(_first(inner, "num_hidden_layers", "n_layer", "num_layers")),
        num_heads=_number(_first(inner, "num_attention_heads", "n_head")),
        num_kv_heads=_number(inner.get("num_key_value_heads")),
        head_dim=_number(inner.get("head_dim")),
        vocab_size=_number(inner.get("vocab_size")),
        draft_vocab_size=_number(config.get("draft_vocab_size")),
        max_positions=_number(_first(inner, "max_position_embeddings", "n_positions", "max_sequence_length")),
        rope=_rope(inner),
        dtype=_text(_first(inner, "dtype", "torch_dtype")) or _text(_first(config, "dtype", "torch_dtype")),
        quantization=_quantization(config, inner),
        has_tied_embeddings=_first(inner, "tie_word_embeddings") is True,
        aux_layers=tuple(n for n in _list(aux) if _is_count(n))[:LISTED_MAXIMUM],
        reads_aux_states=eagle.get("use_aux_hidden_state") is not False,
        bos_token_id=_token(_first(config, "bos_token_id"), _first(inner, "bos_token_id")),
        eos_token_id=_token(_first(config, "eos_token_id"), _first(inner, "eos_token_id")),
        kv_lora_rank=_number(inner.get("kv_lora_rank")),
        rope_head_dim=_number(inner.get("qk_rope_head_dim")),
        has_full_attention=_has_full_attention(inner),
        num_experts=_number(_first(inner, "num_local_experts", "num_experts", "n_routed_experts")),
        speculators_type=_text(config.get("speculators_model_type")),
        verifier=_text(verifier.get("name_or_path")),
        verifier_architectures=_texts(verifier.get("architectures")),
    )
    if not checkpoint.architectures and checkpoint.hidden_size is None:
        raise CheckpointError(f"{source}: config.json names neither architectures nor hidden_size: it is no model")
    return checkpoint


def read_headers(headers: list[Mapping[str, Any]], *, source: str) -> Tensors:
    """Return what the parsed headers of all of a checkpoint's safetensors files say together.

    Raises `CheckpointError` when one is no header.
    """
    sizes: dict[str, int] = {}
    linear = 0
    shapes: dict[str, tuple[int, ...]] = {}
    has_kv_scales = False
    for header in headers:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, shape = _entry(name, entry, source)
            size = int(_product(shape) * DTYPE_BYTES.get(dtype, 1))
            sizes[dtype] = sizes.get(dtype, 0) + size
            short = next((short for end, short in SHAPES.items() if name == end or name.endswith(f".{end}")), None)
            if short is not None:
                shapes.setdefault(short, shape)
            elif dtype in FLOATS and len(shape) > 1 and name.endswith("weight"):
                linear += size
            has_kv_scales = has_kv_scales or name.endswith((".k_scale", ".v_scale", ".kv_scale"))
    if not sizes:
        raise CheckpointError(f"{source}: its safetensors files hold no tensor")
    if sum(sizes.values()) > BYTES_MAXIMUM:
        raise CheckpointError(f"{source}: its safetensors headers name more than {BYTES_MAXIMUM >> 40} TiB")
    return Tensors(
        bytes_by_dtype=tuple(sorted(sizes.items())),
        linear_bytes=linear,
        shapes=tuple(sorted(shapes.items())),
        has_kv_scales=has_kv_scales,
    )


def checkpoint_from_json(text: str) -> Checkpoint:
    """Return the checkpoint that `Checkpoint.to_json` wrote. Raises `CheckpointError` for anything else."""
    try:
        value = json.loads(text)
        return checkpoint_from_value(value)
    except (RecursionError, ValueError) as error:
        raise CheckpointError(f"no facts of a checkpoint: {error}"[:200]) from error


def checkpoint_from_value(value: object) -> Checkpoint:
    """Return the checkpoint of a value as `to_json` writes it. Raises `CheckpointError` for anything else.

    It comes through a pod that anyone may have written to, so each member is checked again.
    """
    if not isinstance(value, Mapping):
        raise CheckpointError("no facts of a checkpoint: not an object")
    unknown = set(value) - {one.name for one in fields(Checkpoint)}
    if unknown or not _text(value.get("source")):
        raise CheckpointError(f"no facts of a checkpoint: {', '.join(sorted(map(str, unknown)))[:100] or 'no source'}")
    tokenizer = value.get("tokenizer")
    members: dict[str, Any] = {"source": _text(value["source"])}
    for name in ("model_type", "rope", "dtype", "quantization", "speculators_type", "verifier"):
        members[name] = _text(value.get(name))
    for name in ("architectures", "verifier_architectures"):
        members[name] = _texts(value.get(name))
    for name in _NUMBERS:
        members[name] = _number(value.get(name))
    for name in ("bos_token_id", "eos_token_id"):
        members[name] = _token(value.get(name))
    for name, default in _TRUTHS.items():
        members[name] = value.get(name) is True if name in value else default
    members["file_bytes"] = _size(value.get("file_bytes"))
    members["aux_layers"] = tuple(n for n in _list(value.get("aux_layers")) if _is_count(n))[:LISTED_MAXIMUM]
    members["tensors"] = _tensors(value.get("tensors"))
    if isinstance(tokenizer, Mapping):
        fingerprint = _text(tokenizer.get("fingerprint"))[:HASH_DIGITS] or None
        members["tokenizer"] = Tokenizer(fingerprint=fingerprint, vocab_size=_number(tokenizer.get("vocab_size")))
    return Checkpoint(**members)


#: What is true or false, and what holds where nothing is said.
_TRUTHS = {"has_tied_embeddings": False, "has_full_attention": True, "is_pickle": False, "reads_aux_states": True}
_NUMBERS = (
    "hidden_size", "target_hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
    "vocab_size", "draft_vocab_size", "max_positions", "kv_lora_rank", "rope_head_dim", "num_experts",
)  # fmt: skip


def _tensors(value: object) -> Tensors | None:
    if not isinstance(value, Mapping):
        return None
    sizes = tuple(
        (_text(pair[0]), pair[1])
        for pair in _list(value.get("bytes_by_dtype"))
        if isinstance(pair, list | tuple) and len(pair) == 2 and _is_count(pair[1]) and pair[1] <= BYTES_MAXIMUM
    )
    shapes = tuple(
        (_text(pair[0]), tuple(n for n in _list(pair[1]) if _is_count(n))[:DIMENSIONS_MAXIMUM])
        for pair in _list(value.get("shapes"))
        if isinstance(pair, list | tuple) and len(pair) == 2
    )
    return Tensors(
        bytes_by_dtype=sizes[: len(DTYPE_BYTES)],
        linear_bytes=_size(value.get("linear_bytes")) or 0,
        shapes=shapes[: len(SHAPES)],
        has_kv_scales=value.get("has_kv_scales") is True,
    )


def _entry(name: str, entry: object, source: str) -> tuple[str, tuple[int, ...]]:
    entry = _mapping(entry)
    dtype, shape = _text(entry.get("dtype"))[:16], entry.get("shape")
    is_shape = isinstance(shape, list) and len(shape) <= DIMENSIONS_MAXIMUM and all(_is_count(n) for n in shape)
    if not dtype or not is_shape:
        raise CheckpointError(f"{source}: tensor {_text(name)!r} has no type and shape in its safetensors header")
    return dtype, tuple(shape or ())


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for number in shape:
        result *= number
    return result


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part that describes the language model."""
    for name in ("transformer_layer_config", "text_config", "llm_config", "language_config"):
        inner = _mapping(config.get(name))
        if inner and "hidden_size" in inner and "hidden_size" not in config:
            return inner
    return config


def _rope(config: Mapping[str, Any]) -> str:
    for name in ("rope_scaling", "rope_parameters"):
        scaling = _mapping(config.get(name))
        kind = _text(_first(scaling, "rope_type", "type"))
        if kind and kind != "default":
            return kind
    return ""


def _quantization(config: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    for holder in (config, inner):
        for name in ("quantization_config", "compression_config"):
            found = _mapping(holder.get(name))
            if found:
                return _text(found.get("quant_method")) or _text(found.get("quant_algo")) or "unnamed"
    return ""


def _has_full_attention(config: Mapping[str, Any]) -> bool:
    """Return whether every layer keeps every token's keys and values; False where anything hints at less."""
    if any(kind != "full_attention" for kind in _list(config.get("layer_types"))):
        return False
    has_no_window = config.get("use_sliding_window") is False or config.get("sliding_window") is None
    for name, value in config.items():
        is_hint = isinstance(name, str) and _LESS_THAN_FULL.search(name) and name != "compression_config"
        if is_hint and value not in (None, False, 0, "", [], {}) and not ("window" in name and has_no_window):
            return False
    return True


def _first(value: Mapping[str, Any], *names: str) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(value[:4096]) if isinstance(value, list | tuple) else []


def _text(value: object) -> str:
    return _UNPRINTABLE.sub("?", value[:TEXT_MAXIMUM]) if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for item in _list(value)[:LISTED_MAXIMUM] if (text := _text(item)))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _size(value: object) -> int | None:
    """Return a size in bytes, or None."""
    is_plausible = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= BYTES_MAXIMUM
    return value if is_plausible and isinstance(value, int) else None


def _number(value: object) -> int | None:
    """Return a whole number above 0, or None."""
    is_plausible = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= NUMBER_MAXIMUM
    return value if is_plausible and isinstance(value, int) else None


def _token(*values: object) -> int | None:
    """Return a token's id; of several, the first."""
    for value in values:
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int) and not isinstance(first, bool) and 0 <= first <= NUMBER_MAXIMUM:
            return first
    return None
