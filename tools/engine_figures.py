"""The last line of `make engine`: what its scenarios noted, from pytest's results. It runs nothing itself.

Called as `engine_figures.py EXIT_CODE SECONDS RESULTS.xml`.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def figures(results: Path) -> tuple[Counter[str], list[str]]:
    """Return the sums of what scenarios noted, and the acceptance rates, in percent."""
    sums: Counter[str] = Counter()
    rates = []
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 - pytest's own output
        for noted in case.iter("property"):
            name, value = noted.get("name", ""), noted.get("value", "")
            if name == "acceptance":
                rates.append(value)
            elif value.isdigit():
                sums[name] += int(value)
        sums["scenarios"] += 1
    return sums, rates


def line(code: int, seconds: int, results: Path) -> str:
    """Return the line."""
    how = "good" if code == 0 else f"FAILED ({code})"
    took = f"{seconds // 60}:{seconds % 60:02d} min"
    if not results.exists():
        return f"engine: {how}: no scenario ran ({took})"
    sums, rates = figures(results)
    accepted = " and ".join(f"{rate} %" for rate in rates) or "not measured"
    return (
        f"engine: {how}: {sums['candidates']} candidates of a real vLLM in {sums['scenarios']} scenarios, "
        f"acceptance {accepted}, {sums['sent']} requests sent over a promotion, {sums['lost']} lost, {took}"
    )


if __name__ == "__main__":
    print(line(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
