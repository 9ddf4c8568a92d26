"""Whether a folder holds the checkpoint that it held before: a drafter that was trained on is another candidate."""

from __future__ import annotations

import hashlib
from pathlib import Path

#: Of each file so many pieces are looked at, evenly spread: weights are too long to be read for this.
PIECES = 64
PIECE_BYTES = 4096
SUFFIXES = frozenset({".json", ".safetensors", ".bin", ".pt", ".pth", ".jinja", ".model"})


def fingerprint(path: str) -> str:
    """Return what tells the files of a folder apart from others, wherever they lie; the name itself for one of the hub.

    Raises OSError.
    """
    folder = Path(path)
    if not folder.is_absolute():
        return path
    found = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in SUFFIXES and file.is_file():
            size = file.stat().st_size
            found.update(f"{file.name} {size}\n".encode())
            with file.open("rb") as content:
                for piece in range(PIECES):
                    content.seek(size * piece // PIECES)
                    found.update(content.read(PIECE_BYTES))
    return found.hexdigest()[:16]
