"""Write checkpoints without weights, shaped like Llama-3.1-8B and its EAGLE3 drafter, for `--load-format dummy`.

    make_models.py DIR      writes DIR/target and DIR/drafter: config.json and a tokenizer of as many plain words

Speed and memory depend on shapes alone; the text that such a model writes means nothing. Needs transformers, which
comes with vLLM.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 128_256
DRAFT_VOCABULARY = 32_000
#: What target and drafter share: the geometry of Llama-3.1-8B.
SHARED: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "bos_token_id": VOCABULARY - 2,
    "eos_token_id": VOCABULARY - 1,
    "rope_theta": 500_000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "max_position_embeddings": 131_072,
}
TARGET = SHARED | {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
DRAFTER = SHARED | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": DRAFT_VOCABULARY,
}


def main(folder: Path) -> int:
    """Write both checkpoints."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415  comes with vLLM
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words = {f"t{number}": number for number in range(VOCABULARY - 2)}
    words |= {"<s>": VOCABULARY - 2, "</s>": VOCABULARY - 1}
    plain = Tokenizer(models.WordLevel(words, unk_token="t0"))  # noqa: S106  no password
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "t0"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, **special)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    for name, config in (("target", TARGET), ("drafter", DRAFTER)):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        tokenizer.save_pretrained(place)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
