"""Write the report of a GPU run from its raw results: report.py DIR > DIR/README.md.

Every figure is computed here from the files in DIR; the words around them say under which conditions they hold. The
table that the replay engine ships (same shapes, another day, `vllm bench serve`) is compared cell by cell.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "operator"))

from specmodel.cli.answer import status_of  # noqa: E402
from specmodel.cli.manifest import read_model  # noqa: E402
from specmodel.cli.results import read_results  # noqa: E402
from specmodel.domain.candidate import Shape, enumerate_candidates  # noqa: E402
from specmodel.domain.decision import decide_model  # noqa: E402
from specmodel.domain.engine import resolve_engine  # noqa: E402
from specmodel.domain.settings import Settings  # noqa: E402

TABLES = ROOT / "images" / "replay" / "specmodel_replay" / "tables" / "h200-llama-8b"
Json = dict[str, Any]


def main(folder: Path) -> int:
    """Print the report as Markdown."""
    runs = sorted(read_runs(folder / "runs"), key=shape_of)
    parts = [
        _head(folder, runs),
        _figures(runs),
        _headline(runs),
        _decisions(folder),
        _adaptive(folder, runs),
        _instrument(folder),
        _overhead(folder, runs),
        _against_table(runs),
        _again(),
    ]
    print("\n\n".join(part for part in parts if part))
    return 0


def read_runs(folder: Path) -> Iterator[Json]:
    """Yield the complete runs of a folder."""
    for path in sorted(folder.glob("*.json")):
        run: Json = json.loads(path.read_text(encoding="utf-8"))
        if any(one["type"] == "Complete" for one in run["status"].get("conditions", [])):
            yield run


def shape_of(run: Json) -> Shape:
    """Return what a run measured."""
    candidate = run["spec"]["candidate"]
    return Shape(
        gpus_per_replica=candidate["gpusPerReplica"],
        speculative_tokens=candidate["speculativeTokens"],
        weights=candidate["weights"],
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, all but the first column right-aligned."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def rate(cell: Json) -> float:
    """Return a cell's requests per second."""
    return float(cell["requestsPerSecond"])


def _cell(runs: Iterable[Json], shape: tuple[int, int, str], concurrency: int) -> Json | None:
    gpus, tokens, weights = shape
    wanted = Shape(gpus_per_replica=gpus, speculative_tokens=tokens, weights=weights)
    cells = [cell for run in runs if shape_of(run) == wanted for cell in run["status"]["cells"]]
    return next((cell for cell in cells if cell["concurrency"] == concurrency), None)


def _head(folder: Path, runs: Sequence[Json]) -> str:
    machine: Json = json.loads((folder / "machines.jsonl").read_text(encoding="utf-8").splitlines()[0])
    conditions: Json = json.loads((folder / "conditions.json").read_text(encoding="utf-8"))
    # Without nvidia-smi, in a rehearsal, there is one line and it says so.
    gpus = machine["gpus"].splitlines()[1:] or ["no GPU, 0, none, 0, 0"]
    acceptance = ", ".join(f"{share} % at γ={g}" for g, share in conditions["syntheticAcceptancePercent"].items())
    memory, driver, clock, watts = (field.strip() for field in gpus[0].split(",")[1:])
    cells = sum(len(run["status"]["cells"]) for run in runs)
    requests = sum(cell["completed"] + cell["failed"] for run in runs for cell in run["status"]["cells"])
    failed = sum(cell["failed"] for run in runs for cell in run["status"]["cells"])
    joined = ", joined by NVLink" if re.search(r"\bNV\d+\b", machine["links"]) else ""
    beside = " Candidates with one GPU ran side by side." if len(gpus) > 1 else ""
    variables = ", ".join(f"`{key}={value}`" for key, value in machine["environment"].items()) or "none"
    return f"""# {machine["time"][:10]}: {len(gpus)} × {gpus[0].split(",")[0]}, vLLM {conditions["engine"]}

Written by `benchmarks/gpu/report.py` from the files beside it; `benchmarks/gpu/README.md` says how they came about.

- GPUs: {memory} each{joined}, driver {driver}, at most {clock} and {watts}; {machine["cores"]} cores, kernel {machine["kernel"]}, \
Python {machine["python"]}, torch {machine["torch"]}.
- Model: the shape of Llama-3.1-8B with a one-layer EAGLE3 drafter, random weights (`--load-format dummy`). Acceptance is pretended by the \
engine ({acceptance}): **speed is real, text is not**.
- Load: closed loop, 1024 random tokens in, 256 out, temperature 0, max(16, 6 × streams) requests a cell after 2 s of warm-up; \
{cells} cells, {requests} requests, {failed} failed.{beside}
- Variables: {variables}. The commands are in `sessions.jsonl`."""


