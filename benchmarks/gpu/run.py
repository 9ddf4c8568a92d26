"""`make gpu`: measure on this machine's GPUs, in order of worth, until all is measured or the time is up.

    run.py --results DIR [--vllm COMMAND] [--seconds N] [--steps NAME ...] [--devices auto|0,1|cpu:2] [--base FILE]

    one-gpu      γ 0 and the first of the manifest, every weights, 1 GPU
    two-gpus     the same with 2 GPUs (tensor parallel) and BF16, where there are two
    instrument   the benchmark against `vllm bench serve` on one server; two servers side by side where there are two
    gammas       every γ of the manifest, 1 GPU
    adaptive     γ by batch size, made from what the steps before measured; kept in DIR/adaptive
    two-gpus-all 2 GPUs with every weights

Each step is `specmodel try` on the manifest narrowed to it, so that a later run, on another machine too, goes on from
the files in DIR. A step that the time ends is told to stop and keeps its finished cells.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "operator"))

from specmodel.cli.reading import InputError  # noqa: E402
from specmodel.local.devices import find_machine  # noqa: E402
from specmodel.local.engine import free_port, start_engine  # noqa: E402

STEPS = ("one-gpu", "two-gpus", "instrument", "gammas", "adaptive", "two-gpus-all")
#: Less than this is not worth starting an engine for, in seconds.
LEAST_SECONDS = 90
#: Variables that are put down because they change what an engine does.
TELLING = ("VLLM_", "NCCL_", "TORCH_SYMM", "NVSHMEM")
#: What a step that is told to stop may take.
STOP_SECONDS = 60
#: The share of drafted tokens accepted in the study that this repeats, in percent.
ACCEPTANCE = {3: 35.5, 5: 25.0}


def main() -> int:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--vllm", default="vllm", help="the engine's program, as in a shell")
    parser.add_argument("--python", default="", help="the Python that has vLLM (default: found through --vllm)")
    parser.add_argument("--seconds", type=int, default=7200, help="stop after this time")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--base", type=Path, default=HERE / "model.yaml")
    parser.add_argument("--models", type=Path, help="folder with target/ and drafter/ (default: made without weights)")
    options = parser.parse_args()
    try:
        return _run(options)
    except InputError as error:
        for problem in error.problems:
            print(f"gpu: {problem}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    """Run the steps and return 0 when all were done."""
    machine = find_machine(options.devices)
    options.results = options.results.resolve()
    options.results.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    if options.models is None:
        options.models = options.results / "models"
        if not (options.models / "drafter" / "config.json").exists():
            command = [*_python(options), str(HERE / "make_models.py"), str(options.models)]
            if subprocess.run(command, check=False).returncode:
                raise InputError(f"--python: {shlex.join(command)} failed; name the Python that has vLLM")
    _describe(options, machine.driver)
    done = 0
    for step in options.steps:
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS:
            _say(f"{step}: not begun, {left:.0f} s are left")
            continue
        begun = time.monotonic()
        _say(f"{step}: begins, {left:.0f} s are left")
        code = _step(step, options, len(machine.devices), deadline)
        _say(f"{step}: exit code {code} after {time.monotonic() - begun:.0f} s")
        done += code == 0
    return 0 if done == len(options.steps) else 1


def _step(step: str, options: argparse.Namespace, devices: int, deadline: float) -> int:
    spec = yaml.safe_load(options.base.read_text(encoding="utf-8"))["spec"]
    gammas = spec["drafter"]["speculativeTokens"]
    match step:
        case "one-gpu":
            return _try(options, deadline, step, {"gpus": [1], "gammas": gammas[:1]})
        case "gammas":
            return _try(options, deadline, step, {"gpus": [1], "gammas": gammas})
        case "two-gpus" | "two-gpus-all" if devices < 2:
            _say(f"{step}: left out, this machine has one GPU")
            return 0
        case "two-gpus":
            return _try(options, deadline, step, {"gpus": [2], "gammas": gammas[:1], "weights": ["None"]})
        case "two-gpus-all":
            return _try(options, deadline, step, {"gpus": [2], "gammas": gammas[:1]})
        case "adaptive":
            return _adaptive(options, deadline)
        case _:
            return asyncio.run(_instrument(options, devices, deadline))


def _adaptive(options: argparse.Namespace, deadline: float) -> int:
    """Try the schedule that the measurements suggest, beside what is known of the engine without a drafter."""
    weights, schedule = _schedule(options.results)
    highest = max((int(part.partition("=")[2]) for part in schedule.split(",") if part), default=0)
    if not highest:
        _say("adaptive: needs γ 0 and two more measured at every level, and a level at which one of them is best")
        return 1
    known = options.results / "adaptive" / "runs"
    known.mkdir(parents=True, exist_ok=True)
    for path in sorted((options.results / "runs").glob("*.json")):
        candidate = json.loads(path.read_text(encoding="utf-8"))["spec"]["candidate"]
        if candidate["gpusPerReplica"] == 1 and candidate["speculativeTokens"] == 0:
            shutil.copy(path, known / path.name)
    narrowed = {"gpus": [1], "gammas": [highest], "weights": [weights]}
    return _try(options, deadline, "adaptive", narrowed, schedule)


def _try(
    options: argparse.Namespace, deadline: float, step: str, narrowed: dict[str, list[Any]], schedule: str = ""
) -> int:
    """Run `specmodel try` on the manifest narrowed to a step, until the deadline."""
    folder = options.results / "adaptive" if schedule else options.results
    folder.mkdir(exist_ok=True)
    manifest = yaml.safe_load(options.base.read_text(encoding="utf-8"))
    spec = manifest["spec"]
    spec["hardware"]["gpusPerReplica"] = narrowed["gpus"]
    spec["drafter"]["speculativeTokens"] = narrowed["gammas"]
    spec["quantization"]["weights"] = narrowed.get("weights", spec["quantization"]["weights"])
    path = options.results / f"{step}.yaml"
    path.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    command = [
        sys.executable, "-m", "specmodel", "try", "-f", str(path), "--results", str(folder),
        "--model", str(options.models / "target"), "--drafter", str(options.models / "drafter"),
        "--devices", options.devices, "--vllm", options.vllm, "--load-format", "dummy",
        "--synthetic-acceptance", ",".join(f"{gamma}={rate}" for gamma, rate in ACCEPTANCE.items()),
    ]  # fmt: skip
    if schedule:
        command += ["--schedule", schedule]
    return _until(command, deadline)


def _until(command: list[str], deadline: float) -> int:
    """Run a command, interrupt it when the time is up, and return its exit code."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), os.environ.get("PYTHONPATH", "")])
    }
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return process.wait(timeout=STOP_SECONDS)


