"""Kubernetes quantities: "100m" is "0.1" and "1024Mi" is "1Gi". Parsed to compare and to size, never to rewrite."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"^([+-]?[0-9.]+)([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE])?$")
_SUFFIXES = {
    "n": Decimal(1).scaleb(-9),
    "u": Decimal(1).scaleb(-6),
    "m": Decimal(1).scaleb(-3),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def parse_quantity(text: str | float) -> Decimal:
    """Return a quantity as a number. Raises `ValueError` for text that is none."""
    found = _QUANTITY.match(str(text))
    if found is None:
        message = f"not a quantity: {text!r}"
        raise ValueError(message)
    number, suffix = found.groups()
    try:
        if suffix and suffix[0] in "eE" and len(suffix) > 1:
            return Decimal(f"{number}{suffix}")
        return Decimal(number) * _SUFFIXES.get(suffix or "", Decimal(1))
    except ArithmeticError as error:
        message = f"not a quantity: {text!r}"
        raise ValueError(message) from error


def mebibytes(text: str) -> int:
    """Return a quantity of bytes in whole MiB, rounded down."""
    return int(parse_quantity(text) // 2**20)
