"""The base of every wire type, and the scalar formats that several of them share.

The API server validates what users apply; these types validate it again (a status can be edited by anyone with the
right) and are the only source of the CRDs. No unions, tuples or floats: structural schemas and GitOps tools refuse or
rewrite them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

DECIMAL_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"

#: A non-negative decimal number as a string, for example "0.5".
DecimalString = Annotated[str, StringConstraints(pattern=DECIMAL_PATTERN, max_length=16)]

#: An RFC 3339 time in UTC with seconds, for example "2026-11-30T06:00:00Z".
Timestamp = Annotated[str, StringConstraints(max_length=32)]


class Wire(BaseModel):
    """A value that crosses the API server: camelCase outside, snake_case inside, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        str_strip_whitespace=False,
    )

    def to_wire(self) -> dict[str, object]:
        """Return the value as plain JSON types under its wire names, members that are None left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusWire(Wire):
    """A value that the operator or a Job wrote earlier: unknown fields are ignored, so that versions can mix."""

    model_config = ConfigDict(extra="ignore")


def canonical_decimal(text: str) -> str:
    """Return the shortest spelling of a decimal string: "0.50" and "0.5" are one value, "0.0" is "0".

    Raises `decimal.InvalidOperation` for text that is no number.
    """
    number = Decimal(text).normalize()
    return format(number, "f") if number else "0"
