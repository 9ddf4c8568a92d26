"""Image archives without a container tool: a file tree, or a tar of one, in the format of `docker save`. One layer."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of one layer, and how a container of it starts."""

    reference: str
    layer: Path
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = field(default=(SEARCH_PATH,))


def architecture() -> str:
    """Return this machine's architecture in the words of images."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def write(image: Image, target: Path) -> None:
    """Write the archive; whole or not at all."""
    with image.layer.open("rb") as layer:
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": list(image.environment),
            "Entrypoint": list(image.entrypoint) or None,
            "Cmd": list(image.command) or None,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "specmodel tests/cluster"}],
    }
    text = json.dumps(config, sort_keys=True).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [image.reference], "Layers": [f"{digest}/layer.tar"]}]
    new = target.with_name(f".new-{target.name}")
    with tarfile.open(new, "w") as archive:
        _add(archive, name, text)
        archive.add(image.layer, f"{digest}/layer.tar")
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    new.replace(target)


def write_layer(files: dict[str, Path], target: Path) -> None:
    """Write a layer of executables, owned by root and dated the epoch: the same files give the same layer."""
    with tarfile.open(target, "w") as layer:
        for name, source in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = source.stat().st_size
            entry.mode = 0o755
            with source.open("rb") as stream:
                layer.addfile(entry, stream)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
