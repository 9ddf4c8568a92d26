"""When an image is built again, what a build sees of this machine, and what an archive holds."""

from __future__ import annotations

import configparser
import json
import tarfile
from pathlib import Path

import pytest

from tests.cluster import archive, images
from tests.cluster.faults import ClusterError

CONTAINERFILE = """\
ARG BASE=python:3.13-slim-bookworm
FROM ${BASE}
COPY requirements/operator.txt /tmp/
COPY --chown=65532:65532 operator/specmodel \\
     /app/specmodel
COPY --from=other /bin/thing /bin/thing
COPY ["docs/one page.md", "/docs/"]
RUN echo COPY nothing /here
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name in ("requirements/operator.txt", "operator/specmodel/__init__.py", "docs/one page.md", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / "Containerfile").write_text(CONTAINERFILE, encoding="utf-8")
    return tmp_path


def key(context: Path, base: str = "base-1") -> str:
    return images.key_of(context / "Containerfile", context, base)


def test_what_a_containerfile_copies_from_the_repository_is_read_from_it() -> None:
    assert images.sources(CONTAINERFILE) == ["requirements/operator.txt", "operator/specmodel", "docs/one page.md"]


def test_an_image_keeps_its_key_while_nothing_it_copies_changes(context: Path) -> None:
    before = key(context)
    (context / "README.md").write_text("copied by nobody", encoding="utf-8")
    compiled = context / "operator" / "specmodel" / "__pycache__"
    compiled.mkdir()
    (compiled / "x.cpython-311.pyc").write_bytes(b"left by a test run")
    assert key(context) == before


@pytest.mark.parametrize("changed", ["requirements/operator.txt", "operator/specmodel/__init__.py", "Containerfile"])
def test_an_image_gets_a_new_key_when_something_it_is_made_of_changes(context: Path, changed: str) -> None:
    before = key(context)
    (context / changed).write_text((context / changed).read_text(encoding="utf-8") + "\n# more\n", encoding="utf-8")
    assert key(context) != before


def test_an_image_gets_a_new_key_when_a_file_is_added_or_made_executable_or_the_base_changes(context: Path) -> None:
    keys = [key(context), key(context, base="base-2")]
    (context / "operator" / "specmodel" / "new.py").touch()
    keys.append(key(context))
    (context / "operator" / "specmodel" / "new.py").chmod(0o755)
    keys.append(key(context))
    assert len(set(keys)) == len(keys)


def test_a_containerfile_that_copies_what_is_not_there_is_named(context: Path) -> None:
    (context / "requirements" / "operator.txt").unlink()
    with pytest.raises(ClusterError, match=r"Containerfile copies requirements/operator\.txt, which is not there"):
        key(context)


def test_the_settings_of_pip_that_a_build_sees_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    settings = configparser.ConfigParser()
    settings.read_string(images._pip_settings())
    assert settings["global"]["index-url"] == "https://mirror.example/simple"


def test_an_archive_holds_one_layer_under_the_name_that_the_cluster_looks_for(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    layer, target = tmp_path / "layer.tar", tmp_path / "pause.tar"
    archive.write_layer({"pause": program}, layer)
    archive.write(
        archive.Image(reference="localhost/specmodel-pause:local", layer=layer, entrypoint=("/pause",)), target
    )
    with tarfile.open(target) as held:

        def read(name: str) -> bytes:
            member = held.extractfile(name)
            assert member is not None
            return member.read()

        (manifest,) = json.loads(read("manifest.json"))
        config = json.loads(read(manifest["Config"]))
        assert manifest["RepoTags"] == ["localhost/specmodel-pause:local"]
        assert config["config"]["Entrypoint"] == ["/pause"]
        assert read(manifest["Layers"][0]) == layer.read_bytes()


def test_the_same_files_make_the_same_layer(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    archive.write_layer({"pause": program}, tmp_path / "one.tar")
    program.touch()
    archive.write_layer({"pause": program}, tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_an_image_gets_a_new_key_when_the_packages_it_is_made_of_are_others(context: Path) -> None:
    assert key(context, "base-1 vllm-cpu-1") != key(context, "base-1 vllm-cpu-2")


def test_a_folder_of_packages_is_what_the_image_s_own_program_prints(
    context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "REPOSITORY", context)
    for name, code in (("good", "print('/cache/good-1')"), ("bad", "raise SystemExit('no network')"), ("none", "")):
        (context / "images" / name).mkdir(parents=True)
        if code:
            (context / "images" / name / "packages.py").write_text(code, encoding="utf-8")
    assert images.packages_of("none") is None
    assert images.packages_of("good") == Path("/cache/good-1")
    with pytest.raises(ClusterError, match=r"bad/packages\.py"):
        images.packages_of("bad")
