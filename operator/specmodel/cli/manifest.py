"""The model of `-f MODEL.yaml`, checked as the API server would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specmodel.api.labels import API_VERSION, MODEL_KIND, NAME_MAXIMUM
from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec
from specmodel.api.rule import is_dns_label
from specmodel.cli.reading import InputError, problems_of, read_yaml, shown

TOP_LEVEL = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


def read_model(path: Path) -> SpeculativeModel:
    """Return the one SpeculativeModel of a file. Raises `InputError`."""
    return read_written(path)[0]


def read_written(path: Path) -> tuple[SpeculativeModel, dict[str, Any]]:
    """Return the one SpeculativeModel of a file, also as its author wrote it. Raises `InputError`."""
    documents = read_yaml(path)
    if not documents:
        raise InputError(f"{path}: is empty; it must hold a {MODEL_KIND}")
    models = [one for one in documents if isinstance(one, dict) and one.get("kind") == MODEL_KIND]
    if not models:
        kinds = ", ".join(_kind(one) for one in documents)
        raise InputError(f"{path}: kind: must be {MODEL_KIND}; found {kinds}")
    if len(models) > 1:
        names = ", ".join(_name(one) for one in models)
        raise InputError(f"{path}: holds {len(models)} models ({names}); leave the one to decide for")
    return _parse(path, models[0]), models[0]


def _parse(path: Path, value: dict[str, Any]) -> SpeculativeModel:
    problems: list[str] = []
    if value.get("apiVersion") != API_VERSION:
        problems.append(f"{path}: apiVersion: must be {API_VERSION}, not {shown(value.get('apiVersion'))}")
    problems += [f"{path}: {key}: there is no such field" for key in sorted(map(str, set(value) - TOP_LEVEL))]
    name = _name(value)
    if not is_dns_label(name, longest=NAME_MAXIMUM):
        problems.append(
            f"{path}: metadata.name: {name!r} must be lower-case letters, digits and '-', at most {NAME_MAXIMUM}"
        )
    spec: SpeculativeModelSpec | None = None
    try:
        spec = SpeculativeModelSpec.model_validate(value.get("spec", {}))
    except ValidationError as error:
        problems += [f"{path}: {line}" for line in problems_of(error, prefix="spec", kind=SpeculativeModelSpec)]
    if problems or spec is None:
        raise InputError(*problems)
    metadata = value["metadata"]
    generation = metadata.get("generation")
    return SpeculativeModel(
        name=name,
        namespace=str(metadata.get("namespace") or "default"),
        generation=max(0, generation) if type(generation) is int else 0,
        spec=spec,
    )


def _name(value: dict[str, Any]) -> str:
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _kind(value: object) -> str:
    kind = value.get("kind", "no kind") if isinstance(value, dict) else "no object"
    return kind if isinstance(kind, str) else shown(kind)
