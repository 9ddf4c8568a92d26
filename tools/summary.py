"""The last lines of `make test`: counts the tests of its pytest runs and names what failed. It runs nothing itself.

Called as `summary.py EXIT_CODE SECONDS RESULT.xml…`. Exits 1 when the results hold a failure, or no test at all.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

WIDTH = 80
INTERRUPTED = (130, 143)
OUTCOMES = ("failed", "errors", "passed", "skipped", "xfailed")
TAGS = {"failure": "failed", "error": "errors", "skipped": "skipped"}


def outcome_of(case: ET.Element) -> str:
    """Return what became of one test, in pytest's words."""
    for part in case:
        if part.tag == "skipped" and part.get("type") == "pytest.xfail":
            return "xfailed"
        if part.tag in TAGS:
            return TAGS[part.tag]
    return "passed"


def main(exit_code: int, seconds: int, results: list[Path]) -> int:
    """Print the summary and return the exit code."""
    counts: Counter[str] = Counter()
    broken = []
    for path in results:
        cases = list(ET.parse(path).iter("testcase"))  # noqa: S314 - pytest's own output
        if exit_code in INTERRUPTED and path is results[-1]:
            cases = cases[:-1]  # pytest writes the test that was interrupted as if it had passed
        for case in cases:
            outcome = outcome_of(case)
            counts[outcome] += 1
            if outcome in {"failed", "errors"}:
                broken.append(f"{outcome.upper().removesuffix('S')} {case.get('classname')}::{case.get('name')}")
    is_good = exit_code == 0 and not broken and counts["passed"] > 0
    print("", *broken, sep="\n")
    if exit_code != 0 and not broken:
        print(f"STOPPED before the end with exit code {exit_code}; the lines above say why")
    counted = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]) or "no tests ran"
    took = f"{counted} in {seconds}s ({seconds // 60}:{seconds % 60:02d})"
    print(f" {took} ".center(WIDTH, "="))
    return 0 if is_good else 1


if __name__ == "__main__":
    files = [path for path in map(Path, sys.argv[3:]) if path.is_file()]
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), files))
