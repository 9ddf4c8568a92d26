"""Whether a write is needed: the first field of a manifest that the live object does not already have.

Only fields of the manifest are compared: what the API server defaulted and what others own is not our business.
Quantities are compared by value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specmodel.manifests.quantities import parse_quantity

_QUANTITIES = frozenset({"requests", "limits", "sizeLimit"})


def first_difference(wanted: Any, live: Any, path: str = "") -> str | None:
    """Return the first difference in words, or None when the live object has every field of the manifest."""
    if not wanted and not live and wanted is not None:
        return None
    if isinstance(wanted, Mapping):
        return _first_of_mapping(wanted, live, path)
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return _first_of_sequence(wanted, live, path)
    if wanted == live or _same_quantity(wanted, live, path):
        return None
    return f"{path}: {_short(live)}, wanted {_short(wanted)}"


def _first_of_mapping(wanted: Mapping[str, Any], live: Any, path: str) -> str | None:
    if not isinstance(live, Mapping):
        return f"{path or 'object'}: missing"
    found = (first_difference(wanted[key], live.get(key), f"{path}.{key}" if path else key) for key in sorted(wanted))
    return next((difference for difference in found if difference is not None), None)


def _first_of_sequence(wanted: Sequence[Any], live: Any, path: str) -> str | None:
    if not isinstance(live, Sequence) or isinstance(live, str):
        return f"{path}: missing"
    if len(wanted) != len(live):
        return f"{path}: {len(live)} items, wanted {len(wanted)}"
    found = (first_difference(item, live[index], f"{path}[{index}]") for index, item in enumerate(wanted))
    return next((difference for difference in found if difference is not None), None)


def _same_quantity(wanted: object, live: object, path: str) -> bool:
    if not _QUANTITIES & set(path.split(".")) or live is None:
        return False
    try:
        return parse_quantity(str(wanted)) == parse_quantity(str(live))
    except ValueError:
        return False


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
