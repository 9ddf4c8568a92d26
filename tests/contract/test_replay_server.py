"""The replay engine as a process: what an operator, a load generator and a scraper of vLLM rely on.

Every server here is a real one on a free port of 127.0.0.1, with a table whose latencies are some tens of milliseconds.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "images/replay"
EAGLE3 = json.dumps({"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3})
DEADLINE_SECONDS = 30.0

# The series of vLLM 0.25.1 with speculation, as names; histograms stand without their suffixes.
COUNTERS = """
spec_decode_num_drafts spec_decode_num_draft_tokens spec_decode_num_accepted_tokens
spec_decode_num_accepted_tokens_per_pos prefix_cache_queries prefix_cache_hits external_prefix_cache_queries
external_prefix_cache_hits mm_cache_queries mm_cache_hits num_preemptions prompt_tokens prompt_tokens_by_source
prompt_tokens_cached generation_tokens request_success
"""
GAUGES = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason engine_sleep_state kv_cache_usage_perc
cache_config_info
"""
HISTOGRAMS = """
request_prompt_tokens request_generation_tokens iteration_tokens_total request_max_num_generation_tokens
request_params_n request_params_max_tokens time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_prefill_kv_computed_tokens
"""


def quick_table(e2e_milliseconds: float = 60) -> list[dict[str, Any]]:
    """Return a table of one GPU, with and without speculation, at two levels."""

    def distribution(middle: float) -> dict[str, float]:
        return {"mean": middle, "p50": middle, "p90": middle * 1.1, "p95": middle * 1.15, "p99": middle * 1.2}

    def level(concurrency: int) -> dict[str, Any]:
        return {
            "concurrency": concurrency,
            "e2eMilliseconds": distribution(e2e_milliseconds + concurrency),
            "ttftMilliseconds": distribution(10),
            "acceptance": {"perPosition": [0.9, 0.5, 0.1]},
        }

    return [
        {
            "format": "specmodel.dev/replay-table/v1",
            "name": f"quick-g{tokens}",
            "tensorParallelSize": 1,
            "speculativeTokens": tokens,
            "weights": "BF16",
            "inputTokens": 100,
            "outputTokens": 32,
            "levels": [level(1), level(8)],
        }
        for tokens in (0, 3)
    ]


@dataclasses.dataclass
class Running:
    """A server process and how to talk to it."""

    process: subprocess.Popen[str]
    port: int

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers (names in lower case) and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        with contextlib.closing(connection):
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, sent, headers)
            response = connection.getresponse()
            text = response.read().decode()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, text

    def complete(self, **content: Any) -> dict[str, Any]:
        status, _, text = self.ask("POST", "/v1/completions", {"prompt": "a b c", "ignore_eos": True} | content)
        assert status == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def stream(self, path: str, **content: Any) -> list[dict[str, Any]]:
        """Return the events of a streamed answer, which must end in [DONE]."""
        status, headers, text = self.ask("POST", path, {"stream": True, "ignore_eos": True} | content)
        assert status == 200, text
        assert headers["content-type"].startswith("text/event-stream")
        events = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of this name that carry these labels."""
        _, _, text = self.ask("GET", "/metrics")
        total = 0.0
        for line in text.splitlines():
            found = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            if found and found[1] == name:
                have = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                total += float(found[3]) if labels.items() <= have.items() else 0.0
        return total

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def process(
    folder: Path, *flags: str, e2e_milliseconds: float = 60, fault: str = "", startup: str = "0"
) -> Iterator[Running]:
    """Start a server process; it is not waited for."""
    table = folder / "quick.json"
    table.write_text(json.dumps(quick_table(e2e_milliseconds)), encoding="utf-8")
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "specmodel_replay",
        "serve",
        "org/target",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPECMODEL_")} | {
        "PYTHONPATH": str(SOURCE),
        "SPECMODEL_REPLAY_TABLE": str(table),
        "SPECMODEL_REPLAY_STARTUP_SECONDS": startup,
        "SPECMODEL_REPLAY_FAULT": fault,
    }
    with subprocess.Popen([*command, *flags], env=environment, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield Running(started, port)
        finally:
            started.kill()


def wait_healthy(running: Running) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            assert running.ask("GET", "/health")[0] == 200
        except OSError:
            assert running.process.poll() is None, running.process.communicate()[1]
            assert time.monotonic() < deadline, "the server never became healthy"
            time.sleep(0.02)
            continue
        return


@contextlib.contextmanager
def serving(folder: Path, *flags: str, **options: Any) -> Iterator[Running]:
    """Start a server and wait until it is healthy."""
    with process(folder, *flags, **options) as running:
        wait_healthy(running)
        yield running


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Return a server that speculates, with two names, an adapter and a short context."""
    flags = (
        "--served-model-name",
        "shop",
        "alias",
        "--lora-modules",
        "extra=/adapters/extra",
        "--max-model-len",
        "200",
    )
    with serving(tmp_path_factory.mktemp("shop"), "--speculative-config", EAGLE3, *flags) as running:
        yield running