async def _instrument(options: argparse.Namespace, devices: int, deadline: float) -> int:
    """Start the drafterless engine as `specmodel try` did, twice where there are two devices, and compare on it."""
    machine = find_machine(options.devices)
    sessions = options.results / "sessions.jsonl"
    started = [
        event
        for line in (sessions.read_text(encoding="utf-8") if sessions.exists() else "").splitlines()
        if (event := json.loads(line))["event"] == "engine"
    ]
    plain = next((event for event in started if "--speculative-config" not in event["command"]), None)
    if plain is None:
        _say("instrument: the step one-gpu has started no engine yet")
        return 1
    model = plain["command"][plain["command"].index("--served-model-name") + 1]
    engines = []
    try:
        for device in machine.devices[: min(2, devices)]:
            port = free_port()
            command = list(plain["command"])
            command[command.index("--port") + 1] = str(port)
            engine = await start_engine(
                command,
                environment={**os.environ, "VLLM_NO_USAGE_STATS": "1", **machine.environment((device,))},
                port=port,
                log=options.results / "logs" / f"instrument-{device}.log",
                mark=str(options.results),
            )
            engines.append(engine)
        for engine in engines:
            await engine.wait_until_ready(max(1.0, deadline - time.monotonic() - LEAST_SECONDS))
        command = [
            *_python(options), str(HERE / "instrument.py"), "--url", engines[0].url, "--model", model,
            "--tokenizer", str(options.models / "target"), "--out", str(options.results / "instrument.json"),
        ]  # fmt: skip
        dataset = yaml.safe_load(options.base.read_text())["spec"]["workload"].get("dataset")
        if dataset:
            synthetic = dataset["synthetic"]
            command += ["--input-tokens", str(synthetic["inputTokens"])]
            command += [
                "--output-tokens",
                str(synthetic["outputTokens"]),
                "--levels",
                "1",
                "2",
                "--least-requests",
                "4",
            ]
        if len(engines) > 1:
            command += ["--beside", engines[1].url]
        return await asyncio.to_thread(_until, command, deadline)
    finally:
        await asyncio.gather(*(engine.stop(5.0) for engine in engines))


def _schedule(results: Path) -> tuple[str, str]:
    """Return the fastest weights, and as a schedule the γ that served most requests per second at each level with them.

    A level's γ holds from just above the level below it.
    """
    best: dict[str, dict[int, dict[int, float]]] = {}
    for path in sorted((results / "runs").glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        candidate = run["spec"]["candidate"]
        if candidate["gpusPerReplica"] != 1:
            continue
        for cell in run.get("status", {}).get("cells", []):
            at = best.setdefault(candidate["weights"], {}).setdefault(cell["concurrency"], {})
            at[candidate["speculativeTokens"]] = float(cell["requestsPerSecond"])
    complete = {weights: levels for weights, levels in best.items() if all(len(at) >= 3 for at in levels.values())}
    if not complete:
        return "", ""
    weights, fastest = max(complete.items(), key=lambda one: max(one[1][max(one[1])].values()))
    steps: list[tuple[int, int, int]] = []
    below = 0
    for level in sorted(fastest):
        gamma = max(fastest[level], key=lambda tokens: (fastest[level][tokens], -tokens))
        if steps and steps[-1][2] == gamma:
            steps[-1] = (steps[-1][0], level, gamma)
        else:
            steps.append((below + 1, level, gamma))
        below = level
    steps[-1] = (steps[-1][0], max(64, steps[-1][1]), steps[-1][2])
    return weights, ",".join(f"{first}-{last}={gamma}" for first, last, gamma in steps)


def _describe(options: argparse.Namespace, driver: str) -> None:
    """Append what this machine is to machines.jsonl."""

    def asked(*command: str) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{type(error).__name__}: {error}"
        return done.stdout.strip()

    versions = "import torch; print(torch.__version__, torch.version.cuda)"
    row: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpus": asked(
            "nvidia-smi", "--query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit", "--format=csv"
        ),
        "links": asked("nvidia-smi", "topo", "-m"),
        "driver": driver,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "torch": asked(*_python(options), "-c", versions),
        "environment": {
            key: value
            for key, value in os.environ.items()
            if key.startswith(("VLLM_", "NCCL_", "TORCH_SYMM", "NVSHMEM"))
        },
        "command": shlex.join(sys.argv),
    }
    with (options.results / "machines.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _python(options: argparse.Namespace) -> list[str]:
    """Return the Python that has vLLM."""
    if options.python:
        return shlex.split(options.python)
    program = Path(shlex.split(options.vllm)[0])
    beside = program.with_name("python3") if program.is_absolute() else None
    return [str(beside)] if beside is not None and beside.exists() else [sys.executable]


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} gpu: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
