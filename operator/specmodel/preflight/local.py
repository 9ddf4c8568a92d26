"""A checkpoint in a folder: its config.json, the headers of its safetensors files, its tokenizer.

Files may be anything: each is read up to a bound, weights are never loaded, and pickle files are never opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from specmodel.domain.checkpoint import HASH_DIGITS, Checkpoint, CheckpointError, Tokenizer, read_config, read_headers

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
#: Bounds in bytes. Real ones: configs of some KiB, headers up to some MiB, indices of 10 MiB, tokenizers of 30 MiB.
CONFIG_MAXIMUM = 2**20
INDEX_MAXIMUM = 32 * 2**20
TOKENIZER_MAXIMUM = 64 * 2**20
#: Up to here a tokenizer is parsed as well (260 MiB of memory for 38 MiB of JSON); above, its hash must do.
TOKENIZER_PARSED = 40 * 2**20
HEADER_MAXIMUM = 32 * 2**20
FILES_MAXIMUM = 512
LENGTH = struct.Struct("<Q")


class MissingError(CheckpointError):
    """There is no such folder."""


def read_checkpoint(path: Path, *, source: str | None = None) -> Checkpoint:
    """Return the facts of the checkpoint in a folder; `source` is what messages call it (default: the path).

    config.json must be there; without a readable safetensors header `tensors` is None. Raises `CheckpointError`.
    """
    name = source or str(path)
    if not path.is_dir():
        found = "is not there" if not path.exists() else "is no folder"
        raise MissingError(f"{name}: {found}; it must be a folder with config.json")
    checkpoint = read_config(parse_json(_read(path / CONFIG, CONFIG_MAXIMUM, name), CONFIG, name), source=name)
    files = weight_files(sorted(entry.name for entry in path.iterdir()))
    if files:
        headers = [_header(path / file, name) for file in files]
        checkpoint = replace(checkpoint, tensors=read_headers(headers, source=name))
    else:
        pickles = [path / file for file in pickle_files(sorted(entry.name for entry in path.iterdir()))]
        if pickles:
            sizes = sum(file.stat().st_size for file in pickles)
            checkpoint = replace(checkpoint, is_pickle=True, file_bytes=sizes)
    tokenizer = path / TOKENIZER
    if tokenizer.is_file() and tokenizer.stat().st_size <= TOKENIZER_MAXIMUM:
        checkpoint = replace(checkpoint, tokenizer=read_tokenizer(_read(tokenizer, TOKENIZER_MAXIMUM, name)))
    return checkpoint


def weight_files(names: list[str]) -> list[str]:
    """Return which of a checkpoint's files hold its weights as safetensors.

    `model*.safetensors` where there is one: some repositories hold the same weights once more in one file.
    """
    found = [name for name in names if name.endswith(".safetensors")]
    sharded = [name for name in found if name.startswith("model-")]
    whole = [name for name in found if name == "model.safetensors"]
    others = [name for name in found if not name.startswith(("consolidated", "adapter_"))]
    return (sharded or whole or others)[:FILES_MAXIMUM]


def pickle_files(names: list[str]) -> list[str]:
    """Return which files hold weights as pickle. They run code when loaded: nobody here does."""
    found = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    return [name for name in found if not name.startswith(("training_args", "optimizer", "scheduler"))][:FILES_MAXIMUM]


def parse_json(text: bytes, file: str, source: str) -> Any:
    """Return parsed JSON. Raises `CheckpointError` naming file and place."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise CheckpointError(f"{source}: {file} is no JSON: {error}"[:300]) from error


def parse_header(text: bytes, file: str, source: str) -> Mapping[str, Any]:
    """Return a safetensors header. Raises `CheckpointError`."""
    value = parse_json(text, f"the header of {file}", source)
    if not isinstance(value, dict):
        raise CheckpointError(f"{source}: the header of {file} is no JSON object")
    return value


def header_length(prefix: bytes, file: str, source: str) -> int:
    """Return the length of the header that a file's first 8 bytes announce. Raises `CheckpointError`."""
    if len(prefix) < LENGTH.size:
        raise CheckpointError(f"{source}: {file} is too short for a safetensors file")
    length: int = LENGTH.unpack(prefix[: LENGTH.size])[0]
    if not 2 <= length <= HEADER_MAXIMUM:
        raise CheckpointError(
            f"{source}: {file} announces a header of {length} bytes; up to {HEADER_MAXIMUM} are read: "
            "it is no safetensors file (a Git LFS pointer, or a broken download?)"
        )
    return length


def read_tokenizer(text: bytes) -> Tokenizer:
    """Return what tells a tokenizer.json apart: its hash, and how many entries it has."""
    fingerprint = hashlib.sha256(text).hexdigest()[:HASH_DIGITS]
    if len(text) > TOKENIZER_PARSED:
        return Tokenizer(fingerprint=fingerprint)
    try:
        value = json.loads(text)
    except (RecursionError, ValueError):
        return Tokenizer(fingerprint=fingerprint)
    model = value.get("model") if isinstance(value, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    added = value.get("added_tokens") if isinstance(value, dict) else None
    if not isinstance(vocab, dict):
        return Tokenizer(fingerprint=fingerprint)
    more = {token.get("content") for token in added if isinstance(token, dict)} if isinstance(added, list) else set()
    return Tokenizer(fingerprint=fingerprint, vocab_size=len(set(vocab) | {word for word in more if word}))


def _read(path: Path, maximum: int, source: str) -> bytes:
    with _open(path, source) as file:
        text = file.read(maximum + 1)
    if len(text) > maximum:
        raise CheckpointError(f"{source}: {path.name} is larger than {maximum} bytes: it is not read")
    return text


def _header(path: Path, source: str) -> Mapping[str, Any]:
    with _open(path, source) as file:
        length = header_length(file.read(LENGTH.size), path.name, source)
        text = file.read(length)
    if len(text) < length:
        raise CheckpointError(f"{source}: {path.name} ends within its header: it was not downloaded whole")
    return parse_header(text, path.name, source)


def _open(path: Path, source: str) -> BinaryIO:
    """Open an ordinary file: a pipe or a device in its place would be waited for without end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CheckpointError(f"{source}: there is no {path.name}") from error
    except OSError as error:
        raise CheckpointError(f"{source}: {path.name} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{source}: {path.name} is no ordinary file")
    return os.fdopen(descriptor, "rb")