def _figures(runs: Sequence[Json]) -> str:
    rows = []
    for run in runs:
        cells = run["status"]["cells"]
        counted = [cell["acceptance"] for cell in cells if cell.get("acceptance")]
        drafted = sum(one["draftTokens"] for one in counted)
        share = f"{100 * sum(one['acceptedTokens'] for one in counted) / drafted:.1f} %" if drafted else "-"
        rows.append([str(shape_of(run)), share, *(_three(cell) for cell in cells)])
    levels = _levels(runs)
    return "## What was measured\n\nreq/s · E2E P50 ms · P99 ms\n\n" + table(["candidate", "accepted", *levels], rows)


def _levels(runs: Sequence[Json]) -> list[str]:
    levels = [cell["concurrency"] for cell in runs[0]["status"]["cells"]]
    return [f"{level} stream{'s' if level > 1 else ''}" for level in levels]


def _three(cell: Json) -> str:
    latency = cell["e2ELatency"]
    return f"{rate(cell):.2f} · {latency['p50Microseconds'] / 1000:.0f} · {latency['p99Microseconds'] / 1000:.0f}"


def _headline(runs: Sequence[Json]) -> str:
    most = max(cell["concurrency"] for cell in runs[0]["status"]["cells"])
    two = _cell(runs, (2, 0, "None"), most)
    best = max(runs, key=lambda run: rate(run["status"]["cells"][-1]) / shape_of(run).gpus_per_replica)
    mine = rate(best["status"]["cells"][-1]) / shape_of(best).gpus_per_replica
    plain = _cell(runs, (1, 3, "None"), most)
    if two is None or plain is None:
        return ""
    return f"""## Per GPU

At {most} streams **{shape_of(best)} serves {mine:.2f} req/s per GPU, {mine / (rate(two) / 2):.2f} × the {rate(two) / 2:.2f} of two GPUs \
with BF16 and no drafter** ({rate(two):.2f} together). Without FP8, one GPU with γ=3 serves {rate(plain):.2f}: \
{100 * rate(plain) / rate(two):.0f} % of those two."""


def _decisions(folder: Path) -> str:
    lines = []
    for path in sorted(folder.glob("sla-*.yaml"), reverse=True):
        model = read_model(path)
        candidates = enumerate_candidates(model, resolve_engine(model, None, Settings()), Settings())
        decision = decide_model(model, candidates, read_results(folder / "runs", model, candidates).measurements, None)
        status = status_of(model, decision, "2026-01-01T00:00:00Z")
        if status.decision is None or decision.serve is None:
            continue
        limit = model.spec.sla.limits[0]
        lines.append(
            f"- **{limit.metric.value} P{limit.percentile} ≤ {limit.max_milliseconds} ms → {decision.serve.shape}.** "
            f"{status.decision.message} Runner-up: {status.decision.runner_up}."
        )
    if not lines:
        return ""
    words = "`specmodel decide -f sla-2000.yaml --results runs`, and the other, print the whole of it."
    return "## What is chosen\n\n" + "\n".join(lines) + "\n\n" + words


def _adaptive(folder: Path, runs: Sequence[Json]) -> str:
    place = folder / "adaptive"
    if not place.exists():
        return ""
    conditions: Json = json.loads((place / "conditions.json").read_text(encoding="utf-8"))
    tried = next(run for run in read_runs(place / "runs") if shape_of(run).speculative_tokens)
    same = next(run for run in runs if shape_of(run) == shape_of(tried))
    ratios = [
        rate(mine) / rate(other) for mine, other in zip(tried["status"]["cells"], same["status"]["cells"], strict=True)
    ]
    steps = ", ".join(f"γ={gamma} from {first} to {last} requests" for first, last, gamma in conditions["schedule"])
    shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    verdict = "it wins nothing" if statistics.median(ratios) < 1.02 else "it wins"
    return f"""## γ by batch size

The schedule that the measurements suggest for {shape_of(tried).weights} on one GPU is: {steps}. Measured through \
`num_speculative_tokens_per_batch_size`, its req/s over those of constant γ={shape_of(tried).speculative_tokens} are {shown} from the \
lowest level to the highest: {verdict} at these levels, where one γ is best throughout."""


