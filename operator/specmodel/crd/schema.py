"""From pydantic's JSON schema to what the API server calls a structural schema.

Pydantic emits references, unions with null, titles and `additionalProperties: false`, all of which a CRD refuses or
ignores. This module rewrites them and knows nothing of this API beyond the names of its list-maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

INT32_MAXIMUM = 2**31 - 1

#: Lists whose items have a key: merged by it under server-side apply. Every other list is replaced as a whole.
LIST_MAPS: Mapping[str, str] = {"conditions": "type", "env": "name"}

#: The order in which people expect the words of a schema.
_ORDER = (
    "description", "type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems",
    "maxItems", "maxProperties", "default", "required", "properties", "items", "additionalProperties",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations",
)  # fmt: skip


class UnsupportedSchemaError(Exception):
    """A wire type uses something that a structural schema cannot say; the message names it."""


def structural_schema(wire_type: type[BaseModel], *, with_defaults: bool) -> Schema:
    """Return the OpenAPI v3 schema of a wire type, under wire names.

    `with_defaults` False leaves defaults out: the API server would write them into every status. Raises
    `UnsupportedSchemaError`.
    """
    document = wire_type.model_json_schema(by_alias=True, mode="validation")
    return _convert(document, document.get("$defs", {}), name="", with_defaults=with_defaults)


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any], *, name: str, with_defaults: bool) -> Schema:
    found = _without_refused_words(_resolve(node, definitions))

    def child(schema: Mapping[str, Any], child_name: str = "") -> Schema:
        return _convert(schema, definitions, name=child_name, with_defaults=with_defaults)

    if "properties" in found:
        found["properties"] = {key: child(value, key) for key, value in found["properties"].items()}
    if "additionalProperties" in found:
        found["additionalProperties"] = child(found["additionalProperties"])
    if "items" in found:
        found["items"] = child(found["items"])
        found |= _list_type(name)
    if found.get("type") == "integer":
        found["format"] = "int32" if found.get("maximum", INT32_MAXIMUM + 1) <= INT32_MAXIMUM else "int64"
    if found.get("type") not in {"object", "array", "integer", "string", "boolean"}:
        message = f"{name or 'the root'}: type {found.get('type')!r} cannot be stated in a structural schema"
        raise UnsupportedSchemaError(message)
    _set_default(found, with_defaults=with_defaults)
    unknown = set(found) - set(_ORDER)
    if unknown:
        message = f"{name or 'the root'}: {', '.join(sorted(unknown))} cannot be stated in a structural schema"
        raise UnsupportedSchemaError(message)
    return {key: found[key] for key in _ORDER if key in found}


def _without_refused_words(node: Schema) -> Schema:
    found = {key: value for key, value in node.items() if key not in {"title", "$defs", "propertyNames"}}
    if found.get("additionalProperties") is False:
        del found["additionalProperties"]
    if "const" in found:
        found["enum"] = [found.pop("const")]
    if "description" in found:
        found["description"] = _sentence(found["description"])
    return found


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Follow references and take the member of `anyOf` that is not null; what stands beside them wins."""
    found = dict(node)
    while "$ref" in found or "anyOf" in found:
        if "$ref" in found:
            target = definitions[found.pop("$ref").rpartition("/")[2]]
        else:
            choices = [choice for choice in found.pop("anyOf") if choice.get("type") != "null"]
            if len(choices) != 1:
                message = f"a union of {len(choices)} types cannot be stated in a structural schema"
                raise UnsupportedSchemaError(message)
            target = choices[0]
        found = {**target, **found}
    return found


def _list_type(name: str) -> Schema:
    if name in LIST_MAPS:
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [LIST_MAPS[name]]}
    return {"x-kubernetes-list-type": "atomic"}


def _set_default(found: Schema, *, with_defaults: bool) -> None:
    """Keep a default that says something. Whole objects are written out: rules are tried on a default as it stands."""
    if "default" not in found:
        return
    value = _stated(found.pop("default"), found)
    if with_defaults and value is not None and value != []:
        found["default"] = value


def _stated(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a default with those members only that have a schema default of their own."""
    if not isinstance(value, dict):
        return value
    members = {key: schema.get("properties", {}).get(key, {}) for key in value}
    return {key: _stated(value[key], member) for key, member in members.items() if "default" in member}


def _sentence(text: str) -> str:
    """Return a docstring's first paragraph on one line, without its markup."""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).replace("`", "")
