"""What does not fit is refused before a GPU is taken, with both values in the message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specmodel.domain.checkpoint import Checkpoint, Tokenizer, read_config, read_headers
from specmodel.domain.compatibility import About, Severity, check_pair
from tests.support.checkpoints import (
    LLAMA_8B,
    LLAMA_8B_DRAFTER,
    TINY_DRAFTER,
    TINY_TARGET,
    Config,
    Shapes,
    drafter_shapes,
    header_of,
    target_shapes,
)


def made(config: Config, shapes: Shapes | None) -> Checkpoint:
    checkpoint = read_config(config, source="hf://org/one@main")
    if shapes is None:
        return checkpoint
    return replace(checkpoint, tensors=read_headers([header_of(shapes)], source="x"))


TARGET = made(TINY_TARGET, target_shapes(TINY_TARGET))
DRAFTER = made(TINY_DRAFTER, drafter_shapes(TINY_DRAFTER))


def drafter(shapes: Shapes | None = None, without: str = "", **changes: Any) -> Checkpoint:
    config = TINY_DRAFTER | changes
    tensors = {**drafter_shapes(config), **(shapes or {})}
    return made(config, {name: shape for name, shape in tensors.items() if name != without})


def found(
    target: Checkpoint, other: Checkpoint | None, gpus: int = 1, length: int | None = None, **more: str
) -> list[tuple[str, str]]:
    findings = check_pair(target, other, gpus_per_replica=gpus, served_length=length, **more)
    return [(finding.severity.value, finding.code) for finding in findings]


def message(target: Checkpoint, other: Checkpoint | None, gpus: int = 1, length: int | None = None) -> str:
    return check_pair(target, other, gpus_per_replica=gpus, served_length=length)[0].message


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_pair_that_really_served_has_no_finding(gpus: int) -> None:
    assert found(TARGET, DRAFTER, gpus, 1024) == []


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_the_pair_of_the_measurements_is_only_unread(gpus: int) -> None:
    pair = made(LLAMA_8B, None), made(LLAMA_8B_DRAFTER, None)
    assert found(*pair, gpus, 4096) == [("Unknown", "HeadersNotRead")]


def test_a_wrong_hidden_size_is_refused_with_both_values() -> None:
    wrong = drafter(hidden_size=160)
    assert message(TARGET, wrong) == "drafter hidden_size 160, target hidden_size 128"
    assert set(found(TARGET, wrong)) == {("Incompatible", "HiddenSizeDiffers")}


def test_a_narrower_drafter_that_names_its_target_and_brings_its_embedding_may_be_tried() -> None:
    narrow = {"fc.weight": ("BF16", [96, 384])}
    assert found(TARGET, drafter(narrow, hidden_size=96, target_hidden_size=128)) == []
    without = drafter(narrow, "embed_tokens.weight", hidden_size=96, target_hidden_size=128)
    assert found(TARGET, without) == [("Incompatible", "EmbeddingMissing")]


@pytest.mark.parametrize(
    ("other", "code", "words"),
    [
        (drafter(vocab_size=500), "VocabularyDiffers", ["500", "512"]),
        (drafter(draft_vocab_size=1024), "DraftVocabularyDiffers", ["1024", "512"]),
        (drafter(without="d2t"), "MappingMissing", ["256", "512", "d2t"]),
        (drafter({"d2t": ("I64", [200])}), "DraftVocabularyDiffers", ["200", "256"]),
        (drafter({"lm_head.weight": ("BF16", [512, 128])}), "DraftVocabularyDiffers", ["512", "256"]),
        (drafter({"fc.weight": ("BF16", [128, 256])}), "HiddenSizeDiffers", ["256", "384", "EAGLE drafter"]),
        (drafter(without="fc.weight"), "NotEagle3", ["fc.weight"]),
        (drafter(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}), "LayersOutOfRange", ["29", "4 "]),
        (drafter(speculators_model_type="mlp_speculator"), "NotEagle3", ["mlp_speculator", "EAGLE3"]),
        (TARGET, "NotEagle3", ["LlamaForCausalLM", "4 layers"]),
        (made(TINY_TARGET | {"num_hidden_layers": 32}, None), "NotEagle3", ["32 layers"]),
    ],
)
def test_what_cannot_work_is_refused_with_both_values(other: Checkpoint, code: str, words: list[str]) -> None:
    findings = check_pair(TARGET, other, gpus_per_replica=1, served_length=None)
    bad = [finding for finding in findings if finding.severity is Severity.INCOMPATIBLE]
    assert code in [finding.code for finding in bad]
    said = next(finding.message for finding in bad if finding.code == code)
    assert all(word in said for word in words), said
    assert all(finding.about is About.DRAFTER for finding in bad)


def test_what_no_engine_reads_is_no_more_than_a_warning() -> None:
    assert found(TARGET, drafter({"t2d": ("BOOL", [500])})) == [("Warning", "DraftVocabularyDiffers")]


def test_packed_matrices_are_not_taken_for_wrong_ones() -> None:
    packed = {"fc.weight": ("I32", [128, 48]), "lm_head.weight": ("I32", [32, 128])}
    assert found(TARGET, drafter(packed, quantization_config={"quant_method": "gptq"})) == []


def test_a_drafter_of_the_last_hidden_state_alone_needs_no_fc() -> None:
    assert found(TARGET, drafter(without="fc.weight", eagle_config={"use_aux_hidden_state": False})) == []


def test_heads_that_do_not_divide_are_refused_for_that_size_alone() -> None:
    target = made(TINY_TARGET | {"num_attention_heads": 6, "num_key_value_heads": 6}, None)
    assert found(target, None, 2) == []
    assert found(target, None, 4) == [("Incompatible", "HeadsNotDivisible")] * 2
    assert found(TARGET, drafter(num_attention_heads=3, num_key_value_heads=3), 2)[0] == (
        "Incompatible",
        "HeadsNotDivisible",
    )
    assert found(TARGET, None, 4) == [], "2 key-value heads are copied to 4 GPUs"


def test_the_served_length_is_held_against_the_target_and_the_drafter() -> None:
    assert found(TARGET, None, length=4096) == [("Incompatible", "PositionsTooFew")]
    assert "4096" in message(TARGET, None, length=4096)
    assert "2048" in message(TARGET, None, length=4096)
    stretched = made(TINY_TARGET | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, None)
    assert found(stretched, None, length=4096) == [], "a stretched embedding serves longer than it says"
    short = drafter(max_position_embeddings=512)
    assert found(TARGET, short, length=1024) == [("Warning", "DrafterPositions")]
    assert found(TARGET, short, length=512) == []


def test_fp8_of_quantised_weights_is_refused_for_those_candidates_alone() -> None:
    quantised = made(TINY_TARGET | {"quantization_config": {"quant_method": "fp8"}}, None)
    assert found(quantised, None, weights="FP8") == [("Incompatible", "AlreadyQuantized")]
    assert found(quantised, None, weights="Checkpoint") == []


def test_an_fp8_cache_without_scales_is_a_warning() -> None:
    assert found(TARGET, None, kv_cache="FP8") == [("Warning", "KVScalesMissing")]


def test_a_drafter_in_place_of_the_target_is_refused() -> None:
    findings = check_pair(DRAFTER, None, gpus_per_replica=1, served_length=None)
    assert [(one.code, one.about) for one in findings] == [("TargetIsDrafter", About.TARGET)]


def test_signs_of_another_target_are_warnings() -> None:
    assert found(TARGET, drafter(model_type="qwen3")) == [("Warning", "BackboneDiffers")]
    other = replace(DRAFTER, verifier="org/another", verifier_architectures=("Qwen3ForCausalLM",))
    assert found(TARGET, other) == [("Warning", "VerifierDiffers")] * 2
    assert found(TARGET, replace(DRAFTER, verifier="org/one", verifier_architectures=("LlamaForCausalLM",))) == []
    assert found(TARGET, drafter(eos_token_id=7)) == [("Warning", "TokenizerDiffers")]


def test_another_tokenizer_is_a_warning_and_another_vocabulary_is_refused() -> None:
    target = replace(TARGET, tokenizer=Tokenizer(fingerprint="a" * 16, vocab_size=512))
    same = replace(DRAFTER, tokenizer=Tokenizer(fingerprint="a" * 16, vocab_size=512))
    assert found(target, same) == []
    assert found(target, replace(DRAFTER, tokenizer=Tokenizer(fingerprint="b" * 16, vocab_size=512))) == [
        ("Warning", "TokenizerDiffers")
    ]
    assert found(target, replace(DRAFTER, tokenizer=Tokenizer(fingerprint="b" * 16, vocab_size=400))) == [
        ("Incompatible", "TokenizerDiffers")
    ]


def test_pickle_alone_is_unknown() -> None:
    pickled = replace(made(TINY_DRAFTER, None), is_pickle=True, file_bytes=1000)
    assert found(TARGET, pickled) == [("Unknown", "PickleOnly")]


def test_the_worst_comes_first() -> None:
    findings = found(TARGET, drafter(model_type="qwen3", vocab_size=500))
    assert findings[0][0] == "Incompatible"
    assert findings[-1][0] == "Warning"
