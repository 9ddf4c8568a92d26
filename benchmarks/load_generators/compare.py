"""Load one server with several clients in a closed loop and put down what each says, sends and costs.

Each client runs as its own process, start-up included, against a server that is already up (the replay engine or any
OpenAI-compatible one). What was really sent is read from the server's own counters. Prints one JSON object a client and
concurrency; README.md says how the clients are installed.

    compare.py --url http://127.0.0.1:8777 --model m --tokenizer DIR --levels 8 32 --client own --client vllm=PROGRAM
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import islice
from pathlib import Path
from typing import Any

INPUT_TOKENS, OUTPUT_TOKENS = 1024, 256
ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run every client at every level."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True, help="folder of a tokenizer, for the clients that need one")
    parser.add_argument("--hub-tokenizer", default="", help="hub id in the local cache (AIPerf refuses a folder)")
    parser.add_argument("--levels", type=int, nargs="+", default=[8, 32])
    parser.add_argument(
        "--client", action="append", default=[], help="own, or vllm|inference-perf|aiperf|guidellm=PROGRAM"
    )
    parser.add_argument("--only-own", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_own:
        print(json.dumps(asyncio.run(_own(options.url, options.model, options.only_own))))
        return 0
    for level in options.levels:
        for client in options.client:
            print(json.dumps(_measure(client, level, options)), flush=True)
    return 0


def _measure(client: str, level: int, options: argparse.Namespace) -> dict[str, Any]:
    name, _, program = client.partition("=")
    requests = max(24, 6 * level)
    with tempfile.TemporaryDirectory() as folder:
        command, read = _commands(name, program, level, requests, options, Path(folder))
        before = _finished(options.url)
        used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "operator") if name == "own" else ""},
        )
        wall, now = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        said: dict[str, Any]
        try:
            said = read(Path(folder), done.stdout)
        except (OSError, ValueError, LookupError, StopIteration, TypeError) as error:
            said = {"failed": f"{type(error).__name__}: {error}", "output": (done.stdout + done.stderr)[-600:]}
    row = {
        "client": name,
        "concurrency": level,
        "asked": requests,
        "sent": _finished(options.url) - before,
        "wall_s": wall,
        "cpu_s": now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime,
    } | said
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}


def _finished(url: str) -> int:
    """Return how many requests the server has finished, by its own counter."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:  # noqa: S310  a server of ours
        text = answer.read().decode()
    return round(
        sum(float(value) for value in re.findall(r"^vllm:request_success_total\{.*\} (\S+)", text, re.MULTILINE))
    )


def _commands(  # noqa: PLR0913, PLR0917  one row of the comparison
    name: str, program: str, level: int, requests: int, options: argparse.Namespace, folder: Path
) -> tuple[list[str], Any]:
    url, model, tokenizer = options.url, options.model, options.tokenizer
    match name:
        case "own":
            common = ["--url", url, "--model", model, "--tokenizer", tokenizer]
            return [sys.executable, __file__, *common, "--only-own", str(level)], lambda _, out: json.loads(out)
        case "vllm":
            flags = {
                "backend": "openai", "base-url": url, "model": model, "tokenizer": tokenizer,
                "dataset-name": "random", "random-input-len": INPUT_TOKENS, "random-output-len": OUTPUT_TOKENS,
                "temperature": 0, "max-concurrency": level, "num-prompts": requests, "seed": level,
                "percentile-metrics": "ttft,tpot,itl,e2el", "metric-percentiles": "50,99",
                "result-filename": "out.json",
            }  # fmt: skip
            words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
            return [program, "bench", "serve", *words, "--ignore-eos", "--save-result", "--disable-tqdm"], _vllm
        case "inference-perf":
            (folder / "config.yml").write_text(json.dumps(_inference_perf(url, model, tokenizer, level, requests)))
            return [program, "--config_file", "config.yml"], _read_inference_perf
        case "aiperf":
            flags = {
                "model": model, "url": url, "endpoint-type": "completions", "tokenizer": options.hub_tokenizer,
                "concurrency": level, "request-count": requests, "isl": INPUT_TOKENS, "osl": OUTPUT_TOKENS,
                "artifact-dir": folder / "out", "ui": "none",
            }  # fmt: skip
            words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
            extra = ["--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0", "--streaming"]
            return [program, "profile", *words, *extra], _aiperf
        case "guidellm":
            return [
                program, "run", "--backend",
                f"kind=openai_http,target={url},model={model},request_format=/v1/completions",
                "--profile", f"kind=concurrent,streams={level}", "--constraint", f"kind=max_requests,count={requests}",
                "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
                "--data", f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}",
                "--output", f"kind=json,path={folder / 'out.json'}", "--disable-progress",
            ], _guidellm  # fmt: skip
    raise SystemExit(f"unknown client {name}")


