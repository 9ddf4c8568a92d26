"""Whether a server-side apply would change anything. Pure.

A PATCH that changes nothing is a write too: it is counted, audited and rung back. So, before any PATCH, the manifest is
compared with the live object in three ways:

    value     every field of the manifest is in the object with the same value (quantities by what they mean)
    owned     every field of the manifest is ours in `managedFields`, so that leaving it out later removes it
    leftover  every field that is ours is in the manifest; otherwise the PATCH would remove it

What the API server or others added beside our fields is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specmodel.api.labels import FIELD_MANAGER
from specmodel.manifests.quantities import parse_quantity

#: Under these keys, or at them, values are quantities.
_QUANTITY_MAPS = frozenset({"requests", "limits", "capacity", "hard", "overhead"})
_QUANTITIES = frozenset({"sizeLimit", "divisor"})
#: What names the elements of lists that are maps; the first that both sides have is used.
_LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
    "imagePullSecrets": ("name",),
    "conditions": ("type",),
    "candidates": ("candidate",),
}
#: What identifies the object; never in managedFields.
_IDENTITY = frozenset({"apiVersion", "kind"})
_METADATA_IDENTITY = frozenset({"name", "namespace", "uid", "resourceVersion"})


def first_difference(
    manifest: Mapping[str, Any], live: Mapping[str, Any], *, subresource: str = "", manager: str = FIELD_MANAGER
) -> str | None:
    """Return in words the first field that an apply of `manifest` would change, or None."""
    desired = {key: value for key, value in manifest.items() if key not in _IDENTITY}
    metadata = {k: v for k, v in manifest.get("metadata", {}).items() if k not in _METADATA_IDENTITY}
    desired["metadata"] = metadata
    if not metadata:
        del desired["metadata"]
    found = _value_difference(desired, live, "")
    if found is not None:
        return found
    owned = owned_fields(live, subresource=subresource, manager=manager)
    return _owned_difference(desired, owned, live, "")


def owned_fields(live: Mapping[str, Any], *, subresource: str = "", manager: str = FIELD_MANAGER) -> Mapping[str, Any]:
    """Return the tree of fields (fieldsV1) that a manager applied, empty when there is none."""
    entries = live.get("metadata", {}).get("managedFields")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and entry.get("subresource", "") == subresource
        ):
            fields = entry.get("fieldsV1")
            return fields if isinstance(fields, dict) else {}
    return {}


def _value_difference(desired: Any, live: Any, path: str, *, is_quantity: bool = False) -> str | None:
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        key_of_path = path.rpartition(".")[2]
        for key, value in desired.items():
            at = f"{path}.{key}" if path else str(key)
            if key not in live:
                if _is_zero(value):
                    continue
                return f"{at} is missing"
            quantity = is_quantity or key_of_path in _QUANTITY_MAPS or key in _QUANTITIES
            found = _value_difference(value, live[key], at, is_quantity=quantity)
            if found is not None:
                return found
        return None
    if isinstance(desired, list | tuple) and isinstance(live, list):
        return _list_difference(desired, live, path)
    if desired == live and isinstance(desired, bool) == isinstance(live, bool):
        return None
    if is_quantity and _is_same_quantity(desired, live):
        return None
    if _is_zero(desired) and live is None:
        return None
    return f"{path} is {_brief(live)}, wanted {_brief(desired)}"


def _is_same_quantity(desired: object, live: object) -> bool:
    try:
        return parse_quantity(str(desired)) == parse_quantity(str(live))
    except ValueError:
        return False


def _list_difference(desired: Sequence[Any], live: Sequence[Any], path: str) -> str | None:
    keys = _LIST_KEYS.get(path.rpartition(".")[2])
    if keys is not None and all(isinstance(item, Mapping) and keys[0] in item for item in desired):
        for item in desired:
            name = item[keys[0]]
            twin = next((other for other in live if isinstance(other, Mapping) and other.get(keys[0]) == name), None)
            if twin is None:
                return f"{path}[{name}] is missing"
            found = _value_difference(item, twin, f"{path}[{name}]")
            if found is not None:
                return found
        return None
    if len(desired) != len(live):
        return f"{path} has {len(live)} elements, wanted {len(desired)}"
    for index, (item, other) in enumerate(zip(desired, live, strict=True)):
        found = _value_difference(item, other, f"{path}[{index}]")
        if found is not None:
            return found
    return None


def _owned_difference(desired: Any, owned: Any, live: Any, path: str) -> str | None:
    if not isinstance(owned, Mapping):
        return None
    if isinstance(desired, Mapping):
        return _owned_mapping_difference(desired, owned, live, path)
    if isinstance(desired, list | tuple):
        return _owned_list_difference(desired, owned, live, path)
    return None


def _owned_mapping_difference(desired: Mapping[str, Any], owned: Mapping[str, Any], live: Any, path: str) -> str | None:
    ours = {name[2:] for name in owned if name.startswith("f:")}
    left = sorted(key for key in ours - set(desired) if not _is_identity(path, key))
    if left:
        return f"{_join(path, left[0])} is no longer wanted"
    if not ours and path:
        return None  # an atomic value or an empty map: owned as a whole
    for key, value in desired.items():
        at = _join(path, str(key))
        inner = live.get(key) if isinstance(live, Mapping) else None
        if key not in ours:
            if _is_zero(value) and _is_zero(inner):
                continue
            return f"{at} is not ours yet"
        found = _owned_difference(value, owned[f"f:{key}"], inner, at)
        if found is not None:
            return found
    return None


def _owned_list_difference(desired: Sequence[Any], owned: Mapping[str, Any], live: Any, path: str) -> str | None:
    keys = {name: _parse_key(name[2:]) for name in owned if name.startswith("k:")}
    values = {name: _parse_key(name[2:]) for name in owned if name.startswith("v:")}
    if not keys and not values:
        return None
    taken: set[str] = set()
    for item in desired:
        if isinstance(item, Mapping):
            name = next((n for n, key in keys.items() if n not in taken and _has_key(item, key)), None)
        else:
            name = next((n for n, value in values.items() if value == item), None)
        if name is None:
            return f"{path} has an element that is not ours yet"
        taken.add(name)
        if isinstance(item, Mapping):
            twins = live if isinstance(live, list) else []
            twin = next((o for o in twins if isinstance(o, Mapping) and _has_key(o, keys[name])), None)
            found = _owned_difference(item, owned[name], twin, f"{path}[{name[2:]}]")
            if found is not None:
                return found
    left = sorted((set(keys) | set(values)) - taken)
    return f"{path}[{left[0][2:]}] is no longer wanted" if left else None


def _parse_key(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _has_key(item: Mapping[str, Any], key: Any) -> bool:
    """Return whether the element has the key; a part that it leaves out has the server's default (a protocol)."""
    return isinstance(key, dict) and any(k in item for k in key) and all(item.get(k, v) == v for k, v in key.items())


def _is_identity(path: str, key: str) -> bool:
    return (path == "" and key in _IDENTITY) or (path == "metadata" and key in _METADATA_IDENTITY)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _is_zero(value: Any) -> bool:
    """Return whether the API server may leave a value out when it stores an object."""
    if isinstance(value, Mapping):
        return all(_is_zero(inner) for inner in value.values())
    return value is None or value in ("", 0, False, [], ())


def _brief(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
