"""Shows how near the replay engine comes to its table, under the closed loop of `vllm bench serve` itself.

For every configuration and level it starts a replay server, runs the real client against it as the table was
measured (1024 random tokens in, 256 out, end of text ignored, temperature 0), and compares. It measures; it
judges nothing but its own bound, and it must not be run beside other heavy work: the client is what needs the
processor.

    .venv/bin/python benchmarks/replay_fidelity/run.py /path/to/vllm [--configurations bf16-tp1-g3 …] [--levels 1 4 …]
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "images/replay/specmodel_replay/tables/h200-llama-8b"
RESULTS = Path(__file__).parent / "results"
BOUND_PERCENT = 5.0
# table key, percentile or mean -> name in the client's result
COMPARED = {
    "req/s": ("requestsPerSecond", None, "request_throughput"),
    "E2E P50": ("e2eMilliseconds", "p50", "p50_e2el_ms"),
    "E2E P90": ("e2eMilliseconds", "p90", "p90_e2el_ms"),
    "E2E P99": ("e2eMilliseconds", "p99", "p99_e2el_ms"),
    "TTFT P50": ("ttftMilliseconds", "p50", "p50_ttft_ms"),
    "TTFT P99": ("ttftMilliseconds", "p99", "p99_ttft_ms"),
    "TPOT P50": ("tpotMilliseconds", "p50", "p50_tpot_ms"),
}
BOUNDED = ("req/s", "E2E P50", "E2E P99")


def main() -> int:
    """Run the wanted cells, write the results, and return 1 when a bounded figure lies outside the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm", type=Path, help="the vllm program whose `bench serve` is the client")
    parser.add_argument("--configurations", nargs="+", default=sorted(file.stem for file in TABLES.glob("*.json")))
    parser.add_argument("--levels", nargs="+", type=int, default=[1, 4, 8, 16, 32])
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer folder (default: a tiny one made for the run)")
    parser.add_argument(
        "--requests", help="requests a cell as a multiple of concurrency, e.g. 10 (default: as the table)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for one file per configuration")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped too
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = arguments.tokenizer or make_tokenizer(Path(scratch) / "tokenizer")
        for name in arguments.configurations:
            table = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
            known = conditions(arguments)
            with server(table) as (port, pid):
                client = Client(vllm=arguments.vllm, port=port, tokenizer=tokenizer, scratch=Path(scratch))
                cells = [
                    cell(client, table, level, requests(arguments, level), pid)
                    for level in table["levels"]
                    if level["concurrency"] in arguments.levels
                ]
            document = {"conditions": known, "boundPercent": BOUND_PERCENT, "cells": cells}
            arguments.output.mkdir(parents=True, exist_ok=True)
            (arguments.output / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            rows += cells
    outside = [row for row in rows if not row["isWithinBound"]]
    print(f"{len(rows) - len(outside)} of {len(rows)} cells within {BOUND_PERCENT} % for {', '.join(BOUNDED)}")
    return 1 if outside else 0


def requests(arguments: argparse.Namespace, level: dict[str, Any]) -> int:
    """Return how many requests a cell gets."""
    return int(arguments.requests) * int(level["concurrency"]) if arguments.requests else int(level["requests"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The real load generator, pointed at one server."""

    vllm: Path
    port: int
    tokenizer: Path
    scratch: Path

    def run(self, table: dict[str, Any], concurrency: int, requests: int) -> dict[str, Any]:
        """Return the result that `vllm bench serve` saved."""
        saved = self.scratch / "result.json"
        command = [
            str(self.vllm), "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{self.port}",
            "--model", "m", "--tokenizer", str(self.tokenizer), "--dataset-name", "random",
            "--random-input-len", str(table["inputTokens"]), "--random-output-len", str(table["outputTokens"]),
            "--ignore-eos", "--temperature", "0", "--num-prompts", str(requests),
            "--max-concurrency", str(concurrency), "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--metric-percentiles", "50,90,95,99", "--save-result", "--result-filename", str(saved), "--disable-tqdm",
        ]  # fmt: skip
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
        result: dict[str, Any] = json.loads(saved.read_text(encoding="utf-8"))
        saved.unlink()
        return result


def cell(client: Client, table: dict[str, Any], level: dict[str, Any], count: int, pid: int) -> dict[str, Any]:
    """Return what one run of the client shows, as ratios to the table."""
    before = processor_seconds(pid)
    concurrency = level["concurrency"]
    result = client.run(table, concurrency, count)
    ratios = {}
    for shown, (key, percentile, theirs) in COMPARED.items():
        measured = level[key][percentile] if percentile else level[key]
        ratios[shown] = round(result[theirs] / measured, 4)
    row: dict[str, Any] = {
        "configuration": table["name"],
        "concurrency": concurrency,
        "requests": count,
        "failed": result["failed"],
        "ratioToTable": ratios,
        "generatedTokensPerRequest": result["total_output_tokens"] / result["completed"],
        "serverProcessorShare": round((processor_seconds(pid) - before) / result["duration"], 3),
        "serverMemoryMegabytes": memory_megabytes(pid),
        "isWithinBound": result["failed"] == 0
        and all(abs(ratios[name] - 1) * 100 <= BOUND_PERCENT for name in BOUNDED),
    }
    if table["speculativeTokens"]:
        acceptance = level["acceptance"]
        row["acceptancePercent"] = {
            "table": round(100 * acceptance["acceptedTokens"] / acceptance["draftTokens"], 2),
            "replayed": round(result["spec_decode_acceptance_rate"], 2),
        }
    shown = "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    print(f"{table['name']:12} c={concurrency:<3} {shown}  cpu {row['serverProcessorShare']:.2f}", flush=True)
    return row


@contextlib.contextmanager
def server(table: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Run a replay server of this configuration; yields its port and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "specmodel_replay", "serve", "m", "--host", "127.0.0.1", "--port", str(port),
        "--tensor-parallel-size", str(table["tensorParallelSize"]), "--max-model-len", "4096", "--max-num-seqs", "64",
    ]  # fmt: skip
    if table["weights"] == "FP8":
        command += ["--quantization", "fp8"]
    if table["speculativeTokens"]:
        speculation = {"method": "eagle3", "model": "d", "num_speculative_tokens": table["speculativeTokens"]}
        command += ["--speculative-config", json.dumps(speculation)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "images/replay"), "SPECMODEL_REPLAY_STARTUP_SECONDS": "0"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise SystemExit(f"the replay server did not become healthy: {error}") from error
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(timeout=10)


def make_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of 4096 plain words, one token each: all that the client's random prompts need."""
    folder.mkdir(parents=True)
    words = ["[UNK]", *(f"w{index}" for index in range(4095))]
    model = {"type": "WordLevel", "vocab": {word: index for index, word in enumerate(words)}, "unk_token": "[UNK]"}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 4096}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used, in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_megabytes(pid: int) -> float:
    """Return a process's resident memory in megabytes (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise ValueError(f"process {pid} has no VmRSS")


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a reader must know to judge the figures."""
    version = subprocess.run([arguments.vllm, "--version"], capture_output=True, text=True, timeout=120, check=False)
    return {
        "started": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "client": f"vllm bench serve, vLLM {(version.stdout.split() or ['unknown'])[-1]}",
        "load": "random, 1024 tokens in, 256 out, ignore-eos, temperature 0, closed loop",
        "requestsPerCell": f"{arguments.requests} x concurrency" if arguments.requests else "as in the table",
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, shared by client and server",
        "loadAverageBefore": os.getloadavg()[0],
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
