"""The prompts of a cell: random token ids of one length, or the lines of a mounted file in a seeded order.

Every cell, and the warm-up of every cell, has a seed of its own: with one seed the second cell would find the first
one's prefixes in the server's cache and look faster than it is.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specmodel.bench.load import Prompt

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

#: A line of a prompts file longer than this is refused: it would not fit a request.
LINE_MAXIMUM_CHARACTERS = 1_000_000


class PromptsError(Exception):
    """The prompts file cannot be used; the message names the file and the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """Synthetic prompts as token ids from [first, last): their length is exact without a tokenizer."""

    first: int
    last: int

    def prompt(self, generator: random.Random, tokens: int) -> Prompt:
        """Return one prompt of exactly `tokens` tokens."""
        return Prompt(path=COMPLETIONS, body={"prompt": generator.choices(range(self.first, self.last), k=tokens)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Synthetic prompts as text, for servers that take no token ids: as long as asked on average only."""

    tokens_per_word: float
    tokens_before: float

    def prompt(self, generator: random.Random, tokens: int) -> Prompt:
        """Return one prompt of about `tokens` tokens, by the rate that `calibrate` measured."""
        words = max(1, round((tokens - self.tokens_before) / self.tokens_per_word))
        return Prompt(path=COMPLETIONS, body={"prompt": words_of(generator, words)})


def words_of(generator: random.Random, count: int) -> str:
    """Return `count` random numbers of three digits, joined by spaces."""
    return " ".join(str(generator.randrange(100, 1000)) for _ in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticPrompts:
    """Random prompts without end."""

    vocabulary: TokenIds | Words
    input_tokens: int

    def stream(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts for ever; equal seeds give equal prompts."""
        generator = random.Random(seed)  # noqa: S311  prompts, not secrets
        while True:
            yield self.vocabulary.prompt(generator, self.input_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePrompts:
    """The prompts of a file, each as often as any other."""

    prompts: tuple[Prompt, ...]

    def stream(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts for ever: the whole file in one seeded order, then in another."""
        generator = random.Random(seed)  # noqa: S311  prompts, not secrets
        while True:
            yield from generator.sample(self.prompts, k=len(self.prompts))


def cell_seed(seed: int, concurrency: int, temperature: str, part: str) -> int:
    """Return the seed of one part (`warm-up`, `load 0`, `load 1`, ...) of one cell of a run."""
    text = f"{seed}/{concurrency}/{temperature}/{part}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def read_prompts(path: Path) -> FilePrompts:
    """Return the prompts of a file of JSON lines, each `{"prompt": "..."}` or `{"messages": [...]}`.

    Blank lines are skipped. Raises PromptsError naming the line that is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror}): is the ConfigMap key mounted there?"
        raise PromptsError(message) from error
    except UnicodeDecodeError as error:
        message = f"{path}: is not UTF-8 text (byte {error.start})"
        raise PromptsError(message) from error
    numbered = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
    prompts = tuple(_prompt(line, f"{path.name} line {number}") for number, line in numbered)
    if not prompts:
        message = f'{path.name}: holds no prompt; write one JSON object a line: {{"prompt": "..."}}'
        raise PromptsError(message)
    return FilePrompts(prompts=prompts)


def _prompt(line: str, where: str) -> Prompt:
    if len(line) > LINE_MAXIMUM_CHARACTERS:
        message = f"{where}: is longer than {LINE_MAXIMUM_CHARACTERS} characters"
        raise PromptsError(message)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        message = f"{where}: is no JSON ({error})"
        raise PromptsError(message) from error
    match value:
        case {"prompt": str(prompt)} if prompt and "messages" not in value:
            return Prompt(path=COMPLETIONS, body={"prompt": prompt})
        case {"messages": [_, *_] as messages} if "prompt" not in value and all(map(_is_message, messages)):
            return Prompt(path=CHAT, body={"messages": messages})
    message = (
        f'{where}: write either {{"prompt": "text"}} or {{"messages": [{{"role": "user", "content": "text"}}]}}, '
        f"not {line[:80]}"
    )
    raise PromptsError(message)


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message
