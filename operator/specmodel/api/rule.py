"""One rule about a value, stated twice: in CEL for the API server, and in Python for results read without one.

A rule stands beside the type that it speaks of. The generator copies `cel` and `message` into the CRD; pydantic asks
`holds`. A test puts the same wrong manifests before both. This module knows no rule itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, model_validator

from specmodel.api.wire import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What must hold of a value (CEL's `self`, in wire names), and what to write instead when it does not."""

    cel: str
    message: str
    #: The same in Python over the parsed value; None where only the API server can tell (transitions).
    holds: Callable[[Any], bool] | None
    #: Wire name of the member at fault, for the error's path; empty for the value itself.
    member: str = ""

    def to_schema(self) -> dict[str, str]:
        """Return the rule as an entry of `x-kubernetes-validations`."""
        path = {"fieldPath": f".{self.member}"} if self.member else {}
        return {"rule": self.cel, "message": self.message, **path}


def _add_rules(schema: dict[str, Any], wire_type: type[RuledWire]) -> None:
    if wire_type.rules:
        schema["x-kubernetes-validations"] = [rule.to_schema() for rule in wire_type.rules]


class RuledWire(Wire):
    """A wire type with rules over several members, all enforced when it is parsed and stated in its JSON schema."""

    model_config = ConfigDict(json_schema_extra=_add_rules)

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def keep_rules(self) -> Self:
        """Raise `ValueError` with the message of the first rule that does not hold."""
        for rule in self.rules:
            if rule.holds is not None and not rule.holds(self):
                raise ValueError(rule.message)
        return self


def is_without_duplicates(values: list[Any]) -> bool:
    """Return whether no value of a list occurs twice."""
    return len(set(values)) == len(values)


def is_ascending(values: list[int]) -> bool:
    """Return whether each number is larger than the one before it."""
    return all(a < b for a, b in pairwise(values))


def is_dns_label(text: str, *, longest: int) -> bool:
    """Return whether a name is a DNS label (RFC 1035: it begins with a letter) of at most that many characters."""
    return len(text) <= longest and re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", text) is not None
