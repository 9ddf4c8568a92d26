"""Checkpoints for tests: config.json and safetensors headers of real shapes, in folders without real weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

Config = dict[str, Any]
Shapes = dict[str, tuple[str, list[int]]]

#: A target of 4 layers and its drafter, as they were trained for the real engine's tests.
TINY_TARGET: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 6,
}
TINY_DRAFTER: Config = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "vocab_size": 512,
    "draft_vocab_size": 256,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
    "bos_token_id": 1,
    "eos_token_id": 6,
}
#: The shapes of Llama-3.1-8B and of its EAGLE3 drafter.
LLAMA_8B: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
LLAMA_8B_DRAFTER: Config = {
    **{key: LLAMA_8B[key] for key in LLAMA_8B if key != "rope_scaling"},
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
}
LLAMA_70B: Config = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}


def target_shapes(config: Config) -> Shapes:
    """Return the tensors of a Llama-like target."""
    hidden, inner, size = (int(config[name]) for name in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes: dict[str, list[int]] = {
        "lm_head.weight": [config["vocab_size"], hidden],
        "model.embed_tokens.weight": [config["vocab_size"], hidden],
        "model.norm.weight": [hidden],
    }
    for layer in range(config["num_hidden_layers"]):
        own = {
            "self_attn.q_proj": [heads, hidden],
            "self_attn.k_proj": [kv, hidden],
            "self_attn.v_proj": [kv, hidden],
            "self_attn.o_proj": [hidden, heads],
            "mlp.gate_proj": [inner, hidden],
            "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner],
            "input_layernorm": [hidden],
            "post_attention_layernorm": [hidden],
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def drafter_shapes(config: Config) -> Shapes:
    """Return the tensors of an EAGLE3 drafter that brings its own embedding."""
    hidden, inner, size = (int(config[name]) for name in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    rows = int(config["draft_vocab_size" if "draft_vocab_size" in config else "vocab_size"])
    shapes: dict[str, list[int]] = {
        "embed_tokens.weight": [config["vocab_size"], hidden],
        "fc.weight": [hidden, 3 * hidden],
        "lm_head.weight": [rows, hidden],
        "midlayer.hidden_norm.weight": [hidden],
        "midlayer.input_layernorm.weight": [hidden],
        "midlayer.mlp.down_proj.weight": [hidden, inner],
        "midlayer.mlp.gate_proj.weight": [inner, hidden],
        "midlayer.mlp.up_proj.weight": [inner, hidden],
        "midlayer.post_attention_layernorm.weight": [hidden],
        "midlayer.self_attn.k_proj.weight": [kv, 2 * hidden],
        "midlayer.self_attn.o_proj.weight": [hidden, heads],
        "midlayer.self_attn.q_proj.weight": [heads, 2 * hidden],
        "midlayer.self_attn.v_proj.weight": [kv, 2 * hidden],
        "norm.weight": [hidden],
    }
    mapping: Shapes = {"d2t": ("I64", [rows]), "t2d": ("BOOL", [config["vocab_size"]])}
    return {name: ("BF16", shape) for name, shape in shapes.items()} | mapping


def header_of(shapes: Shapes) -> dict[str, Any]:
    """Return the safetensors header of tensors; offsets are left at 0, nobody here reads the data."""
    tensors = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in shapes.items()
    }
    return {"__metadata__": {"format": "pt"}, **tensors}


def safetensors(shapes: Shapes) -> bytes:
    """Return a safetensors file that ends after its header."""
    header = json.dumps(header_of(shapes)).encode()
    return struct.pack("<Q", len(header)) + header


def write_checkpoint(folder: Path, config: Config, shapes: Shapes | None = None) -> Path:
    """Write a checkpoint's config.json and, with shapes, a model.safetensors without data; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shapes is not None:
        (folder / "model.safetensors").write_bytes(safetensors(shapes))
    return folder
