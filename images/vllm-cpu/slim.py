"""Make vLLM's packages small and importable without CUDA: `slim.py SITE`. Run once, on a fresh installation.

The package index has torch for CUDA alone. Its half for GPUs (libtorch_cuda.so, 470 MB) and the CUDA libraries that
are not installed are replaced by small shared objects that define what the rest links: each with its soname and with
exactly the symbols asked of it. A call into one says its name and aborts, so that nothing wrong can be computed.
Needs cc, nm and readelf.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: Removed though they are installed; what is asked of them is defined by the first one's stub.
REPLACED = ("libtorch_cuda.so", "libtorch_nvshmem.so")
#: Of no use on a CPU: headers, compilers, static libraries, back ends for GPUs. Patterns below the folder.
NEEDLESS = (
    "torch/include",
    "torch/bin/protoc*",
    "torch/share",
    "torch/lib/libtorch_cuda_linalg.so",
    "nvidia/*/include",
    "nvidia/*/lib/libnvperf*",
    "nvidia/*/lib/libcheckpoint*",
    "nvidia/*/lib/libpcsamplingutil*",
    "lib/*.a",
    "lib/*.dbg",
    "lib/libomptarget*",
    "lib/libur_*",
    "lib/libpi_*",
    "lib/libsycl*",
    "bin",
)
#: Called while torch is imported, and answered with a pointer to zeros: a place where the caller leaves a pointer.
PLACES = ("_ZN4c10d15get_gil_checkerEv",)
#: Constructors called while torch is imported, for default values that nobody uses: each makes an object of zeros of
#: the type whose table of virtual functions is named.
EMPTY = {"_ZN4c10d16ProcessGroupNCCL7OptionsC1Eb": "_ZTVN4c10d16ProcessGroupNCCL7OptionsE"}
#: Symbols of libraries that give theirs no version, by the beginning of their names.
PREFIXES = {"libcufile": "cuFile", "libnccl": "nccl"}
STOP = """#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern char _ZTVN10__cxxabiv117__class_type_infoE[];
static void stop(const char *name) { fprintf(stderr, "%s: this torch runs without CUDA\\n", name); abort(); }
"""
UNDEFINED = 2
DEFINED = 3


def main(site: Path) -> None:
    """Replace what is not there or of no use, and remove the rest."""
    lib = site / "torch" / "lib"
    exported = {name: kind for library in REPLACED for name, _, kind in symbols(lib / library)[1]}
    for pattern in (*NEEDLESS, *(f"torch/lib/{name}" for name in REPLACED)):
        for path in site.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    present = [*lib.glob("*.so*"), *site.glob("torch/*.so"), *site.glob("vllm/*.so"), *site.glob("nvidia/*/lib/*.so*")]
    asked: set[tuple[str, str]] = set()
    given: set[str] = set()
    needed: set[str] = set()
    for path in present:
        undefined, defined = symbols(path)
        asked |= undefined
        given |= {name for name, _, _ in defined}
        needed |= set(re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl|torch_cuda).*)\]", output("readelf", "-dW", path)))
    open_symbols = {(name, version) for name, version in asked if name not in given}
    for soname in sorted(needed - {path.name for path in present}):
        kinds = exported if soname == REPLACED[0] else {}
        prefix = PREFIXES.get(soname.partition(".")[0])
        wanted = {
            (name, version, kinds.get(name, "T"))
            for name, version in open_symbols
            if version == soname or name in kinds or (prefix and not version and name.startswith(prefix))
        }
        compile_stub(lib / soname, wanted)
        print(f"{soname}: {len(wanted)} symbols")


def output(*command: str | Path) -> str:
    """Return what a command prints."""
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def symbols(path: Path) -> tuple[set[tuple[str, str]], set[tuple[str, str, str]]]:
    """Return the symbols that a library asks of others, (name, version), and those that it gives, with their kind."""
    undefined: set[tuple[str, str]] = set()
    defined: set[tuple[str, str, str]] = set()
    for line in output("nm", "-D", "--with-symbol-versions", path).splitlines():
        words = line.split()
        name, _, version = words[-1].partition("@")
        if len(words) == UNDEFINED:
            undefined.add((name, version.lstrip("@")))
        elif len(words) == DEFINED:
            defined.add((name, version.lstrip("@"), words[1]))
    return undefined, defined


def compile_stub(target: Path, wanted: set[tuple[str, str, str]]) -> None:
    """Write a shared object that defines the symbols (name, version or empty, nm's letter)."""
    code = [STOP]
    versions: dict[str, list[str]] = {}
    for name, version, kind in sorted(wanted):
        code.append(definition(name, kind))
        if version:
            versions.setdefault(version, []).append(f"{name};")
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        source.write_text("\n".join(code), encoding="utf-8")
        script.write_text(
            "".join(f"{version} {{ global: {' '.join(names)} }};\n" for version, names in versions.items()),
            encoding="utf-8",
        )
        options = [f"-Wl,--version-script={script}"] if versions else []
        output(
            "cc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{target.name}", *options, "-o", target, source,
            "-l:libstdc++.so.6",
        )  # fmt: skip


def definition(name: str, kind: str) -> str:
    """Return a symbol's C code. C++ types are looked at when bindings are made, so they get their names."""
    if name.startswith("_ZTI"):
        base = "_ZTVN10__cxxabiv117__class_type_infoE + 16"
        return f'const void *{name}[8] = {{ {base}, "{name.removeprefix("_ZTI")}" }};'
    if name in PLACES:
        return f"void *{name}(void) {{ static void *place[8]; return place; }}"
    if name in EMPTY:
        body = f"memset(self, 0, malloc_usable_size(self)); self[0] = {EMPTY[name]} + 16;"
        return f"extern char {EMPTY[name]}[];\nvoid {name}(void **self) {{ {body} }}"
    if kind in "TtWi":
        return f'void {name}(void) {{ stop("{name}"); }}'
    return f"const void *{name}[64];"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
