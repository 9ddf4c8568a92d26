"""The repository keeps what it says: no index hosts, no private paths, generated files marked, links that resolve."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Spelt in parts, so that this file may be searched like any other.
FOREIGN = [
    "pypi" + ".org", "pythonhosted" + ".org", "proxy.golang" + ".org", "registry.npmjs" + ".org", "deb.debian" + ".org",
    "/work" + "/", "shared" + "/data", "shared" + "/node", "shared" + "/design", "shared" + "/facts", "shared" + "/gpu",
]  # fmt: skip
LARGEST_BYTES = 1_000_000


@cache
def tracked() -> tuple[Path, ...]:
    """Return every file that git knows and that is there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(path for line in listed.splitlines() if (path := ROOT / line).is_file())


def text_of(path: Path) -> str:
    """Return a file's text, or nothing when it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize("word", FOREIGN)
def test_no_file_names_an_index_or_a_private_path(word: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in tracked() if word in text_of(path)] == []


def test_no_file_is_larger_than_a_megabyte() -> None:
    assert [str(path) for path in tracked() if path.stat().st_size > LARGEST_BYTES] == []


def test_requirements_are_pinned_with_hashes_and_name_no_index() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert "--index" not in text, path
        pins = [line for line in text.splitlines() if re.match(r"^[a-z0-9]", line)]
        assert pins, path
        assert all("==" in line and line.endswith("\\") for line in pins), path


def test_the_source_root_is_no_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_generated_files_say_so_in_their_first_lines() -> None:
    generated = [
        *(ROOT / "crds").glob("*.yaml"),
        *(ROOT / "docs" / name for name in ("api.md", "conditions.md", "engines.md")),
    ]
    assert len(generated) > 3
    for path in generated:
        assert "generated" in path.read_text(encoding="utf-8")[:300].lower(), path


def test_links_between_documents_resolve() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in tracked()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text_of(path))
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", text_of(ROOT / "Makefile"), flags=re.MULTILINE))
    named = {
        name
        for path in tracked()
        if path.suffix == ".md"
        for name in re.findall(r"`(?:[A-Z0-9]+=\S+ )*make ([a-z0-9-]+)", text_of(path))
    }
    assert named <= targets


def test_nothing_is_left_to_do_in_words() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
    assert [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in words
        if path.suffix in {".py", ".sh", ".md", ".yaml"} and re.search(rf"\b{word}\b", text_of(path))
    ] == []
