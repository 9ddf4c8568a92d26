"""The table of what the cluster is made of, and which Go builds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cluster import golang, versions
from tests.cluster.faults import ClusterError


@pytest.mark.parametrize(
    ("asked", "environment", "release"),
    [
        (None, None, "1.37.2"),
        (None, "1.35", "1.35.4"),
        ("1.35", None, "1.35.4"),
        ("1.37.2", "1.35", "1.37.2"),
    ],
)
def test_the_release_is_the_one_asked_for_then_that_of_the_environment_then_the_newest(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, environment: str | None, release: str
) -> None:
    monkeypatch.delenv("K8S", raising=False)
    if environment:
        monkeypatch.setenv("K8S", environment)
    assert versions.kubernetes_version(asked) == release


def test_a_release_that_is_not_in_the_table_is_refused_with_those_that_are() -> None:
    with pytest.raises(ClusterError, match=r"1\.29 is not built here: choose one of 1\.37 \(1\.37\.2\), 1\.35"):
        versions.kubernetes_version("1.29")


def test_each_minor_has_a_folder_of_its_own_and_the_tools_are_built_once_for_all() -> None:
    newest, oldest = (versions.kubernetes(release) for release in versions.MINORS.values())
    assert newest.key != oldest.key
    assert newest.name in newest.key


def test_a_program_added_to_the_table_is_built_into_a_new_folder() -> None:
    more = versions.Program(name="promtool", package="github.com/prometheus/prometheus/cmd/promtool")
    assert replace(versions.TOOLS, programs=(*versions.TOOLS.programs, more)).key != versions.TOOLS.key


def test_no_two_programs_have_one_name() -> None:
    groups = (versions.kubernetes("1.37.2"), versions.TOOLS, versions.KIND)
    names = [program.name for group in groups for program in group.programs]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.27 linux/arm64", (1, 27, 0)),
        ("go version go1.19.8 X:boringcrypto linux/amd64", (1, 19, 8)),
        ("bash: go: command not found", (0, 0, 0)),
    ],
)
def test_the_version_of_go_is_read_from_what_it_says(told: str, version: tuple[int, int, int]) -> None:
    assert golang.version_of(told) == version


def test_the_wheel_of_go_is_new_enough() -> None:
    assert golang.version_of(f"go{versions.GO_WHEEL}") >= versions.GO_MINIMUM