def test_everything_says_that_this_is_a_replay(shop: Running) -> None:
    status, headers, text = shop.ask("GET", "/version")
    assert status == 200
    assert json.loads(text) == {"version": "0.25.1", "engine": "replay", "table": "quick", "configuration": "quick-g3"}
    assert headers["x-specmodel-engine"] == "replay"
    models = json.loads(shop.ask("GET", "/v1/models")[2])["data"]
    assert [(model["id"], model["owned_by"], model["max_model_len"]) for model in models] == [
        (name, "specmodel-replay", 200) for name in ("shop", "alias", "extra")
    ]
    assert [model["parent"] for model in models] == [None, None, "shop"]
    for path in ("/health", "/v1/models", "/metrics", "/nothing"):
        assert shop.ask("GET", path)[1]["x-specmodel-engine"] == "replay"


def test_the_probes_of_vllm_are_answered(shop: Running) -> None:
    assert shop.ask("GET", "/health")[::2] == (200, "")
    assert shop.ask("GET", "/ping")[0] == shop.ask("POST", "/ping")[0] == 200
    assert json.loads(shop.ask("GET", "/load")[2]) == {"server_load": 0}
    assert shop.ask("GET", "/nothing")[0] == 404
    assert shop.ask("GET", "/v1/completions")[0] == 405


def test_a_completion_has_exactly_the_wanted_tokens(shop: Running) -> None:
    answer = shop.complete(model="alias", max_tokens=21, prompt=list(range(50)))
    assert answer["object"] == "text_completion"
    assert answer["model"] == "alias"
    assert len(answer["choices"][0]["text"].split()) == 21
    assert answer["choices"][0]["finish_reason"] == "length"
    assert (
        answer["usage"]["prompt_tokens"],
        answer["usage"]["completion_tokens"],
        answer["usage"]["total_tokens"],
    ) == (50, 21, 71)


def test_without_ignore_eos_an_answer_ends_by_itself_at_the_measured_length(shop: Running) -> None:
    answer = shop.complete(max_tokens=100, ignore_eos=False)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (32, "stop")


def test_a_streamed_completion_brings_several_tokens_an_event_and_its_usage_last(shop: Running) -> None:
    events = shop.stream("/v1/completions", prompt="a b", max_tokens=40, stream_options={"include_usage": True})
    *tokens, usage = events
    sizes = [len(event["choices"][0]["text"].split()) for event in tokens]
    assert sum(sizes) == usage["usage"]["completion_tokens"] == 40
    assert max(sizes) > 1
    assert usage["choices"] == []
    reasons = [event["choices"][0]["finish_reason"] for event in tokens]
    assert reasons == [None] * (len(tokens) - 1) + ["length"]
    whole = shop.complete(prompt="a b", max_tokens=40)["choices"][0]["text"]
    assert "".join(event["choices"][0]["text"] for event in tokens) == whole


def test_a_streamed_chat_begins_with_the_role_and_says_what_the_whole_chat_says(shop: Running) -> None:
    messages = [{"role": "user", "content": "what is in the basket"}]
    events = shop.stream("/v1/chat/completions", messages=messages, max_completion_tokens=12)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert all(event["choices"] for event in events)
    status, _, text = shop.ask(
        "POST", "/v1/chat/completions", {"messages": messages, "max_completion_tokens": 12, "ignore_eos": True}
    )
    whole = json.loads(text)
    assert (status, whole["object"], whole["usage"]["completion_tokens"]) == (200, "chat.completion", 12)
    said = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": said, "tool_calls": []}


def test_tokens_arrive_while_the_answer_is_being_made(tmp_path: Path) -> None:
    with serving(tmp_path, e2e_milliseconds=1000) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=DEADLINE_SECONDS)
        with contextlib.closing(connection):
            content = {"prompt": "a", "max_tokens": 320, "ignore_eos": True, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(content))
            response = connection.getresponse()
            assert response.readline().startswith(b"data: ")
            assert running.metric("vllm:num_requests_running") == 1
            assert json.loads(running.ask("GET", "/load")[2]) == {"server_load": 1}


