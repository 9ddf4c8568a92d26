"""Whether a drafter fits its target, and both fit a number of GPUs, from what the checkpoints say of themselves. Pure.

An engine finds most of this out minutes after it has taken a GPU, some of it never: EAGLE's vocabulary is not checked
at all, and a drafter of another model loads and is accepted seldom. Every finding names both values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from specmodel.api.model import KVCache, Weights
from specmodel.domain.checkpoint import Checkpoint

#: Hidden states that EAGLE3 reads from the target: a low, a middle and a high layer.
AUX_STATES = 3
#: A drafter with more layers than this that does not call itself EAGLE3 is a whole model.
DRAFTER_LAYERS_MAXIMUM = 4

#: Types of rotary embedding with which max_position_embeddings is the longest sequence; others multiply it by a factor.
UNSTRETCHED = frozenset({"", "llama3"})


class Severity(StrEnum):
    """`Incompatible`: cannot work. `Warning`: works, but look. `Unknown`: could not be checked."""

    INCOMPATIBLE = "Incompatible"
    WARNING = "Warning"
    UNKNOWN = "Unknown"


class About(StrEnum):
    """Whom a finding is about: what is about the target holds without a drafter too."""

    TARGET = "target"
    DRAFTER = "drafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found, with both values in its message."""

    code: str
    severity: Severity
    about: About
    message: str


def check_pair(  # noqa: PLR0913 — the pair, and what a candidate makes of it
    target: Checkpoint,
    drafter: Checkpoint | None,
    *,
    gpus_per_replica: int,
    served_length: int | None,
    weights: str = Weights.NONE.value,
    kv_cache: str = KVCache.AUTO.value,
) -> tuple[Finding, ...]:
    """Return everything found about a target and its drafter (None: without one), the worst first.

    `gpus_per_replica` is the tensor parallel size, `served_length` the longest sequence in tokens (`--max-model-len`;
    None: the target's own), `weights` and `kv_cache` the candidate's. No finding is Incompatible: it may be tried.
    """
    findings = list(_check_target(target, gpus_per_replica, served_length, weights, kv_cache))
    if drafter is not None:
        findings += _check_kind(drafter)
        findings += _check_sizes(target, drafter)
        findings += _check_vocabulary(target, drafter)
        findings += _check_parallel(drafter, About.DRAFTER, gpus_per_replica)
        findings += _check_length(target, drafter, served_length)
        findings += _check_origin(target, drafter)
    order = list(Severity)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def _bad(code: str, about: About, message: str) -> Finding:
    return Finding(code=code, severity=Severity.INCOMPATIBLE, about=about, message=message)


def _warn(code: str, about: About, message: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, about=about, message=message)


def _unknown(code: str, about: About, message: str) -> Finding:
    return Finding(code=code, severity=Severity.UNKNOWN, about=about, message=message)


def _check_target(
    target: Checkpoint, gpus: int, served_length: int | None, weights: str, kv_cache: str
) -> Iterator[Finding]:
    about = About.TARGET
    if _is_drafter(target):
        names = ", ".join(target.architectures) or target.speculators_type
        yield _bad(
            "TargetIsDrafter",
            about,
            f"model.uri {target.source} is a drafter ({names}): write its target there, and this one in drafter.uri",
        )
    if weights == Weights.FP8.value and target.quantization:
        yield _bad(
            "AlreadyQuantized",
            about,
            f"weights FP8 are asked of {target.source}, which is stored quantised ({target.quantization}): "
            "write Checkpoint instead of FP8 in quantization.weights",
        )
    if kv_cache == KVCache.FP8.value and target.tensors is not None and not target.tensors.has_kv_scales:
        yield _warn(
            "KVScalesMissing",
            about,
            f"quantization.kvCache FP8 and {target.source} holds no k_scale and v_scale: scales of 1 are used, "
            "compare the answers' quality",
        )
    limit = target.max_positions if target.rope in UNSTRETCHED else None
    if served_length is not None and limit is not None and served_length > limit:
        yield _bad(
            "PositionsTooFew",
            about,
            f"--max-model-len {served_length} is above the target's max_position_embeddings {limit}: "
            f"write --max-model-len={limit} or less in engine.extraArgs",
        )
    yield from _check_parallel(target, about, gpus)


def _is_drafter(checkpoint: Checkpoint) -> bool:
    names = (*checkpoint.architectures, checkpoint.speculators_type)
    has_layer = checkpoint.tensors is not None and checkpoint.tensors.shape("d2t") is not None
    return has_layer or any("eagle" in name.lower() for name in names)