async def _own(url: str, model: str, level: int) -> dict[str, Any]:
    from specmodel.bench.load import Load, Patience, open_session, run_cell  # noqa: PLC0415  only this client needs it
    from specmodel.bench.prompts import SyntheticPrompts, TokenIds  # noqa: PLC0415
    from specmodel.domain.statistics import percentile  # noqa: PLC0415

    prompts = SyntheticPrompts(vocabulary=TokenIds(first=1000, last=30_000), input_tokens=INPUT_TOKENS)
    load = Load(url=url, model=model, concurrency=level, temperature=0.0, output_tokens=OUTPUT_TOKENS, ignore_eos=True)
    patience = Patience(stall_seconds=60, cell_seconds=300)
    used = time.process_time()
    async with open_session(stall_seconds=60) as session:
        result = await run_cell(session, load, islice(prompts.stream(level), max(24, 6 * level)), patience)
    good = [record for record in result.records if not record.error]
    ends, firsts = sorted(r.e2e * 1000 for r in good), sorted(r.ttft * 1000 for r in good)
    return {
        "req_s": len(good) / result.seconds,
        "e2e_p50_ms": percentile(ends, 50),
        "e2e_p99_ms": percentile(ends, 99),
        "ttft_p50_ms": percentile(firsts, 50),
        "tpot_p50_ms": percentile(sorted((r.tpot or 0) * 1000 for r in good), 50),
        "cell_cpu_s": time.process_time() - used,
        "cell_s": result.seconds,
    }


def _vllm(folder: Path, _: str) -> dict[str, Any]:
    said = json.loads((folder / "out.json").read_text())
    keys = {"req_s": "request_throughput", "e2e_p50_ms": "p50_e2el_ms", "e2e_p99_ms": "p99_e2el_ms"}
    keys |= {"ttft_p50_ms": "p50_ttft_ms", "tpot_p50_ms": "p50_tpot_ms", "cell_s": "duration"}
    return {short: said[key] for short, key in keys.items()}


def _inference_perf(url: str, model: str, tokenizer: str, level: int, requests: int) -> dict[str, Any]:
    def exactly(tokens: int) -> dict[str, Any]:
        return {"min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": requests + 1}

    return {
        "api": {"type": "completion", "streaming": True},
        "server": {"type": "vllm", "model_name": model, "base_url": url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": tokenizer},
        "data": {
            "type": "random",
            "input_distribution": exactly(INPUT_TOKENS),
            "output_distribution": exactly(OUTPUT_TOKENS),
        },
        "load": {
            "type": "concurrent",
            "num_workers": 1,
            "stages": [{"num_requests": requests, "concurrency_level": level}],
        },
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "percentiles": [50, 99]}},
        "storage": {"local_storage": {"path": "out"}},
    }


def _read_inference_perf(folder: Path, _: str) -> dict[str, Any]:
    said = json.loads(next(folder.glob("out/**/stage_0*metrics.json")).read_text())
    good = said["successes"]
    return {
        "reported": good["count"],
        "failed_requests": said["failures"]["count"],
        "req_s": good["throughput"]["requests_per_sec"],
        "e2e_p50_ms": good["latency"]["request_latency"]["median"] * 1000,
        "e2e_p99_ms": good["latency"]["request_latency"]["p99"] * 1000,
        "ttft_p50_ms": good["latency"]["time_to_first_token"]["median"] * 1000,
        "tpot_p50_ms": good["latency"]["time_per_output_token"]["median"] * 1000,
    }


def _aiperf(folder: Path, _: str) -> dict[str, Any]:
    said = json.loads(next(folder.glob("out/**/profile_export_aiperf.json")).read_text())
    return {
        "reported": said["request_count"]["avg"],
        "req_s": said["request_throughput"]["avg"],
        "e2e_p50_ms": said["request_latency"]["p50"],
        "e2e_p99_ms": said["request_latency"]["p99"],
        "ttft_p50_ms": said["time_to_first_token"]["p50"],
        "tpot_p50_ms": said["inter_token_latency"]["p50"],
    }


def _guidellm(folder: Path, _: str) -> dict[str, Any]:
    said = json.loads((folder / "out.json").read_text())["benchmarks"][0]["metrics"]
    return {
        "reported": said["request_totals"]["successful"],
        "req_s": said["requests_per_second"]["successful"]["mean"],
        "e2e_p50_ms": said["request_latency"]["successful"]["percentiles"]["p50"] * 1000,
        "e2e_p99_ms": said["request_latency"]["successful"]["percentiles"]["p99"] * 1000,
        "ttft_p50_ms": said["time_to_first_token_ms"]["successful"]["percentiles"]["p50"],
        "tpot_p50_ms": said["time_per_output_token_ms"]["successful"]["percentiles"]["p50"],
    }


if __name__ == "__main__":
    sys.exit(main())
