"""What the API server refuses is refused without one too, and in the same words: `specmodel decide` has no API server.

tests/e2e/test_admission.py puts the same files before a real API server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from specmodel.api.benchmark import BenchmarkRunSpec
from specmodel.api.labels import MODEL_KIND
from specmodel.api.model import SpeculativeModel
from specmodel.api.rule import RuledWire
from specmodel.domain.engine import RESERVED_FLAGS, check_extra_args
from specmodel.domain.invalid import InvalidModelError

ROOT = Path(__file__).resolve().parents[2]
BAD = sorted((ROOT / "tests" / "admission" / "bad").glob("*.yaml"))
GOOD = [*sorted((ROOT / "tests" / "admission" / "good").glob("*.yaml")), *sorted((ROOT / "examples").glob("*.yaml"))]
#: Refusals in the API server's own words, for which pydantic has words of its own.
SERVERS_OWN = (
    "Required value",
    "should match",
    "supported values",
    "should be",
    "should have",
    "must be of type",
    "unknown field",
)


def parse(path: Path) -> None:
    """Parse every manifest of a file as the program does, rules and all."""
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        parse_one(manifest)


def parse_one(manifest: dict[str, Any]) -> None:
    if manifest["apiVersion"] != "specmodel.dev/v1alpha1":
        return
    if manifest["kind"] != MODEL_KIND:
        BenchmarkRunSpec.model_validate(manifest["spec"])
        return
    name = manifest["metadata"]["name"]
    model = SpeculativeModel.model_validate({"name": name, "namespace": "default", "spec": manifest["spec"]})
    check_extra_args(model.spec.engine.extra_args)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_wrong_manifest_is_refused_without_an_api_server(path: Path) -> None:
    with pytest.raises((ValidationError, InvalidModelError)) as refused:
        parse(path)
    wanted = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# refused: ")
    if isinstance(refused.value, ValidationError) and not any(words in wanted for words in SERVERS_OWN):
        assert wanted.replace("Duplicate value", "env holds a name twice") in str(refused.value)


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_right_manifest_is_taken_without_an_api_server(path: Path) -> None:
    parse(path)


def test_every_rule_has_a_manifest_that_breaks_it() -> None:
    refusals = [path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# refused: ") for path in BAD]
    #: Transitions need two manifests (test_admission.py); the API server finds duplicate names before the rule does.
    elsewhere = ("cannot change once created", "env holds a name twice")
    untried = [
        rule.message
        for wire_type in ruled_types()
        for rule in wire_type.rules
        if not any(refusal in rule.message for refusal in refusals) and not any(w in rule.message for w in elsewhere)
    ]
    assert untried == []


def test_every_rule_says_what_to_write_in_one_line() -> None:
    for wire_type in ruled_types():
        for rule in wire_type.rules:
            assert 20 < len(rule.message) < 160, rule.message
            assert "\n" not in rule.message


def test_no_reserved_flag_gets_past_the_domain() -> None:
    for flag in RESERVED_FLAGS:
        with pytest.raises(InvalidModelError, match="the operator owns"):
            check_extra_args([f"{flag}=1"])


def ruled_types() -> list[type[RuledWire]]:
    """Return every wire type that has rules."""
    return RuledWire.__subclasses__()