def _check_parallel(checkpoint: Checkpoint, about: About, gpus: int) -> Iterator[Finding]:
    """Both are split over all GPUs: the drafter is sharded like the target."""
    if gpus <= 1:
        return
    whose = "the drafter's" if about is About.DRAFTER else "the target's"
    for name, number in (
        ("num_attention_heads", checkpoint.num_heads),
        ("intermediate_size", checkpoint.intermediate_size),
    ):
        if number is not None and number % gpus:
            yield _bad(
                "HeadsNotDivisible" if name == "num_attention_heads" else "SizeNotDivisible",
                about,
                f"{whose} {name} {number} is not divisible by gpusPerReplica {gpus}",
            )
    heads = checkpoint.num_kv_heads
    if heads is not None and (heads % gpus if heads >= gpus else gpus % heads):
        yield _bad(
            "HeadsNotDivisible",
            about,
            f"{whose} num_key_value_heads {heads} and gpusPerReplica {gpus}: neither divides the other",
        )


def _check_kind(drafter: Checkpoint) -> Iterator[Finding]:
    about, names = About.DRAFTER, ", ".join(drafter.architectures)
    if drafter.speculators_type and drafter.speculators_type.lower() != "eagle3":
        yield _bad(
            "NotEagle3",
            about,
            f"{drafter.source} is a drafter of kind {drafter.speculators_type}, the method is EAGLE3: use an EAGLE3 "
            "drafter",
        )
        return
    if drafter.is_pickle:
        yield _unknown(
            "PickleOnly",
            about,
            f"{drafter.source} holds its weights as pickle files (.bin) only, which are not opened here: "
            "its tensors are not checked",
        )
    elif drafter.tensors is None:
        yield _unknown("HeadersNotRead", about, f"no safetensors header of {drafter.source} was read, only config.json")
    calls_itself = bool(drafter.speculators_type) or any("eagle3" in name.lower() for name in drafter.architectures)
    layers = drafter.num_layers
    if drafter.tensors is not None and drafter.tensors.shape("fc") is None and drafter.reads_aux_states:
        yield _bad(
            "NotEagle3",
            about,
            f"{drafter.source} ({names}, {layers} layers) has no tensor fc.weight, which every EAGLE3 drafter has: "
            "it is another kind of model",
        )
    elif not calls_itself and layers is not None and layers > DRAFTER_LAYERS_MAXIMUM:
        yield _bad(
            "NotEagle3",
            about,
            f"{drafter.source} ({names}) has {layers} layers: it is a whole model, no EAGLE3 drafter",
        )
    elif not calls_itself:
        yield _warn(
            "ArchitectureUnnamed",
            about,
            f"{drafter.source} calls itself {names or 'nothing'}, not EAGLE3: some releases of vLLM refuse it",
        )


def _check_sizes(target: Checkpoint, drafter: Checkpoint) -> Iterator[Finding]:
    about = About.DRAFTER
    name = "hidden_size" if drafter.target_hidden_size is None else "target_hidden_size"
    made_for = drafter.target_hidden_size or drafter.hidden_size
    if made_for is None or target.hidden_size is None:
        yield _unknown("SizesUnknown", about, "hidden_size is missing in config.json of the drafter or the target")
    elif made_for != target.hidden_size:
        yield _bad("HiddenSizeDiffers", about, f"drafter {name} {made_for}, target hidden_size {target.hidden_size}")
    has_shapes = drafter.tensors is not None and not drafter.quantization and drafter.reads_aux_states
    fc = drafter.tensors.shape("fc") if drafter.tensors is not None and has_shapes else None
    if fc is not None and len(fc) == 2 and target.hidden_size is not None:
        states = len(drafter.aux_layers) or AUX_STATES
        wanted = states * target.hidden_size
        if fc[1] != wanted and not (fc[1] == 2 * target.hidden_size and states == 2):
            kind = " (an EAGLE drafter of the first kind has 2)" if fc[1] == 2 * target.hidden_size else ""
            yield _bad(
                "HiddenSizeDiffers",
                about,
                f"drafter fc.weight reads {fc[1]} values, {states} hidden states of the target have "
                f"{states} x {target.hidden_size} = {wanted}{kind}",
            )
    has_embedding = drafter.tensors is None or drafter.tensors.shape("embed_tokens") is not None
    differs = None not in (drafter.hidden_size, target.hidden_size) and drafter.hidden_size != target.hidden_size
    if differs and not has_embedding:
        yield _bad(
            "EmbeddingMissing",
            about,
            f"drafter hidden_size {drafter.hidden_size} differs from the target's {target.hidden_size}, and the "
            "drafter brings no embed_tokens.weight of its own",
        )
    if target.num_layers is not None:
        above = [layer for layer in drafter.aux_layers if layer > target.num_layers]
        if above:
            yield _bad(
                "LayersOutOfRange",
                about,
                f"drafter reads hidden states of layers {', '.join(map(str, drafter.aux_layers))}, the target has "
                f"{target.num_layers} layers",
            )


