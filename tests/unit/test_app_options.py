"""Flags, their environment variables and their defaults."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import pytest

from specmodel.app.options import Options, add_arguments, read_options
from specmodel.domain.settings import H100_PRODUCTS


def options(*flags: str, environment: Mapping[str, str] | None = None) -> Options:
    parser = argparse.ArgumentParser()
    add_arguments(parser, environment or {})
    return read_options(parser.parse_args(flags))


def test_without_flags_the_release_decides() -> None:
    found = options()
    assert found.settings.gpu_products == H100_PRODUCTS
    assert found.namespaces == ()
    assert found.has_leader_election
    assert (found.health_port, found.metrics_port) == (8080, 8081)


def test_the_environment_sets_what_flags_do_not() -> None:
    environment = {
        "SPECMODEL_ENGINE_IMAGE": "engine:1",
        "SPECMODEL_NAMESPACE": "b,a",
        "SPECMODEL_HEALTH_PORT": "9",
        "SPECMODEL_NO_LEADER_ELECTION": "true",
        "POD_NAMESPACE": "system",
    }
    found = options("--engine-image", "engine:2", environment=environment)
    assert found.settings.engine_image == "engine:2"
    assert found.namespaces == ("a", "b")
    assert found.health_port == 9
    assert not found.has_leader_election
    assert found.lease_namespace == "system"


def test_namespaces_may_be_repeated_and_products_are_separated_by_commas() -> None:
    found = options("--namespace", "b", "--namespace", "a", "--namespace", "b", "--gpu-products", "X, Y")
    assert found.namespaces == ("a", "b")
    assert found.settings.gpu_products == ("X", "Y")


@pytest.mark.parametrize("flags", [("--health-port", "web"), ("--log-level", "loud"), ("--image-pull-policy", "Maybe")])
def test_what_cannot_be_meant_is_refused(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(*flags)
    assert flags[1] in capsys.readouterr().err
