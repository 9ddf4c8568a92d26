"""The CRDs are structural, bounded, small, and what the generator writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from specmodel.api.conditions import REASONS, RUN_REASONS, ConditionType, RunConditionType
from specmodel.crd.definition import MODEL_COLUMNS, SIZE_MAXIMUM_BYTES, model_definition, run_definition
from specmodel.crd.main import drift, generated_files, main
from specmodel.crd.pages import chart_values
from specmodel.crd.schema import UnsupportedSchemaError, structural_schema

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = [model_definition(), run_definition()]


def schema_of(definition: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every node of a schema with its path."""
    yield path, schema
    for key, member in schema.get("properties", {}).items():
        yield from nodes(member, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def ruled(schema: dict[str, Any], path: str = "", *, is_ruled: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every node that a rule can see."""
    is_ruled = is_ruled or ("x-kubernetes-validations" in schema and path != "")
    if is_ruled:
        yield path, schema
    for key, member in schema.get("properties", {}).items():
        yield from ruled(member, f"{path}.{key}", is_ruled=is_ruled)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from ruled(schema[key], f"{path}[]", is_ruled=is_ruled)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d["spec"]["names"]["plural"])
def test_every_node_is_structural(definition: dict[str, Any]) -> None:
    for path, node in nodes(schema_of(definition)):
        assert node.get("type") in {"object", "array", "string", "integer", "boolean"}, path
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title", "const"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert node["type"] != "array" or node["x-kubernetes-list-type"] in {"atomic", "map", "set"}, path
        assert node["type"] != "integer" or node["format"] in {"int32", "int64"}, path


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d["spec"]["names"]["plural"])
def test_everything_under_a_rule_is_bounded(definition: dict[str, Any]) -> None:
    for path, node in ruled(schema_of(definition)):
        bounded = {"array": "maxItems", "string": "maxLength"}.get(node["type"])
        bounded = "maxProperties" if "additionalProperties" in node else bounded
        assert bounded is None or bounded in node or "enum" in node, path


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d["spec"]["names"]["plural"])
def test_a_definition_is_small_enough_for_etcd_and_for_people(definition: dict[str, Any]) -> None:
    assert len(json.dumps(definition)) < SIZE_MAXIMUM_BYTES


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d["spec"]["names"]["plural"])
def test_every_field_that_a_user_writes_is_described(definition: dict[str, Any]) -> None:
    spec = schema_of(definition)["properties"]["spec"]
    silent = [path for path, node in nodes(spec) if not path.endswith("[]") and not node.get("description")]
    assert silent == []


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d["spec"]["names"]["plural"])
def test_a_status_has_no_defaults(definition: dict[str, Any]) -> None:
    status = schema_of(definition)["properties"]["status"]
    assert [path for path, node in nodes(status) if "default" in node] == []


def test_a_dataset_has_no_schema_default_that_would_get_in_the_way_of_prompts() -> None:
    for definition in DEFINITIONS:
        assert not any("synthetic" in json.dumps(node.get("default", {})) for _, node in nodes(schema_of(definition)))


def test_the_scale_subresource_points_at_fields_that_exist() -> None:
    scale = model_definition()["spec"]["versions"][0]["subresources"]["scale"]
    paths = {path for path, _ in nodes(schema_of(model_definition()))}
    assert set(scale.values()) <= paths


def test_columns_fit_into_120_characters_without_the_wide_ones() -> None:
    assert sum(len(column.name) + 3 for column in MODEL_COLUMNS if not column.priority) < 64


def test_generated_files_are_in_the_repository_as_generated() -> None:
    assert drift(ROOT, generated_files(ROOT)) == []


def test_generating_twice_writes_nothing_the_second_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "operator" / "specmodel" / "api").mkdir(parents=True)
    assert main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out
    assert main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["--root", str(tmp_path), "--check"]) == 0


def test_a_changed_file_fails_the_check_with_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "operator" / "specmodel" / "api").mkdir(parents=True)
    main(["--root", str(tmp_path)])
    (tmp_path / "crds" / "benchmarkruns.yaml").write_text("edited")
    assert main(["--root", str(tmp_path), "--check"]) == 1
    assert "run `specmodel crd`" in capsys.readouterr().err
    assert (tmp_path / "crds" / "benchmarkruns.yaml").read_text() == "edited"


def test_a_folder_that_is_no_repository_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tmp_path)]) == 2
    assert "use --root" in capsys.readouterr().err


def test_a_crd_reads_back_as_what_was_generated() -> None:
    text = (ROOT / "crds" / "speculativemodels.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == model_definition()


class _Union(BaseModel):
    value: int | str


class _Number(BaseModel):
    value: float


@pytest.mark.parametrize("wire_type", [_Union, _Number])
def test_a_type_that_no_structural_schema_can_say_is_refused(wire_type: type[BaseModel]) -> None:
    with pytest.raises(UnsupportedSchemaError):
        structural_schema(wire_type, with_defaults=True)


def test_every_condition_and_reason_is_on_its_page() -> None:
    page = (ROOT / "docs" / "conditions.md").read_text(encoding="utf-8")
    assert [name for name in (*REASONS, *RUN_REASONS) if f"| `{name}` |" not in page] == []
    assert [kind for kind in (*ConditionType, *RunConditionType) if f"| `{kind.value}` |" not in page] == []


def test_every_value_of_the_chart_is_documented() -> None:
    text = (ROOT / "charts" / "specmodel" / "values.yaml").read_text(encoding="utf-8")
    documented = {value.path for value in chart_values(text)}

    def undocumented(values: dict[str, Any], path: str = "") -> Iterator[str]:
        for key, value in values.items():
            own = f"{path}{key}"
            if own in documented:
                continue
            if isinstance(value, dict) and value:
                yield from undocumented(value, f"{own}.")
            else:
                yield own

    assert list(undocumented(yaml.safe_load(text))) == []