def test_a_client_that_leaves_is_noticed_and_counted(tmp_path: Path) -> None:
    with serving(tmp_path, e2e_milliseconds=5000) as running:
        for is_streaming in (True, False):
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=DEADLINE_SECONDS)
            content = {"prompt": "a", "max_tokens": 3200, "ignore_eos": True, "stream": is_streaming}
            connection.request("POST", "/v1/completions", json.dumps(content))
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not running.metric("vllm:num_requests_running"):
                assert time.monotonic() < deadline
            connection.close()
            while running.metric("vllm:num_requests_running"):
                assert time.monotonic() < deadline, "the request went on without its client"
        assert running.metric("vllm:request_success_total", finished_reason="abort") == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 500}, 400, "BadRequestError"),
        ("/v1/completions", {"prompt": "a", "model": "none"}, 404, "NotFoundError"),
        ("/v1/completions", b"{", 400, "BadRequestError"),
        ("/v1/chat/completions", {"messages": []}, 400, "BadRequestError"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 2}, 400, "BadRequestError"),
    ],
)
def test_errors_have_the_form_of_the_api(shop: Running, path: str, body: Any, status: int, kind: str) -> None:
    answered, _, text = shop.ask("POST", path, body)
    error = json.loads(text)["error"]
    assert (answered, error["code"], error["type"]) == (status, status, kind)


def test_the_metrics_have_the_names_and_labels_of_vllm(shop: Running) -> None:
    shop.complete(max_tokens=5)
    _, headers, text = shop.ask("GET", "/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    series: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("vllm:"):
            name, _, labels = line.partition("{")
            series.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    for name in COUNTERS.split():
        assert {"engine", "model_name"} <= series[f"vllm:{name}_total"]
        assert f"vllm:{name}_created" in series
    for name in GAUGES.split():
        assert "engine" in series[f"vllm:{name}"]
    for name in HISTOGRAMS.split():
        assert series[f"vllm:{name}_bucket"] == {"engine", "model_name", "le"}
        assert {f"vllm:{name}_count", f"vllm:{name}_sum", f"vllm:{name}_created"} <= series.keys()
    assert 'vllm:generation_tokens_total{engine="0",model_name="shop"}' in text
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="shop",position="2"}' in text


def test_counters_move_by_what_was_served(shop: Running) -> None:
    names = ["generation_tokens", "prompt_tokens", "request_success", "spec_decode_num_drafts"]
    names += ["spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"]
    before = [shop.metric(f"vllm:{name}_total") for name in names]
    threads = [
        threading.Thread(target=shop.complete, kwargs={"max_tokens": 100, "prompt": list(range(20))}) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = [shop.metric(f"vllm:{name}_total") for name in names]
    generated, prompted, ended, drafts, drafted, accepted = (b - a for a, b in zip(before, after, strict=True))
    assert (generated, prompted, ended) == (600, 120, 6)
    assert drafted == 3 * drafts
    assert accepted / drafted == pytest.approx(0.5, abs=0.02)
    assert shop.metric("vllm:e2e_request_latency_seconds_count") >= 6


def test_an_api_key_guards_the_api_and_leaves_the_rest_open(tmp_path: Path) -> None:
    with serving(tmp_path, "--api-key", "secret") as running:
        assert running.ask("GET", "/v1/models")[0] == 401
        assert running.ask("POST", "/v1/completions", {"prompt": "a"}, Authorization="Bearer wrong")[0] == 401
        assert running.ask("GET", "/v1/models", Authorization="Bearer secret")[0] == 200
        for path in ("/health", "/metrics", "/version", "/load", "/ping"):
            assert running.ask("GET", path)[0] == 200


def in_background(running: Running, results: list[tuple[int, str]], tokens: int) -> threading.Thread:
    """Send one long request from a thread and return once the server runs it."""

    def ask() -> None:
        try:
            content = {"prompt": "a", "max_tokens": tokens, "ignore_eos": True}
            status, _, text = running.ask("POST", "/v1/completions", content)
        except (OSError, http.client.HTTPException) as error:
            status, text = 0, str(error)
        results.append((status, text))

    before = running.metric("vllm:num_requests_running")
    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while running.metric("vllm:num_requests_running") == before:
        assert time.monotonic() < deadline
    return thread


def test_on_sigterm_what_is_in_flight_is_finished_while_new_requests_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-timeout", "25", e2e_milliseconds=1500) as running:
        results: list[tuple[int, str]] = []
        thread = in_background(running, results, tokens=32)
        running.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while running.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] != 500:
            assert time.monotonic() < deadline
        assert running.ask("GET", "/health")[0] == 200
        thread.join()
        assert [status for status, _ in results] == [200]
        assert json.loads(results[0][1])["usage"]["completion_tokens"] == 32
        assert running.process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("flags", [(), ("--shutdown-timeout", "1")])
