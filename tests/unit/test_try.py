"""`specmodel try` with real processes: the program itself, and the replay engine in vLLM's place."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from specmodel.cli.manifest import read_model
from specmodel.cli.reading import InputError
from specmodel.local.devices import Machine
from specmodel.local.engine import MARK
from specmodel.local.store import Store
from specmodel.local.weights import fingerprint

ROOT = Path(__file__).parents[2]
REPLAY = f"{sys.executable} -m specmodel_replay"
PATIENCE = 120


def manifest(*, levels: Sequence[int] = (1,), **changes: Any) -> dict[str, Any]:
    """Return a model with two candidates that are measured in seconds."""
    spec: dict[str, Any] = {
        "model": {"uri": "hf://example/target"},
        "drafter": {"uri": "hf://example/drafter", "speculativeTokens": [3]},
        "hardware": {"gpusPerReplica": [1]},
        "engine": {
            "version": "0.25.1",
            "env": [
                {"name": "SPECMODEL_REPLAY_FAULT", "value": "slow:0.05"},
                {"name": "SPECMODEL_REPLAY_STARTUP_SECONDS", "value": "0"},
            ],
        },
        "workload": {"concurrency": list(levels), "requestsPerCell": {"min": 6, "max": 12}},
        "sla": {
            "limits": [{"metric": "E2ELatency", "percentile": 50, "maxMilliseconds": 1000}],
            "confidencePercent": 0,
        },
    }
    return {
        "apiVersion": "specmodel.dev/v1alpha1",
        "kind": "SpeculativeModel",
        "metadata": {"name": "tried"},
        "spec": spec | changes,
    }


def command(folder: Path, *more: str) -> list[str]:
    """Return the command line for the manifest in a folder."""
    return [
        sys.executable, "-m", "specmodel", "try", "-f", str(folder / "model.yaml"),
        "--results", str(folder / "results"), "--devices", "cpu", "--vllm", REPLAY, *more,
    ]  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which neither the hub nor a proxy is asked."""
    paths = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "images" / "replay")])
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", **more}