def _check_vocabulary(target: Checkpoint, drafter: Checkpoint) -> Iterator[Finding]:
    about = About.DRAFTER
    if drafter.vocab_size is None or target.vocab_size is None:
        yield _unknown("VocabularyUnknown", about, "vocab_size is missing in config.json of the drafter or the target")
    elif drafter.vocab_size != target.vocab_size:
        yield _bad(
            "VocabularyDiffers",
            about,
            f"drafter vocab_size {drafter.vocab_size}, target vocab_size {target.vocab_size}",
        )
    draft = drafter.draft_vocab_size
    if draft is not None and target.vocab_size is not None and draft > target.vocab_size:
        yield _bad(
            "DraftVocabularyDiffers",
            about,
            f"drafter draft_vocab_size {draft} is above the target's vocab_size {target.vocab_size}",
        )
    if drafter.tensors is None:
        return
    d2t, t2d, head = (drafter.tensors.shape(name) for name in ("d2t", "t2d", "lm_head"))
    rows = draft if draft is not None else drafter.vocab_size
    is_reduced = rows is not None and target.vocab_size is not None and rows < target.vocab_size
    if is_reduced and d2t is None:
        yield _bad(
            "MappingMissing",
            about,
            f"drafter draft_vocab_size {rows} is below the target's vocab_size {target.vocab_size}, and tensor d2t, "
            "which maps one to the other, is missing",
        )
    if t2d and target.vocab_size is not None and t2d[0] != target.vocab_size:
        yield _warn(
            "DraftVocabularyDiffers",
            about,
            f"drafter t2d has {t2d[0]} rows, the target's vocab_size is {target.vocab_size}: it was made for another",
        )
    for name, shape in (("d2t", d2t), ("lm_head.weight", None if drafter.quantization else head)):
        if shape and rows is not None and shape[0] != rows:
            yield _bad(
                "DraftVocabularyDiffers", about, f"drafter {name} has {shape[0]} rows, draft_vocab_size is {rows}"
            )


def _check_length(target: Checkpoint, drafter: Checkpoint, served_length: int | None) -> Iterator[Finding]:
    served, limit = served_length or target.max_positions, drafter.max_positions
    if served is None or limit is None or served <= limit:
        return
    yield _warn(
        "DrafterPositions",
        About.DRAFTER,
        f"drafter max_position_embeddings {limit}, served length {served}: beyond {limit} tokens drafts are seldom "
        "accepted, and some releases of vLLM (0.24) end with a device-side assert; "
        f"--max-model-len={limit} in engine.extraArgs rules that out",
    )


def _check_origin(target: Checkpoint, drafter: Checkpoint) -> Iterator[Finding]:
    """Signs that a drafter was trained for another target: it loads all the same, and is accepted seldom."""
    about = About.DRAFTER
    if drafter.verifier_architectures and target.architectures:
        if not set(drafter.verifier_architectures) & set(target.architectures):
            yield _warn(
                "VerifierDiffers",
                about,
                f"drafter was made for {', '.join(drafter.verifier_architectures)}, target is "
                f"{', '.join(target.architectures)}",
            )
    elif drafter.model_type and target.model_type and drafter.model_type != target.model_type:
        yield _warn(
            "BackboneDiffers",
            about,
            f"drafter model_type {drafter.model_type}, target model_type {target.model_type}: acceptance may be low",
        )
    if drafter.verifier and _base(drafter.verifier) not in _base(target.source):
        yield _warn("VerifierDiffers", about, f"drafter was trained for {drafter.verifier}, target is {target.source}")
    for name, mine, its in (
        ("bos_token_id", drafter.bos_token_id, target.bos_token_id),
        ("eos_token_id", drafter.eos_token_id, target.eos_token_id),
    ):
        if None not in (mine, its) and mine != its:
            yield _warn("TokenizerDiffers", about, f"drafter {name} {mine}, target {name} {its}")
    own, its_own = drafter.tokenizer, target.tokenizer
    if own is None or its_own is None:
        return
    if None not in (own.vocab_size, its_own.vocab_size) and own.vocab_size != its_own.vocab_size:
        yield _bad(
            "TokenizerDiffers",
            about,
            f"drafter tokenizer.json has {own.vocab_size} entries, target tokenizer.json {its_own.vocab_size}",
        )
    elif None not in (own.fingerprint, its_own.fingerprint) and own.fingerprint != its_own.fingerprint:
        yield _warn(
            "TokenizerDiffers",
            about,
            f"drafter tokenizer.json {own.fingerprint}, target tokenizer.json {its_own.fingerprint}: not the same file",
        )


def _base(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
