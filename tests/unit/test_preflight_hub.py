"""Checkpoints are read from a hub without their weights, and every way in which that fails is told apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specmodel.domain.checkpoint import Checkpoint
from specmodel.domain.preflight import Cause, Unread, reading_from_json
from specmodel.preflight import __main__ as job
from specmodel.preflight.hub import HEADER_FIRST, Place, read_checkpoint
from specmodel.preflight.local import CONFIG_MAXIMUM
from specmodel.preflight.read import read
from tests.support.checkpoints import (
    LLAMA_70B,
    TINY_DRAFTER,
    TINY_TARGET,
    drafter_shapes,
    safetensors,
    target_shapes,
    write_checkpoint,
)
from tests.support.fake_hub import FakeHub

REPOSITORY = "org/target"


def files_of(config: dict[str, Any], weights: bytes | None) -> dict[str, bytes]:
    files = {"config.json": json.dumps(config).encode()}
    return files if weights is None else files | {"model.safetensors": weights}


def whole_hub(**changes: Any) -> FakeHub:
    hub = FakeHub(**changes)
    hub.add(REPOSITORY, files_of(TINY_TARGET, safetensors(target_shapes(TINY_TARGET)) + bytes(200_000)))
    return hub


async def found(hub: FakeHub, *, revision: str = "main", token: str = "", deadline: float = 10) -> Checkpoint | Unread:
    async with hub.serve():
        place = Place(repository=REPOSITORY, revision=revision, endpoint=hub.url, token=token)
        return await read_checkpoint(place, deadline=deadline)


async def facts(hub: FakeHub, **options: Any) -> Checkpoint:
    answer = await found(hub, **options)
    assert isinstance(answer, Checkpoint), answer
    return answer


async def problem(hub: FakeHub, **options: Any) -> Unread:
    answer = await found(hub, **options)
    assert isinstance(answer, Unread), answer
    return answer


async def test_config_and_headers_are_read_and_no_weights() -> None:
    hub = whole_hub()
    checkpoint = await facts(hub)
    assert checkpoint.source == "hf://org/target@main"
    assert checkpoint.tensors is not None
    assert checkpoint.tensors.bytes_by_dtype == (("BF16", 1_837_312),)
    ranges = [wanted for _, path, wanted, _ in hub.requests if path.endswith("model.safetensors")]
    assert ranges == [f"bytes=0-{HEADER_FIRST - 1}"]


async def test_a_hub_that_ignores_ranges_is_cut_off() -> None:
    hub = whole_hub(ignores_ranges=True)
    hub.files[f"{REPOSITORY}/main/model.safetensors"] += bytes(50_000_000)
    assert (await facts(hub)).tensors is not None


async def test_a_longer_header_takes_a_second_request() -> None:
    hub = FakeHub()
    weights = safetensors(target_shapes(LLAMA_70B))
    assert len(weights) > HEADER_FIRST
    hub.add(REPOSITORY, files_of(LLAMA_70B, weights))
    checkpoint = await facts(hub)
    assert checkpoint.tensors is not None
    assert checkpoint.tensors.total_bytes == pytest.approx(141.1e9, rel=0.001)


async def test_the_files_of_an_index_are_read_together() -> None:
    hub = FakeHub()
    shapes = target_shapes(TINY_TARGET)
    names = sorted(shapes)
    parts = {"model-1.safetensors": names[:20], "model-2.safetensors": names[20:]}
    index = {"metadata": {"total_size": 7}, "weight_map": {name: file for file, own in parts.items() for name in own}}
    files = {file: safetensors({name: shapes[name] for name in own}) for file, own in parts.items()}
    hub.add(
        REPOSITORY, files_of(TINY_TARGET, None) | files | {"model.safetensors.index.json": json.dumps(index).encode()}
    )
    checkpoint = await facts(hub)
    assert checkpoint.tensors is not None
    assert checkpoint.tensors.total_bytes == 1_837_312


async def test_a_token_goes_to_the_hub_and_not_to_its_storage() -> None:
    storage, hub = whole_hub(), whole_hub(token="secret")  # noqa: S106 - a test's
    async with storage.serve():
        hub.storage = storage.url.replace("127.0.0.1", "localhost")
        assert (await facts(hub, token="secret")).tensors is not None  # noqa: S106 - a test's
    assert all(has_token for *_, has_token in hub.requests)
    assert [has_token for *_, has_token in storage.requests] == [False]


async def test_pickle_is_told_by_its_name_and_never_asked_for() -> None:
    hub = FakeHub()
    hub.add(REPOSITORY, files_of(TINY_DRAFTER, None) | {"pytorch_model.bin": bytes(5000)})
    checkpoint = await facts(hub)
    assert (checkpoint.is_pickle, checkpoint.file_bytes, checkpoint.tensors) == (True, 5000, None)
    assert {method for method, path, *_ in hub.requests if path.endswith(".bin")} == {"HEAD"}


async def test_without_a_token_a_private_repository_is_refused() -> None:
    answer = await problem(whole_hub(token="secret"))  # noqa: S106 - a test's
    assert answer.cause is Cause.REFUSED
    for words in ("hf://org/target@main", "401", "without a token"):
        assert words in answer.message


async def test_a_wrong_token_is_told() -> None:
    answer = await problem(whole_hub(token="secret"), token="wrong")  # noqa: S106 - a test's
    assert "with the token given" in answer.message
    assert "wrong" not in answer.message


async def test_a_missing_revision_is_told() -> None:
    answer = await problem(whole_hub(), revision="v2")
    assert answer.cause is Cause.MISSING
    assert "hf://org/target@v2" in answer.message
    assert "no such revision" in answer.message


async def test_a_revision_with_a_slash_is_asked_for_as_one_part() -> None:
    hub = FakeHub()
    hub.add(REPOSITORY, files_of(TINY_TARGET, None), revision="refs/pr/1")
    assert (await facts(hub, revision="refs/pr/1")).source == "hf://org/target@refs/pr/1"
    assert hub.requests[0][1].endswith("/resolve/refs%2Fpr%2F1/config.json")


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_a_hub_in_trouble_is_unreachable(status: int) -> None:
    answer = await problem(whole_hub(answers=status))
    assert answer.cause is Cause.UNREACHABLE
    assert str(status) in answer.message


async def test_nobody_there_is_unreachable() -> None:
    place = Place(repository=REPOSITORY, revision="main", endpoint="http://127.0.0.1:9")
    answer = await read_checkpoint(place, deadline=5)
    assert isinstance(answer, Unread)
    assert answer.cause is Cause.UNREACHABLE
    assert "http://127.0.0.1:9" in answer.message


async def test_a_hub_that_hangs_is_left_at_the_deadline() -> None:
    answer = await problem(whole_hub(hangs_at="config.json"), deadline=0.3)
    assert answer.cause is Cause.UNREACHABLE
    assert "0.3 s" in answer.message


async def test_headers_that_hang_leave_what_config_json_says() -> None:
    checkpoint = await facts(whole_hub(hangs_at="model.safetensors"), deadline=0.5)
    assert (checkpoint.hidden_size, checkpoint.tensors) == (128, None)


async def test_a_tokenizer_that_hangs_leaves_what_the_headers_say() -> None:
    hub = whole_hub(hangs_at="tokenizer.json")
    checkpoint = await facts(hub, deadline=0.6)
    assert checkpoint.tensors is not None
    assert checkpoint.tokenizer is None


async def test_a_tokenizer_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specmodel.preflight.hub.TOKENIZER_MAXIMUM", 100)
    hub = whole_hub()
    for size, is_read in ((100, True), (101, False)):
        hub.files[f"{REPOSITORY}/main/tokenizer.json"] = b" " * size
        assert ((await facts(hub)).tokenizer is not None) is is_read


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.json", b"<html>", "config.json is no JSON"),
        ("config.json", b" " * (CONFIG_MAXIMUM + 1), "larger than"),
        ("model.safetensors", b"\xff" * 100, "announces a header"),
        ("model.safetensors.index.json", b"[]", "names no weight files"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../../etc/passwd"}}', "names no weight files"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "http://elsewhere/x.safetensors"}}', "names no weight"),
    ],
)
async def test_what_a_hostile_repository_holds_is_refused(file: str, text: bytes, words: str) -> None:
    hub = whole_hub()
    hub.files[f"{REPOSITORY}/main/{file}"] = text
    answer = await problem(hub)
    assert answer.cause is Cause.BROKEN
    assert words in answer.message


async def test_the_engines_variables_mean_here_what_they_mean_there(tmp_path: Path) -> None:
    offline = await read("hf://org/target", "main", tmp_path, {"HF_HUB_OFFLINE": "1"})
    assert isinstance(offline, Unread)
    assert "HF_HUB_OFFLINE" in offline.message
    hub = whole_hub(token="secret")  # noqa: S106 - a test's
    async with hub.serve():
        environment = {"HF_ENDPOINT": f"{hub.url}/", "HF_TOKEN": "secret"}
        assert isinstance(await read("hf://org/target", "main", tmp_path, environment), Checkpoint)


async def test_a_claim_is_read_from_its_mount_and_called_by_its_uri(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "models" / "a" / "b", TINY_TARGET)
    answer = await read("pvc://models/a/b", "main", tmp_path, {})
    assert isinstance(answer, Checkpoint)
    assert answer.source == "pvc://models/a/b"
    missing = await read("pvc://models/a/c", "main", tmp_path, {})
    assert isinstance(missing, Unread)
    assert (missing.cause, missing.message[:18]) == (Cause.MISSING, "pvc://models/a/c: ")


#: Names are looked up without end, as where a firewall drops every packet.
LOST = """
import runpy, socket, sys, time
from specmodel.preflight import hub
socket.getaddrinfo = lambda *_, **__: time.sleep(600)
hub.read_checkpoint.__kwdefaults__["deadline"] = 0.5
sys.argv = ["preflight", "--model", "hf://org/target"]
runpy.run_module("specmodel.preflight", run_name="__main__", alter_sys=True)
"""


def test_the_job_ends_where_every_packet_is_lost() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    operator = str(Path(__file__).parents[2] / "operator")
    done = subprocess.run(
        [sys.executable, "-c", LOST],
        env=environment | {"PYTHONPATH": operator},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    target = reading_from_json(done.stdout.strip()).target
    assert isinstance(target, Unread)
    assert target.cause is Cause.UNREACHABLE


def test_the_job_writes_one_line_that_the_operator_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "w" / "t", TINY_TARGET, target_shapes(TINY_TARGET))
    write_checkpoint(tmp_path / "w" / "d", TINY_DRAFTER, drafter_shapes(TINY_DRAFTER))
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(job, "TERMINATION_MESSAGE", log)
    arguments = ["--model", "pvc://w/t", "--drafter", "pvc://w/d", "--weights", str(tmp_path)]
    assert job.main(arguments) == os.EX_OK
    assert log.read_text() == capsys.readouterr().out.strip()
    reading = reading_from_json(log.read_text())
    assert isinstance(reading.target, Checkpoint)
    assert isinstance(reading.drafter, Checkpoint)
    assert len(log.read_text()) < 2000