def run(
    folder: Path, *more: str, model: dict[str, Any] | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Write the manifest, run the command to its end and return what it printed."""
    (folder / "model.yaml").write_text(yaml.safe_dump(model or manifest()), encoding="utf-8")
    return subprocess.run(
        command(folder, *more),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment(**(variables or {})),
    )


def events(folder: Path) -> list[dict[str, Any]]:
    """Return what the sessions wrote down."""
    path = folder / "results" / "sessions.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def engines(folder: Path) -> list[int]:
    """Return the processes that work for a results folder."""
    mark = f"{MARK}={(folder / 'results').resolve()}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a run that has finished one cell, of engines slow enough to be caught at work; its stderr is a pipe."""
    slow = manifest(levels=[1, 2])
    slow["spec"]["engine"]["env"][0]["value"] = "slow:0.3"
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(slow), encoding="utf-8")
    process = subprocess.Popen(command(tmp_path), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    while not any(one["event"] == "cell" for one in events(tmp_path)):
        assert time.monotonic() < deadline, "no cell was finished"
        assert process.poll() is None, "it ended before a cell was finished"
        time.sleep(0.1)
    yield process
    process.kill()
    process.wait(timeout=PATIENCE)
    if process.stderr is not None:
        process.stderr.close()


def wait_until_gone(folder: Path) -> None:
    """Fail unless no engine is left within a minute."""
    deadline = time.monotonic() + 60
    while engines(folder):
        assert time.monotonic() < deadline, f"still there: {engines(folder)}"
        time.sleep(0.1)


def test_every_candidate_is_measured_one_is_recommended_and_a_second_start_measures_nothing(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "*  1 GPU γ=3" in done.stdout
    assert "(replayed, not a GPU)" in done.stdout
    assert "measured on a CPU: the figures say nothing of a GPU" in done.stderr
    advice = tmp_path / "results" / "recommended.yaml"
    spec = read_model(advice).spec
    assert spec.drafter is not None
    assert (spec.hardware.gpus_per_replica, spec.drafter.speculative_tokens) == ([1], [3])
    requests = [
        line for path in (tmp_path / "results" / "requests").iterdir() for line in path.read_text().splitlines()
    ]
    assert len(requests) == 2 * 6
    started = [one for one in events(tmp_path) if one["event"] == "engine"]
    again = run(tmp_path)
    assert again.returncode == 0
    assert [one for one in events(tmp_path) if one["event"] == "engine"] == started
    assert again.stdout == done.stdout
    assert engines(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_stop_it_leaves_no_process_keeps_finished_cells_and_a_second_start_goes_on(
    tmp_path: Path, begun: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    assert engines(tmp_path)
    begun.send_signal(number)
    assert begun.wait(timeout=60) == 128 + number
    assert engines(tmp_path) == []
    kept = [(one["run"], one["concurrency"]) for one in events(tmp_path) if one["event"] == "cell"]
    done = subprocess.run(
        command(tmp_path), capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    measured = [(one["run"], one["concurrency"]) for one in events(tmp_path) if one["event"] == "cell"]
    assert measured[: len(kept)] == kept
    assert len(measured) == len(set(measured)) == 4


def test_told_to_stop_when_nobody_reads_what_it_says_it_stops_all_the_same(
    tmp_path: Path, begun: subprocess.Popen[bytes]
) -> None:
    assert begun.stderr is not None
    begun.stderr.close()  # `specmodel try 2>&1 | tee log`: Ctrl-C ends tee as well
    begun.send_signal(signal.SIGINT)
    assert begun.wait(timeout=60) == 128 + signal.SIGINT
    assert engines(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_of_what_a_shell_had_it_ignore_it_ignores_only_a_terminal_that_is_closed(
    tmp_path: Path, number: signal.Signals
) -> None:
    model = manifest()
    model["spec"]["engine"]["env"][0]["value"] = "never-ready"
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(model), encoding="utf-8")
    ignoring = ["/bin/sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *command(tmp_path)]
    process = subprocess.Popen(ignoring, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not engines(tmp_path):
        assert time.monotonic() < deadline, "no engine was started"
        time.sleep(0.1)
    process.send_signal(number)
    if number is signal.SIGHUP:  # the one that follows tells whether this one was heard
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + (signal.SIGINT if number is signal.SIGINT else signal.SIGTERM)
    assert engines(tmp_path) == []


def test_a_second_start_in_a_folder_where_one_measures_is_refused_and_harms_nothing(
    tmp_path: Path, begun: subprocess.Popen[bytes]
) -> None:
    working = engines(tmp_path)
    second = subprocess.run(
        command(tmp_path), capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment()
    )
    assert second.returncode == 2
    assert "another `specmodel try` is measuring in this folder" in second.stderr
    assert begun.poll() is None
    assert set(working) <= set(engines(tmp_path)) or any(one["event"] == "stopped" for one in events(tmp_path))
    assert not [one for one in events(tmp_path) if one.get("outcome") == "ServerFailed"]


def test_what_an_engine_started_elsewhere_is_stopped_with_it(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    lines = (
        "#!/bin/sh",
        '[ "$1" = serve ] && [ -n "$VLLM_API_KEY" ] && exit 7',
        '[ "$1" = serve ] && setsid sleep 3600 &',
        f'exec {REPLAY} "$@"',
    )
    program.write_text("\n".join(lines), encoding="utf-8")
    program.chmod(0o755)
    done = run(tmp_path, "--vllm", str(program), variables={"VLLM_API_KEY": "for-another-server"})
    assert done.returncode == 0, done.stderr
    assert engines(tmp_path) == []


def test_killed_without_a_word_it_takes_its_engine_with_it(tmp_path: Path, begun: subprocess.Popen[bytes]) -> None:
    assert engines(tmp_path)
    begun.kill()
    begun.wait(timeout=60)
    wait_until_gone(tmp_path)


def test_an_engine_that_does_not_start_is_a_failed_candidate_with_its_own_words(tmp_path: Path) -> None:
    model = manifest()
    fault = "slow:0.05;example/drafter=die-at-start:ValueError: no drafter of that name"
    model["spec"]["engine"]["env"][0]["value"] = fault
    done = run(tmp_path, model=model)
    assert done.returncode == 0, done.stderr
    assert "1 GPU γ=3         Failed" in done.stdout
    assert "ValueError: no drafter of that name" in done.stderr
    assert "is not tried again" not in done.stderr
    again = run(tmp_path, model=model)
    (failed,) = (one["run"] for one in events(tmp_path) if one["event"] == "outcome" and one["outcome"] != "Complete")
    file = tmp_path / "results" / "runs" / f"{failed}.json"
    assert f"1 GPU γ=3: failed before (EngineFailed) and is not tried again; remove {file} to try it" in again.stderr
    assert "no drafter: failed before" not in again.stderr


def test_an_engine_that_a_cluster_would_not_serve_with_is_said(tmp_path: Path) -> None:
    model = manifest(hardware={"gpusPerReplica": [1, 2]})
    model["spec"]["engine"]["version"] = "0.22.1"
    done = run(tmp_path, model=model)
    assert "a cluster would serve this manifest with vLLM 0.22.1; this machine has 0.25.1" in done.stderr
    assert "candidates with more than 1 GPU are left out" in done.stderr


def test_an_engine_that_dies_at_its_first_request_is_a_failed_candidate(tmp_path: Path) -> None:
    model = manifest()
    fault = "slow:0.05;example/drafter=die-at-first-request:TypeError: launch() missing 1 argument"
    model["spec"]["engine"]["env"][0]["value"] = fault
    done = run(tmp_path, model=model)
    assert done.returncode == 0, done.stderr
    assert "The engine died under load: TypeError: launch() missing 1 argument" in done.stderr
    assert "*  1 GPU no drafter" in done.stdout


def test_speculation_that_does_nothing_is_not_recommended_as_speculation(tmp_path: Path) -> None:
    model = manifest()
    model["spec"]["engine"]["env"][0]["value"] = "slow:0.05;example/drafter=speculation-inactive"
    done = run(tmp_path, model=model)
    assert done.returncode == 0, done.stderr
    assert "*  1 GPU no drafter" in done.stdout
    assert "SpeculationInactive" in done.stdout


def test_decide_takes_the_folder_that_try_was_given(measured: Path) -> None:
    line = [sys.executable, "-m", "specmodel", "decide", "-f", "model.yaml", "--results"]
    for folder in ("results", "results/runs"):
        done = subprocess.run(
            [*line, folder], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
            cwd=measured,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "*  1 GPU γ=3" in done.stdout
        assert "measured on a CPU: the figures say nothing of a GPU" in done.stderr


def test_what_nobody_can_print_is_kept_and_said(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(manifest()), encoding="utf-8")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            command(tmp_path), stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False,
            env=environment(),
        )  # fmt: skip
    assert done.returncode == 1
    assert "stdout: cannot be written: No space left on device; the same command prints the decision" in done.stderr
    assert (tmp_path / "results" / "recommended.yaml").exists()
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        again = subprocess.run(
            command(tmp_path), stdout=subprocess.PIPE, stderr=full, text=True, timeout=PATIENCE, check=False,
            env=environment(PYTHONIOENCODING="ascii"),
        )  # fmt: skip
    assert again.returncode == 0
    assert r"*  1 GPU \u03b3=3" in again.stdout


def test_told_to_stop_while_it_is_only_loaded_it_says_nothing() -> None:
    program = "import sys; sys.modules['specmodel.local.command'] = sys.modules['__main__']\n"
    program += "def main(_): raise KeyboardInterrupt\n"
    program += "from specmodel.cli.main import main as specmodel; sys.exit(specmodel(['try']))"
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment())
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


def test_figures_of_other_conditions_are_never_mixed(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 0
    other = run(tmp_path, "--load-format", "dummy")
    assert other.returncode == 2
    assert "conditions.json: loadFormat: what is there was measured with 'auto', this start has 'dummy'" in other.stderr


def checkpoint(place: Path, weights: bytes) -> str:
    """Return a folder with a config.json that says nothing, and some weights."""
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text("{}", encoding="utf-8")
    (place / "pytorch_model.bin").write_bytes(bytes(200_000) + weights + bytes(200_000))
    return str(place)


def test_a_drafter_that_was_trained_on_is_not_given_the_figures_of_the_one_before(tmp_path: Path) -> None:
    before = [fingerprint(checkpoint(tmp_path / name, b"x" * 9000)) for name in ("one", "moved")]
    assert before[0] == before[1]
    (tmp_path / "first").mkdir()
    Store(folder=tmp_path / "first").open({"drafter": None})
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    Store(folder=tmp_path / "second").open({"drafter": before[0]})
    shutil.copytree(tmp_path / "second", tmp_path / "results")
    trained = fingerprint(checkpoint(tmp_path / "one", b"y" * 9000))
    with pytest.raises(InputError, match=r"drafter: what is there was measured with other files than --drafter names"):
        Store(folder=tmp_path / "results").open({"drafter": trained})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a manifest and what was measured for it."""
    folder = tmp_path_factory.mktemp("measured")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("conditions.json", "", "conditions.json: must be a file that holds the conditions of what is in the folder"),
        ("conditions.json", None, "conditions.json: is not there, so that nobody knows what the runs beside it were"),
        ("runs/{run}.json", "", "{run}.json: must be a file that holds a BenchmarkRun; remove the file"),
        ("runs/{run}.json", '{"kind": "Tr', "{run}.json, line 1: is no JSON"),
        ("runs/{run}.json", "[1, 2]", "{run}.json: must be a file that holds a BenchmarkRun"),
        ("runs/copy of {run}.json", "{own}", "metadata.name: is {run}, and a run's file is named after it"),
        ("runs/pipe.json", "pipe", "pipe.json: must be a file that holds a BenchmarkRun"),
        ("runs/.{run}.json", "an editor's own", ""),
    ],
)
def test_a_results_folder_that_was_tampered_with_is_refused_in_words(
    tmp_path: Path, measured: Path, file: str, text: str | None, said: str
) -> None:
    results = tmp_path / "results"
    shutil.copytree(measured / "results", results)
    name = next(iter(sorted((results / "runs").glob("*.json")))).stem
    place = results / file.format(run=name)
    if text is None:
        place.unlink()
    elif text == "pipe":
        os.mkfifo(place)
    else:
        own = (results / "runs" / f"{name}.json").read_text(encoding="utf-8")
        place.write_text(own if text == "{own}" else text, encoding="utf-8")
    done = run(tmp_path)
    assert done.returncode == (2 if said else 0), done.stderr
    assert said.format(run=name) in done.stderr
    assert "Traceback" not in done.stderr


def test_the_status_of_a_run_may_be_missing_and_the_manifest_a_pipe(tmp_path: Path, measured: Path) -> None:
    shutil.copytree(measured / "results", tmp_path / "results")
    file = next(iter(sorted((tmp_path / "results" / "runs").glob("*.json"))))
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"status": None}), encoding="utf-8")
    line = command(tmp_path)
    line[line.index("-f") + 1] = "/dev/stdin"
    done = subprocess.run(
        line, input=yaml.safe_dump(manifest()), capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [one["run"] for one in events(tmp_path) if one["event"] == "cell"][2:] == [file.stem]


def test_nobody_within_the_limits_is_exit_code_3_and_nothing_is_recommended_any_more(
    tmp_path: Path, measured: Path
) -> None:
    shutil.copytree(measured / "results", tmp_path / "results")
    assert (tmp_path / "results" / "recommended.yaml").exists()
    model = manifest(
        sla={"limits": [{"metric": "E2ELatency", "percentile": 50, "maxMilliseconds": 1}], "confidencePercent": 0}
    )
    done = run(tmp_path, model=model)
    assert done.returncode == 3
    assert "nearest miss" in done.stderr
    assert not (tmp_path / "results" / "recommended.yaml").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--devices", "gpu"], "--devices: 'gpu' must be auto, cpu, cpu:PARTS, or GPU indices such as 0,1"),
        (["--vllm", "no-such-program"], "--vllm: there is no program 'no-such-program'"),
        (["--model", "/"], "--model: / holds no config.json"),
        (["--synthetic-acceptance", "5=50"], "--synthetic-acceptance: no candidate here drafts 5 tokens; "),
        (["--synthetic-acceptance", "3=50,3=60"], "'3=60' must be γ=PERCENT, such as 3=35.5, each γ from 1 to 16 once"),
        (["--prompts", "/dev/null"], "--prompts: the manifest's workload.dataset is synthetic"),
        (["--vllm", "vllm 'serve"], '--vllm: "vllm \'serve" is no command: No closing quotation'),
        (
            ["--vllm", "printf '\\377\\n0.99.0\\n'"],
            "--vllm: this is vLLM 0.99.0, and no release of that minor was checked",
        ),
        (["--model", "~nobody-of-that-name/x"], "--model: ~nobody-of-that-name/x: Could not determine home directory"),
    ],
)
def test_bad_arguments_are_refused_in_words_before_anything_starts(
    tmp_path: Path, more: Sequence[str], said: str
) -> None:
    done = run(tmp_path, *more)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "results" / "sessions.jsonl").exists()


@pytest.fixture
def gpus(tmp_path: Path) -> dict[str, str]:
    """Return variables with an nvidia-smi of two H200s on the PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    program = place / "nvidia-smi"
    lines = [f"{index}, NVIDIA H200, 143771, 580.1, GPU-{index}{index}, ${{MIG:-[N/A]}}" for index in (0, 1)]
    program.write_text("#!/bin/sh\n" + "".join(f'echo "{line}"\n' for line in lines))
    program.chmod(0o755)
    return {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}


def test_gpus_of_a_product_that_the_manifest_does_not_allow_are_refused(tmp_path: Path, gpus: dict[str, str]) -> None:
    done = run(tmp_path, "--devices", "auto", variables=gpus)
    assert done.returncode == 2
    assert "this machine has NVIDIA-H200: set gpuProducts: [NVIDIA-H200] to measure on it" in done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "--devices: CUDA_VISIBLE_DEVICES is empty, which leaves no GPU"),
        ({"CUDA_VISIBLE_DEVICES": "0,7"}, "CUDA_VISIBLE_DEVICES is '0,7', and '7' is no GPU that nvidia-smi lists"),
        ({"MIG": "Enabled"}, "--devices: GPU 0, 1 is divided by MIG"),
    ],
)
def test_gpus_that_are_not_to_be_had_are_refused(
    tmp_path: Path, gpus: dict[str, str], variables: dict[str, str], said: str
) -> None:
    model = manifest(hardware={"gpusPerReplica": [1], "gpuProducts": ["NVIDIA-H200"]})
    done = run(tmp_path, "--devices", "auto", model=model, variables={**gpus, **variables})
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("shown", ["1", "GPU-11"])
def test_only_gpus_that_the_environment_leaves_to_this_program_are_used(
    tmp_path: Path, gpus: dict[str, str], shown: str
) -> None:
    model = manifest(hardware={"gpusPerReplica": [1], "gpuProducts": ["NVIDIA-H200"]})
    done = run(tmp_path, "--devices", "auto", model=model, variables={**gpus, "CUDA_VISIBLE_DEVICES": shown})
    assert done.returncode == 0, done.stderr
    assert [one["devices"] for one in events(tmp_path) if one["event"] == "engine"] == [[1], [1]]


def test_a_cpu_is_divided_into_the_cores_that_this_program_may_use() -> None:
    machine = Machine(product="CPU", devices=(0, 1), cores=2, cpus=(4, 5, 8, 9))
    assert machine.environment((1,)) == {"VLLM_CPU_OMP_THREADS_BIND": "8,9"}
    assert machine.environment((0, 1)) == {"VLLM_CPU_OMP_THREADS_BIND": "4,5|8,9"}


def test_two_candidates_with_one_gpu_run_side_by_side_each_on_its_own(tmp_path: Path, gpus: dict[str, str]) -> None:
    model = manifest(hardware={"gpusPerReplica": [1], "gpuProducts": ["NVIDIA-H200"]})
    done = run(tmp_path, "--devices", "auto", model=model, variables=gpus)
    assert done.returncode == 0, done.stderr
    order = [one["event"] for one in events(tmp_path)]
    assert order.index("stopped") > [at for at, event in enumerate(order) if event == "engine"][1]
    assert [one["devices"] for one in events(tmp_path) if one["event"] == "engine"] == [[0], [1]]
    assert "measured by `specmodel try` on NVIDIA-H200" in (tmp_path / "results" / "recommended.yaml").read_text()


def test_pretended_acceptance_and_random_weights_reach_the_engine_and_are_said(tmp_path: Path) -> None:
    done = run(tmp_path, "--load-format", "dummy", "--synthetic-acceptance", "3=35.5")
    assert done.returncode == 0, done.stderr
    started = [one["command"] for one in events(tmp_path) if one["event"] == "engine"]
    assert all(line[line.index("--load-format") + 1] == "dummy" for line in started)
    speculation = json.loads(started[1][started[1].index("--speculative-config") + 1])
    assert speculation["rejection_sample_method"] == "synthetic"
    assert speculation["synthetic_acceptance_length"] == pytest.approx(1 + 3 * 0.355)
    assert "acceptance is pretended (35.5 % at γ=3), not a drafter's" in done.stderr
    assert "random weights" in done.stderr
    pretended = "acceptance is pretended (35.5 % at γ=3), not a drafter's"
    assert f"# {pretended}" in (tmp_path / "results" / "recommended.yaml").read_text(encoding="utf-8")
    line = [sys.executable, "-m", "specmodel", "decide", "-f", "model.yaml", "--results", "results/runs"]
    decided = subprocess.run(
        line, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(), cwd=tmp_path
    )
    assert decided.returncode == 0, decided.stderr
    assert pretended in decided.stderr
