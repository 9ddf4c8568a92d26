"""The benchmark against `vllm bench serve` on one real server, in turn, the same load; and two servers side by side.

    instrument.py --url URL [--beside URL] --model NAME --tokenizer DIR --out FILE [--levels 8 32] [--passes 2]

Runs under the Python that has vLLM, with the repository's `operator/` on PYTHONPATH. `vllm bench serve` runs in this
process too, so that its import is paid once. Each pass measures a level with both, in turn; the order changes from
pass to pass. With `--beside`, one level is measured on the first server alone and while the second is loaded likewise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specmodel.api.benchmark import BenchmarkRunSpec, Cell, CellRequest, Dataset, SyntheticDataset, Target
from specmodel.bench.job import run_job
from specmodel.bench.load import open_session
from specmodel.bench.run_status import Found

SIDE_BY_SIDE_LEVEL = 16


class Memory:
    """A run that is kept nowhere: what the benchmark reads and writes."""

    def __init__(self, spec: BenchmarkRunSpec) -> None:
        """Keep the spec."""
        self.spec, self.cells = spec, list[Cell]()

    async def read(self) -> Found:
        """Return the run without cells."""
        return Found(uid=str(time.time_ns()), spec=self.spec, cells=(), outcome="", provenance=None)

    async def write(self, *, cells: Sequence[Cell] | None = None, **_: Any) -> None:
        """Keep the cells."""
        self.cells = list(cells or self.cells)


def main() -> int:
    """Measure and write one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--beside")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--levels", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--input-tokens", type=int, default=1024)
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--least-requests", type=int, default=24)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for turn in range(options.passes):
        for level in options.levels:
            tools = [_own, _vllm] if turn % 2 == 0 else [_vllm, _own]
            for tool in tools:
                row = {"tool": tool.__name__.strip("_"), "pass": turn, "concurrency": level} | tool(options, level)
                rows.append(row)
                print(json.dumps(row), flush=True)
    beside = asyncio.run(_side_by_side(options)) if options.beside else []
    options.out.write_text(
        json.dumps(
            {
                "taken": datetime.now(UTC).isoformat(timespec="seconds"),
                "load": {
                    "input_tokens": options.input_tokens,
                    "output_tokens": options.output_tokens,
                    "requests": f"max({options.least_requests}, 6 x concurrency)",
                },
                "instrument": rows,
                "side_by_side": beside,
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )
    return 0


def _size(options: argparse.Namespace, level: int) -> int:
    least: int = options.least_requests
    return max(least, 6 * level)


async def _cell(options: argparse.Namespace, url: str, level: int) -> Cell:
    size = _size(options, level)
    spec = BenchmarkRunSpec(
        target=Target(url=url, model=options.model),
        dataset=Dataset(
            synthetic=SyntheticDataset(input_tokens=options.input_tokens, output_tokens=options.output_tokens)
        ),
        cells=[CellRequest(concurrency=level, temperature="0", min_requests=size, max_requests=size)],
        seed=time.time_ns() % 1_000_000,
    )
    run = Memory(spec)
    outcome = await run_job(run, lambda stall: open_session(stall_seconds=stall), Path("/dev/null"))
    if outcome.name != "Complete":
        raise SystemExit(f"{url} at concurrency {level}: {outcome.name}: {outcome.message}")
    return run.cells[0]


def _figures(cell: Cell) -> dict[str, Any]:
    latency, first = cell.e2e_latency, cell.ttft
    if latency is None or first is None:
        raise SystemExit(f"concurrency {cell.concurrency}: nothing was completed")
    return {
        "completed": cell.completed,
        "failed": cell.failed,
        "requests_per_second": float(cell.requests_per_second),
        "e2e_p50_ms": latency.p50_microseconds / 1000,
        "e2e_p99_ms": latency.p99_microseconds / 1000,
        "ttft_p50_ms": first.p50_microseconds / 1000,
        "ttft_p99_ms": first.p99_microseconds / 1000,
    }


def _own(options: argparse.Namespace, level: int) -> dict[str, Any]:
    begun = time.monotonic()
    cell = asyncio.run(_cell(options, options.url, level))
    return _figures(cell) | {"wall_s": round(time.monotonic() - begun, 3), "load_s": cell.duration_milliseconds / 1000}


def _vllm(options: argparse.Namespace, level: int) -> dict[str, Any]:
    from vllm.benchmarks.serve import add_cli_args, main_async  # noqa: PLC0415  an import of half a minute

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415
    except ImportError:
        from vllm.utils import FlexibleArgumentParser  # noqa: PLC0415
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    flags = {
        "backend": "openai", "base-url": options.url, "endpoint": "/v1/completions", "model": options.model,
        "tokenizer": options.tokenizer, "dataset-name": "random", "random-input-len": options.input_tokens,
        "random-output-len": options.output_tokens, "temperature": 0, "max-concurrency": level,
        "num-prompts": _size(options, level), "seed": time.time_ns() % 1_000_000,
        "percentile-metrics": "ttft,tpot,itl,e2el", "metric-percentiles": "50,99",
    }  # fmt: skip
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    begun = time.monotonic()
    said = asyncio.run(main_async(parser.parse_args([*words, "--ignore-eos", "--disable-tqdm"])))
    return {
        "completed": said["completed"],
        "failed": _size(options, level) - said["completed"],
        "requests_per_second": said["request_throughput"],
        "e2e_p50_ms": said["p50_e2el_ms"],
        "e2e_p99_ms": said["p99_e2el_ms"],
        "ttft_p50_ms": said["p50_ttft_ms"],
        "ttft_p99_ms": said["p99_ttft_ms"],
        "wall_s": round(time.monotonic() - begun, 3),
        "load_s": said["duration"],
    }


async def _side_by_side(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the first server alone and beside a loaded second one, twice in turn."""
    rows: list[dict[str, Any]] = []
    for turn in range(2):
        alone = await _cell(options, options.url, SIDE_BY_SIDE_LEVEL)
        rows.append({"pass": turn, "beside": False, "server": 0} | _figures(alone))
        both = await asyncio.gather(
            _cell(options, options.url, SIDE_BY_SIDE_LEVEL), _cell(options, options.beside, SIDE_BY_SIDE_LEVEL)
        )
        rows += [{"pass": turn, "beside": True, "server": at} | _figures(cell) for at, cell in enumerate(both)]
    return rows


if __name__ == "__main__":
    sys.exit(main())