def test_on_sigterm_what_takes_longer_than_the_time_out_is_aborted(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with serving(tmp_path, *flags, e2e_milliseconds=60_000) as running:
        results: list[tuple[int, str]] = []
        thread = in_background(running, results, tokens=32)
        assert running.end() == 0
        thread.join()
        assert results[0][0] in {0, 500}


def test_an_idle_server_ends_at_once_even_while_it_pretends_to_load(tmp_path: Path) -> None:
    with process(tmp_path, startup="600") as running:
        assert running.process.stderr is not None
        assert "REPLAY ENGINE: no model is run" in running.process.stderr.readline()
        with pytest.raises(OSError, match="refused"):
            running.ask("GET", "/health")
        assert running.end() == 0


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (("--num-speculative-tokens", "3"), 2, "vllm: error: unrecognized arguments: --num-speculative-tokens 3\n"),
        (("--tensor-parallel-size", "2"), 1, "  - BF16, 1 GPU, γ=3\n"),
        (("--speculative-config", '{"foo": 1}'), 1, "1 validation error for SpeculativeConfig\nfoo\n"),
    ],
)
def test_a_wrong_command_line_ends_the_process(
    tmp_path: Path, flags: tuple[str, ...], status: int, message: str
) -> None:
    with process(tmp_path, *flags) as running:
        _, errors = running.process.communicate(timeout=DEADLINE_SECONDS)
        assert running.process.returncode == status
        assert message in errors


def test_a_port_that_is_taken_ends_the_process_with_a_clear_error(tmp_path: Path) -> None:
    with serving(tmp_path) as first, process(tmp_path, "--port", str(first.port)) as second:
        _, errors = second.process.communicate(timeout=DEADLINE_SECONDS)
        assert second.process.returncode == 1
        assert f"cannot listen on 127.0.0.1:{first.port}" in errors


def test_it_dies_at_start_on_demand_with_the_wanted_last_line(tmp_path: Path) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory."
    with process(tmp_path, fault=f"die-at-start:{line}") as running:
        _, errors = running.process.communicate(timeout=DEADLINE_SECONDS)
        assert running.process.returncode == 1
        assert "failing on purpose" in errors
        assert errors.splitlines()[-1].endswith(line)


def test_it_dies_at_the_first_request_on_demand(tmp_path: Path) -> None:
    with serving(tmp_path, fault="die-at-first-request") as running:
        with pytest.raises((OSError, http.client.HTTPException)):
            running.ask("POST", "/v1/completions", {"prompt": "a"})
        _, errors = running.process.communicate(timeout=DEADLINE_SECONDS)
        assert running.process.returncode == 1
        assert "EngineDeadError" in errors.splitlines()[-1]


def test_it_hangs_on_demand_and_stays_healthy(tmp_path: Path) -> None:
    with serving(tmp_path, fault="hang") as running:
        results: list[tuple[int, str]] = []
        thread = in_background(running, results, tokens=1)
        thread.join(timeout=1)
        assert thread.is_alive()
        assert running.ask("GET", "/health")[0] == 200
        assert running.metric("vllm:generation_tokens_total") == 0
        assert running.end() == 0
        thread.join()


def test_it_is_never_ready_on_demand(tmp_path: Path) -> None:
    with process(tmp_path, fault="never-ready") as running:
        assert running.process.stderr is not None
        while "failing on purpose" not in running.process.stderr.readline():
            assert running.process.poll() is None
        with pytest.raises(OSError, match="refused"):
            running.ask("GET", "/health")
        assert running.end() == 0


def test_its_speculation_is_inactive_on_demand(tmp_path: Path) -> None:
    with serving(tmp_path, "--speculative-config", EAGLE3, fault="speculation-inactive") as running:
        running.complete(max_tokens=32)
        _, _, text = running.ask("GET", "/metrics")
        assert 'vllm:spec_decode_num_drafts_total{engine="0",model_name="org/target"} 0.0' in text
        assert running.metric("vllm:generation_tokens_total") == 32


def test_it_fails_a_share_of_the_requests_on_demand(tmp_path: Path) -> None:
    with serving(tmp_path, fault="error-rate:0.25") as running:
        statuses = [running.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] for _ in range(8)]
        assert sorted(statuses) == [200] * 6 + [500] * 2


def test_the_same_program_is_named_vllm_in_the_image(tmp_path: Path) -> None:
    script = SOURCE / "vllm"
    assert os.access(script, os.X_OK)
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, script, "serve", "org/target", "--bogus"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "unrecognized arguments: --bogus" in done.stderr) == (2, True)
