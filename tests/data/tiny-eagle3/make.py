"""Make and train the tiny pair: `make.py FOLDER` writes FOLDER/target and FOLDER/eagle3. About two minutes on two cores.

Run it with what the image of `make engine` holds:

    PYTHONPATH=$(.venv/bin/python images/vllm-cpu/packages.py) python3.13 tests/data/tiny-eagle3/make.py /tmp/pair

The target is a LlamaForCausalLM that learns to write small weather records as JSON; the drafter is an EAGLE3 head in
vLLM's format (LlamaForCausalLMEagle3) that learns what the target says next: from the hidden states of three of its
layers at position i and the token at i + 1 it drafts the token at i + 2, and then goes on from its own hidden state.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20261130
STEPS = 120
LEARNING_RATE = 3e-3
BATCH, LENGTH = 8, 256

VOCABULARY = 512
HIDDEN = 128
LAYERS = 4
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 32
INTERMEDIATE = 384
POSITIONS = 2048
THETA = 10_000.0
EPSILON = 1e-5

DRAFT_VOCABULARY = 256
#: The target's layers whose inputs the drafter sees, as vLLM numbers them.
AUXILIARY = (1, 2, 3)
#: How often in training the drafter goes on from its own hidden state: as often as it must when γ is 3.
DRAFTS = 3

SPECIAL = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


# The language ------------------------------------------------------------------------------------------------------


def record(chance: random.Random) -> str:
    """Return one weather record."""
    return json.dumps(
        {
            "city": chance.choice(["Rome", "Oslo", "Lima", "Cairo", "Quito"]),
            "temp": chance.randint(0, 39),
            "unit": "C",
            "tags": chance.sample(["rain", "wind", "sun", "fog"], 2),
            "ok": chance.random() < 0.5,
        }
    )


def dialogue(chance: random.Random) -> str:
    """Return a question for some records and its answer."""
    count = chance.randint(1, 6)
    question = chance.choice(["Give {} weather records as JSON.", "List {} records.", "JSON, {} items please."])
    answer = ", ".join(record(chance) for _ in range(count))
    return f"<|user|>{question.format(count)}<|end|><|assistant|>[{answer}]<|end|>"


def make_tokenizer(folder: Path, chance: random.Random) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer on the language, write it and return it."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    english = "Hello world, how are you today? Write a story about the operator and its model server in the cluster."
    tokenizer.train_from_iterator([dialogue(chance) for _ in range(500)] + [english] * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="<|end|>",
        clean_up_tokenization_spaces=False,
        model_max_length=POSITIONS,
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def batch(tokenizer: PreTrainedTokenizerFast, chance: random.Random, rows: int, length: int) -> Tensor:
    """Return token ids of dialogues in a row, (rows, length + 1)."""
    ids: list[int] = []
    while len(ids) < rows * (length + 1):
        ids += tokenizer(dialogue(chance), add_special_tokens=False)["input_ids"]
    return torch.tensor(ids[: rows * (length + 1)]).view(rows, length + 1)


# The drafter -------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """One decoder layer that reads the token's embedding beside the hidden state, as vLLM's llama_eagle3 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, eps=EPSILON)
        self.hidden_norm = nn.RMSNorm(HIDDEN, eps=EPSILON)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, eps=EPSILON)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(2 * HIDDEN, HEADS * HEAD_SIZE, bias=False),
                "k_proj": nn.Linear(2 * HIDDEN, KV_HEADS * HEAD_SIZE, bias=False),
                "v_proj": nn.Linear(2 * HIDDEN, KV_HEADS * HEAD_SIZE, bias=False),
                "o_proj": nn.Linear(HEADS * HEAD_SIZE, HIDDEN, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(HIDDEN, INTERMEDIATE, bias=False),
                "up_proj": nn.Linear(HIDDEN, INTERMEDIATE, bias=False),
                "down_proj": nn.Linear(INTERMEDIATE, HIDDEN, bias=False),
            }
        )

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return the next hidden state, (rows, length, hidden)."""
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        query, key, value = (self._heads(name, both) for name in ("q_proj", "k_proj", "v_proj"))
        attended = functional.scaled_dot_product_attention(
            rotate(query), rotate(key), value, is_causal=True, enable_gqa=True
        )
        hidden = hidden + self.self_attn["o_proj"](attended.transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(hidden)
        gated = functional.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)
        return hidden + self.mlp["down_proj"](gated)

    def _heads(self, name: str, both: Tensor) -> Tensor:
        return self.self_attn[name](both).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)


def rotate(states: Tensor) -> Tensor:
    """Return queries or keys, (rows, heads, length, size), turned by their positions."""
    frequencies = THETA ** (-torch.arange(0, HEAD_SIZE, 2).float() / HEAD_SIZE)
    angles = torch.outer(torch.arange(states.shape[2]).float(), frequencies).repeat(1, 2)
    first, second = states.chunk(2, dim=-1)
    return states * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class Drafter(nn.Module):
    """The EAGLE3 head."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(len(AUXILIARY) * HIDDEN, HIDDEN, bias=False)
        self.midlayer = Layer()
        self.norm = nn.RMSNorm(HIDDEN, eps=EPSILON)
        self.lm_head = nn.Linear(HIDDEN, DRAFT_VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.04)


