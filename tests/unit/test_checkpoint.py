"""A checkpoint's files say what it is; files that are broken or hostile are refused with what is wrong."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specmodel.domain.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_from_json,
    checkpoint_from_value,
    read_config,
    read_headers,
)
from specmodel.preflight.local import HEADER_MAXIMUM, read_checkpoint
from tests.support.checkpoints import (
    LLAMA_70B,
    TINY_DRAFTER,
    TINY_TARGET,
    drafter_shapes,
    header_of,
    target_shapes,
    write_checkpoint,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
#: A busy machine makes inputs slowly, and slowness is no fault of what is tested.
PATIENTLY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = ["hidden_size", "architectures", "text_config", "eagle_config", "rope_scaling", "speculators_config", "source"]


def test_a_folder_says_shapes_types_and_bytes(tmp_path: Path) -> None:
    found = read_checkpoint(write_checkpoint(tmp_path, TINY_TARGET, target_shapes(TINY_TARGET)), source="pvc://w/t")
    assert (found.source, found.architectures, found.model_type) == ("pvc://w/t", ("LlamaForCausalLM",), "llama")
    assert (found.hidden_size, found.num_layers, found.num_heads, found.num_kv_heads) == (128, 4, 4, 2)
    assert (found.vocab_size, found.max_positions, found.dtype, found.rope) == (512, 2048, "bfloat16", "")
    assert found.tensors is not None
    assert found.tensors.bytes_by_dtype == (("BF16", 1_837_312),)
    assert found.tensors.linear_bytes == 1_837_312 - 2 * (2 * 512 * 128 + 9 * 128)


def test_a_drafter_says_its_mapping_and_the_layers_that_it_reads(tmp_path: Path) -> None:
    found = read_checkpoint(write_checkpoint(tmp_path, TINY_DRAFTER, drafter_shapes(TINY_DRAFTER)))
    assert (found.draft_vocab_size, found.aux_layers) == (256, (1, 2, 3))
    assert found.tensors is not None
    assert dict(found.tensors.shapes) == {
        "d2t": (256,),
        "t2d": (512,),
        "fc": (128, 384),
        "embed_tokens": (512, 128),
        "lm_head": (256, 128),
    }


def test_config_json_alone_is_enough(tmp_path: Path) -> None:
    found = read_checkpoint(write_checkpoint(tmp_path, LLAMA_70B))
    assert (found.hidden_size, found.rope, found.tensors) == (8192, "llama3", None)


def test_several_files_are_counted_together_and_a_second_copy_is_not(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_TARGET, target_shapes(TINY_TARGET))
    whole = (tmp_path / "model.safetensors").read_bytes()
    for number in (1, 2):
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(whole)
    found = read_checkpoint(tmp_path)
    assert found.tensors is not None
    assert found.tensors.total_bytes == 2 * 1_837_312


def test_the_format_of_speculators_is_read_from_its_layer_config() -> None:
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 256,
        "target_hidden_size": None,
        "transformer_layer_config": {key: TINY_DRAFTER[key] for key in TINY_DRAFTER if key != "architectures"},
        "speculators_config": {"verifier": {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]}},
    }
    found = read_config(config, source="hf://org/drafter@main")
    assert (found.hidden_size, found.vocab_size, found.draft_vocab_size) == (128, 512, 256)
    assert (found.speculators_type, found.verifier) == ("eagle3", "org/target")


def test_a_multimodal_model_is_described_by_its_text_config() -> None:
    found = read_config({"architectures": ["LlavaForConditionalGeneration"], "text_config": TINY_TARGET}, source="x")
    assert (found.architectures, found.hidden_size) == (("LlavaForConditionalGeneration",), 128)


def test_quantisation_windows_and_experts_are_seen() -> None:
    config = TINY_TARGET | {
        "quantization_config": {"quant_method": "compressed-tensors"},
        "sliding_window": 4096,
        "num_local_experts": 8,
    }
    found = read_config(config, source="x")
    assert (found.quantization, found.has_full_attention, found.num_experts) == ("compressed-tensors", False, 8)
    assert read_config(TINY_TARGET | {"sliding_window": None}, source="x").has_full_attention


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}, True),
        ({"sliding_window": None, "max_window_layers": 36}, True),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, True),
        ({"layer_types": ["full_attention", "full_attention"]}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"attention_chunk_size": 8192}, False),
        ({"linear_num_value_heads": 32}, False),
        ({"num_kv_shared_layers": 10}, False),
        ({"mamba_d_state": 128}, False),
    ],
)
def test_layers_that_keep_less_than_every_token_are_seen(members: dict[str, Any], expected: bool) -> None:
    assert read_config(TINY_TARGET | members, source="x").has_full_attention is expected


def test_pickle_is_told_and_never_opened(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_DRAFTER)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n" + bytes(100))
    found = read_checkpoint(tmp_path)
    assert (found.is_pickle, found.tensors, found.file_bytes) == (True, None, 116)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.json", b"{", "config.json is no JSON"),
        ("config.json", b"[]", "no JSON object"),
        ("config.json", b"{}", "neither architectures nor hidden_size"),
        ("config.json", b"[" * 100_000, "config.json is no JSON"),
        ("config.json", b" " * (2**20 + 1), "larger than"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1", "announces a header"),
        ("model.safetensors", struct.pack("<Q", HEADER_MAXIMUM + 1) + b"{}", "announces a header"),
        ("model.safetensors", struct.pack("<Q", 2**63) + b"{}", "announces a header"),
        ("model.safetensors", struct.pack("<Q", 100) + b"{}", "ends within its header"),
        ("model.safetensors", struct.pack("<Q", 2) + b"[]", "no JSON object"),
        ("model.safetensors", b"abc", "too short"),
        ("model.safetensors", struct.pack("<Q", 13) + b'{"a":{"d":1}}', "no type and shape"),
    ],
)
def test_a_file_that_is_broken_or_hostile_is_refused(tmp_path: Path, file: str, text: bytes, words: str) -> None:
    write_checkpoint(tmp_path, TINY_TARGET)
    (tmp_path / file).write_bytes(text)
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(tmp_path)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_TARGET)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no ordinary file"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("path", ["missing", "file"])
def test_what_is_no_folder_is_said(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"must be a folder with config\.json"):
        read_checkpoint(tmp_path / path)


def test_a_folder_without_config_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no config\.json"):
        read_checkpoint(tmp_path)


def test_a_tokenizer_is_told_by_its_hash_and_its_entries(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_TARGET)
    text = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "<s>"}, {"content": "a"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(text))
    tokenizer = read_checkpoint(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer.vocab_size == 3
    assert tokenizer.fingerprint is not None
    assert len(tokenizer.fingerprint) == 16


def test_facts_survive_their_way_through_json(tmp_path: Path) -> None:
    for name, config, shapes in (
        ("target", TINY_TARGET, target_shapes(TINY_TARGET)),
        ("drafter", TINY_DRAFTER, drafter_shapes(TINY_DRAFTER)),
    ):
        found = read_checkpoint(write_checkpoint(tmp_path / name, config, shapes))
        assert checkpoint_from_json(found.to_json()) == found


def test_two_checkpoints_with_the_longest_texts_fit_a_termination_message() -> None:
    long = 'é\n"\\' * 300
    config: dict[str, Any] = TINY_DRAFTER | {
        "architectures": [long] * 20,
        "model_type": long,
        "torch_dtype": long,
        "speculators_model_type": long,
        "speculators_config": {"verifier": {"name_or_path": long, "architectures": [long] * 20}},
        "quantization_config": {"quant_method": long},
        "rope_scaling": {"rope_type": long},
    }
    found = read_config(config, source=long)
    assert len(found.to_json()) < 4096


@PATIENTLY
@given(config=st.dictionaries(st.sampled_from([*NAMES, *TINY_DRAFTER]), JSON))
def test_no_config_breaks_the_reader(config: dict[str, Any]) -> None:
    try:
        found = read_config(config, source="x")
    except CheckpointError:
        return
    assert checkpoint_from_json(found.to_json()) == found


@PATIENTLY
@given(value=st.dictionaries(st.sampled_from([*NAMES, "tensors", "tokenizer", "aux_layers", "file_bytes"]), JSON))
def test_no_message_of_a_pod_breaks_the_operator(value: dict[str, Any]) -> None:
    try:
        found = checkpoint_from_value(value)
    except CheckpointError:
        return
    assert isinstance(found, Checkpoint)


@PATIENTLY
@given(header=st.dictionaries(st.text(max_size=20), JSON, max_size=5))
def test_no_header_breaks_the_reader(header: dict[str, Any]) -> None:
    try:
        read_headers([header, header_of(target_shapes(TINY_TARGET))], source="x")
    except CheckpointError:
        return
