"""What has been measured of one candidate under one workload: the union of the cells of its runs.

Cells come from a Job and are hostile input: `gather` keeps the first complete cell for each (concurrency,
temperature), in order of the runs' names, and never trusts a figure that contradicts itself (see assessment).
"""

from __future__ import annotations

from dataclasses import dataclass

from specmodel.api.benchmark import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All cells of one candidate under one workload, and where they came from."""

    candidate: str
    cells: tuple[Cell, ...]
    runs: tuple[str, ...] = ()
    engine: str = ""
    engine_version: str = ""
    #: Set when the candidate could not run: reason and message of the failure (a Failed run, or a Failed server).
    failure: tuple[str, str] | None = None

    def cell(self, concurrency: int, temperature: str) -> Cell | None:
        """Return the cell at a canonical temperature, or None."""
        for cell in self.cells:
            if cell.concurrency == concurrency and cell.temperature == temperature:
                return cell
        return None