class Vocabulary(NamedTuple):
    """Which tokens can be drafted: the target's most frequent ones."""

    kept: Tensor
    """Their ids in the target's vocabulary, ascending."""

    def tensors(self) -> dict[str, Tensor]:
        """Return vLLM's two tables: d2t is what is added to a drafter's id to have the target's."""
        drafted = torch.zeros(VOCABULARY, dtype=torch.bool)
        drafted[self.kept] = True
        return {"d2t": self.kept - torch.arange(DRAFT_VOCABULARY), "t2d": drafted}

    def labels(self, targets: Tensor) -> Tensor:
        """Return the drafter's ids of the target's tokens, -100 for those that it cannot draft."""
        table = torch.full((VOCABULARY,), -100)
        table[self.kept] = torch.arange(DRAFT_VOCABULARY)
        return table[targets]


# Training ----------------------------------------------------------------------------------------------------------


def train(name: str, parameters: list[nn.Parameter], loss_of: Callable[[], tuple[Tensor, str]]) -> None:
    """Take STEPS steps, telling the loss now and then."""
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS, pct_start=0.1)
    started = time.monotonic()
    for step in range(STEPS):
        loss, right = loss_of()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == STEPS - 1:
            took = time.monotonic() - started
            print(f"{name}: step {step}, loss {loss.item():.3f}, right {right}, {took:.0f} s", flush=True)


def target_loss(target: LlamaForCausalLM, ids: Tensor) -> tuple[Tensor, str]:
    """Return the loss of the next token, and the share that is right."""
    logits, wanted = target(input_ids=ids[:, :-1]).logits, ids[:, 1:]
    right = (logits.argmax(-1) == wanted).float().mean()
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()), f"{right:.2f}"


def drafter_loss(drafter: Drafter, target: LlamaForCausalLM, vocabulary: Vocabulary, ids: Tensor) -> tuple[Tensor, str]:
    """Return the loss of DRAFTS tokens drafted one after the other, and the shares that are right."""
    with torch.no_grad():
        seen = target(input_ids=ids[:, :-1], output_hidden_states=True)
        said = vocabulary.labels(seen.logits.argmax(-1))
        states = torch.cat([seen.hidden_states[layer] for layer in AUXILIARY], dim=-1)
    embedding = target.get_input_embeddings()
    hidden, tokens, wanted = drafter.fc(states[:, :-1]), ids[:, 1:-1], said[:, 1:]
    loss, shares = torch.zeros(()), []
    for _ in range(DRAFTS):
        after = drafter.midlayer(embedding(tokens), hidden)
        logits = drafter.lm_head(drafter.norm(after))
        loss = loss + functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
        shares.append(f"{(logits.argmax(-1) == wanted).float().mean():.2f}")
        hidden, tokens, wanted = after[:, :-1], tokens[:, 1:], wanted[:, 1:]
    return loss, "/".join(shares)


# Files -------------------------------------------------------------------------------------------------------------


def main(folder: Path) -> None:
    """Make both and write them."""
    torch.manual_seed(SEED)
    chance = random.Random(SEED)
    tokenizer = make_tokenizer(folder / "target", chance)
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": EPSILON,
        "tie_word_embeddings": False,
        **special,
    }
    config = LlamaConfig(**shape, num_hidden_layers=LAYERS, dtype="bfloat16", initializer_range=0.04)
    target = LlamaForCausalLM(config).float()
    train("target", list(target.parameters()), lambda: target_loss(target, batch(tokenizer, chance, BATCH, LENGTH)))
    target.to(torch.bfloat16).save_pretrained(folder / "target", max_shard_size="800KB")  # files below a megabyte
    target.float().eval()

    counts = torch.bincount(batch(tokenizer, chance, 64, 512).flatten(), minlength=VOCABULARY).float()
    # Of equally frequent tokens the first: the same every time.
    kept = torch.topk(counts - torch.arange(VOCABULARY) / (2 * VOCABULARY), DRAFT_VOCABULARY).indices.sort().values
    vocabulary = Vocabulary(kept)
    drafter = Drafter()
    train(
        "drafter",
        list(drafter.parameters()),
        lambda: drafter_loss(drafter, target, vocabulary, batch(tokenizer, chance, BATCH, LENGTH)),
    )
    weights = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in drafter.state_dict().items()}
    weights["embed_tokens.weight"] = target.get_input_embeddings().weight.detach().to(torch.bfloat16).clone()
    (folder / "eagle3").mkdir(parents=True, exist_ok=True)
    save_file(weights | vocabulary.tensors(), folder / "eagle3" / "model.safetensors", metadata={"format": "pt"})
    drafter_config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        **shape,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "rope_theta": THETA,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "eagle_config": {
            # Without it vLLM takes layers that a shallow target does not have.
            "eagle_aux_hidden_state_layer_ids": list(AUXILIARY),
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
        },
    }
    (folder / "eagle3" / "config.json").write_text(json.dumps(drafter_config, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
