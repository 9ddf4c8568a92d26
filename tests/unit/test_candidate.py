"""Which candidates a spec names, which engine they run, and what their digests cover."""

from __future__ import annotations

from typing import Any

import pytest

from specmodel.domain.candidate import candidate_from_json
from specmodel.domain.engine import RESERVED_FLAGS, resolve_engine, version_of
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.settings import Settings
from tests.support.measured import candidate_of, candidates_of, model_of, shape_of


def test_the_reference_without_drafter_is_always_a_candidate() -> None:
    shapes = [
        shape_of(one) for one in candidates_of(model_of(drafter={"uri": "hf://a/d", "speculativeTokens": [3, 5]}))
    ]
    assert shapes == [(1, 0, "None"), (1, 3, "None"), (1, 5, "None"), (2, 0, "None"), (2, 3, "None"), (2, 5, "None")]


def test_a_model_without_drafter_has_the_reference_alone() -> None:
    model = model_of(drafter={"method": "None"}, hardware={"gpusPerReplica": [1]})
    assert [shape_of(one) for one in candidates_of(model)] == [(1, 0, "None")]


def test_placement_changes_the_revision_and_keeps_the_digest() -> None:
    plain = candidate_of(model_of(), 1, 3)
    placed = candidate_of(model_of(hardware={"nodeSelector": {"zone": "a"}}), 1, 3)
    assert plain.digest == placed.digest
    assert plain.revision != placed.revision


@pytest.mark.parametrize(
    "changes",
    [
        {"drafter": {"uri": "hf://example/other", "speculativeTokens": [3]}},
        {"engine": {"env": [{"name": "A", "value": "1"}]}},
        {"engine": {"extraArgs": ["--max-model-len=4096"]}},
        {"quantization": {"kvCache": "FP8"}},
        {"model": {"uri": "hf://example/other"}},
    ],
    ids=["drafter", "env", "arguments", "kv cache", "model"],
)
def test_what_changes_tokens_speed_or_memory_is_another_digest(changes: dict[str, Any]) -> None:
    assert candidate_of(model_of(**changes), 1, 3).digest != candidate_of(model_of(), 1, 3).digest


def test_a_candidate_survives_its_annotation() -> None:
    hardware = {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"zone": "a"}}
    one = candidate_of(model_of(hardware=hardware), 2, 3)
    assert candidate_from_json(one.to_json()) == one
    with pytest.raises(ValueError, match="not a candidate"):
        candidate_from_json('{"model_uri": 1}')


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.25.1", "0.25.1"),
        ("registry.example:5000/team/vllm:0.25.1", "0.25.1"),
        ("vllm/vllm-openai:v0.25.1@sha256:00ff", "0.25.1"),
        ("registry.example:5000/vllm", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai:v0.25.1-cu128", None),
    ],
)
def test_the_version_comes_from_a_plain_tag_alone(image: str, version: str | None) -> None:
    assert version_of(image) == version


def reason_of(**engine: object) -> str:
    """Return why an engine is refused."""
    with pytest.raises(InvalidModelError) as caught:
        resolve_engine(model_of(engine=dict(engine)), None, Settings())
    return f"{caught.value.reason}: {caught.value.message}"


def test_an_engine_that_cannot_be_rendered_for_is_refused_with_what_to_write() -> None:
    assert reason_of(image="vllm/vllm-openai:nightly").startswith("EngineVersionUnknown")
    assert "spec.engine.version" in reason_of(image="vllm/vllm-openai:nightly")
    assert reason_of(image="vllm/vllm-openai:v0.21.9").startswith("EngineUnsupported")
    assert reason_of(image="vllm/vllm-openai:nightly", version="0.9.0").startswith("EngineUnsupported")


@pytest.mark.parametrize(
    "argument",
    [
        "--tensor-parallel-size=4",
        "--tensor_parallel_size",
        "-tp",
        "--speculative-config={}",
        "--speculative-config.method=eagle3",
        "--port=1",
    ],
)
def test_a_flag_that_the_operator_owns_is_refused_with_the_field_to_use(argument: str) -> None:
    with pytest.raises(InvalidModelError) as caught:
        resolve_engine(model_of(engine={"extraArgs": ["--max-model-len=4096", argument]}), None, Settings())
    assert caught.value.reason == "ReservedFlag"
    assert "spec.engine.extraArgs[1]" in caught.value.message
    assert any(instead in caught.value.message for instead in RESERVED_FLAGS.values())


def test_an_upgraded_operator_leaves_the_incumbents_engine() -> None:
    incumbent = candidate_of(model_of(), 1, 3)
    newer = Settings(engine_image="vllm/vllm-openai:v0.33.0")
    assert resolve_engine(model_of(), incumbent, newer).image == incumbent.engine_image
    assert resolve_engine(model_of(), None, newer).version == "0.33.0"