def _instrument(folder: Path) -> str:
    path = folder / "instrument.json"
    if not path.exists():
        return ""
    said: Json = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    keys = ("requests_per_second", "e2e_p50_ms", "e2e_p99_ms", "ttft_p50_ms")
    found = {(row["tool"], row["pass"], row["concurrency"]): row for row in said["instrument"]}
    for (tool, turn, level), theirs in sorted(found.items()):
        if tool == "vllm":
            mine = found["own", turn, level]
            rows.append([f"{level} streams, pass {turn + 1}", *(f"{mine[key] / theirs[key]:.3f}" for key in keys)])
    text = "## The instrument\n\nOur figure over that of `vllm bench serve`, in turn on one server (1 GPU FP8, no drafter), same load:\n\n"
    text += table(["", "req/s", "E2E P50", "E2E P99", "TTFT P50"], rows)
    own = [row for row in said["instrument"] if row["tool"] == "own"]
    theirs_wall = [row["wall_s"] - row["load_s"] for row in said["instrument"] if row["tool"] == "vllm"]
    text += (
        f"\n\nWhat remains is one request more or less in the last tenth of a second: P99 of 192 requests is the second "
        f"slowest. Beside the load ours takes {statistics.mean(row['wall_s'] - row['load_s'] for row in own):.1f} s a "
        f"cell (2 s of warm-up among them), vLLM's {statistics.mean(theirs_wall):.1f} s, its import of half a minute aside."
    )
    beside = said["side_by_side"]
    if not beside:
        return text
    alone = statistics.mean(row["requests_per_second"] for row in beside if not row["beside"])
    rates = [row["requests_per_second"] / alone for row in beside if row["beside"] and not row["server"]]
    medians = statistics.mean(row["e2e_p50_ms"] for row in beside if not row["beside"])
    later = [row["e2e_p50_ms"] / medians for row in beside if row["beside"] and not row["server"]]
    return (
        f"{text}\n\n**Side by side**: at 16 streams the server on GPU 0 served {alone:.2f} req/s alone; while the one on "
        f"GPU 1 was loaded likewise, {' and '.join(f'{ratio:.3f}' for ratio in rates)} of that, its P50 "
        f"{' and '.join(f'{ratio:.3f}' for ratio in later)}: within 2 %, so that candidates may be measured side by side."
    )


def _overhead(folder: Path, runs: Sequence[Json]) -> str:
    """Return what a trial takes beyond the engine's start and the load itself."""
    events = [json.loads(line) for line in (folder / "sessions.jsonl").read_text(encoding="utf-8").splitlines()]
    rows, rests = [], []
    for run in runs:
        name = run["metadata"]["name"]
        mine = [event for event in events if event.get("run") == name]
        begun = max(datetime.fromisoformat(event["time"]) for event in mine if event["event"] == "engine")
        ready = max(event["seconds"] for event in mine if event["event"] == "ready")
        ended = max(datetime.fromisoformat(event["time"]) for event in mine if event["event"] == "outcome")
        load = sum(cell["durationMilliseconds"] for cell in run["status"]["cells"]) / 1000
        whole = (ended - begun).total_seconds()
        rests.append(whole - ready - load)
        rows.append([str(shape_of(run)), *(f"{value:.0f}" for value in (whole, ready, load, rests[-1]))])
    text = "## What the product adds\n\nSeconds of a trial: in all, until the engine was ready, under load, and the rest: five warm-ups of "
    text += "2 s and more, the trial requests, the engine's exit.\n\n" + table(
        ["candidate", "in all", "start", "load", "rest"], rows
    )
    decided = [
        (datetime.fromisoformat(after["time"]) - datetime.fromisoformat(before["time"])).total_seconds()
        for before, after in itertools.pairwise(events)
        if before["event"] == "outcome" and after["event"] == "decided"
    ]
    return (
        f"{text}\n\nFrom the last trial's end to the decision: {', '.join(f'{1000 * one:.0f} ms' for one in decided)}. "
        f"By hand one would start the same engines and wait for the same load; what is added is the rest, "
        f"{statistics.mean(rests):.0f} s a candidate."
    )


def _against_table(runs: Sequence[Json]) -> str:
    rows, ratios = [], []
    for run in runs:
        shape = shape_of(run)
        name = f"{'fp8' if shape.weights == 'FP8' else 'bf16'}-tp{shape.gpus_per_replica}"
        name += f"-g{shape.speculative_tokens}" if shape.speculative_tokens else ""
        path = TABLES / f"{name}.json"
        if not path.exists():
            continue
        levels = {one["concurrency"]: one for one in json.loads(path.read_text(encoding="utf-8"))["levels"]}
        row = [str(shape)]
        for cell in run["status"]["cells"]:
            level, latency = levels[cell["concurrency"]], cell["e2ELatency"]
            ratios.append(rate(cell) / level["requestsPerSecond"])
            p99 = latency["p99Microseconds"] / 1000 / level["e2eMilliseconds"]["p99"]
            row.append(f"{ratios[-1]:.3f} · {p99:.3f}")
        rows.append(row)
    levels_named = _levels(runs)
    return (
        "## Against the replay engine's table\n\nThis run over the table (another host of the same kind, another day, "
        "`vllm bench serve`, 12 requests at least): req/s · P99\n\n"
        + table(["candidate", *levels_named], rows)
        + f"\n\nreq/s is {min(ratios):.3f} to {max(ratios):.3f} of the table's, {statistics.median(ratios):.3f} in the "
        "median. Known differences, not told apart: a warm-up before each cell, so that no request pays for the first "
        "batch of its size, and another host. P99 scatters most with speculation: drafts accepted by chance make latency "
        "a wide distribution, and P99 of 16 to 192 requests is one of its last two."
    )


def _again() -> str:
    return """## The files

`runs/` holds one BenchmarkRun a candidate with its sorted latencies, `requests/` every request in the order in which it ended, \
`sessions.jsonl` every event with its time, `instrument.json` the comparison of instruments, `*.yaml` the manifests. \
`specmodel decide -f sla-1000.yaml --results runs`, here in this folder, decides from them without a GPU."""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
