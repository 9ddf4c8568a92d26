"""`specmodel preflight` tells on any machine what the operator would tell in a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from specmodel.cli.main import main
from tests.support.checkpoints import (
    LLAMA_8B,
    LLAMA_8B_DRAFTER,
    LLAMA_70B,
    TINY_DRAFTER,
    TINY_TARGET,
    Config,
    drafter_shapes,
    target_shapes,
    write_checkpoint,
)


def asked(folder: Path, target: Config | None, other: Config | None, *more: str, **spec: Any) -> list[str]:
    manifest = {
        "apiVersion": "specmodel.dev/v1alpha1",
        "kind": "SpeculativeModel",
        "metadata": {"name": "agent"},
        "spec": {"model": {"uri": "pvc://models/target"}, "drafter": {"uri": "pvc://models/drafter"}} | spec,
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    arguments = ["preflight", "-f", str(folder / "model.yaml"), *more]
    if target is not None:
        shapes = target_shapes(target) if target is TINY_TARGET else None
        arguments += ["--target", str(write_checkpoint(folder / "target", target, shapes))]
    if other is not None:
        shapes = drafter_shapes(other) if other["hidden_size"] == 128 else None
        arguments += ["--drafter", str(write_checkpoint(folder / "drafter", other, shapes))]
    return arguments


def test_a_pair_that_fits_is_told_with_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(tmp_path, LLAMA_8B, LLAMA_8B_DRAFTER, "-o", "json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["drafterCompatible"]["status"] == "True"
    first = answer["candidates"][0]
    assert (first["candidate"], first["mayStart"]) == ("1 GPU no drafter", True)
    assert first["memory"]["weightsGiB"] == pytest.approx(14.96, abs=0.01)
    assert first["memory"]["products"]["NVIDIA-H100-80GB-HBM3"]["tokens"] > 400_000


def test_the_room_is_told_in_sequences_of_so_many_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"hardware": {"gpusPerReplica": [1], "gpuProducts": ["NVIDIA-H100-80GB-HBM3"]}, "drafter": None}
    assert main(asked(tmp_path, LLAMA_8B, None, **spec)) == 0
    assert "3.6 of 131,072 tokens (NVIDIA-H100-80GB-HBM3)" in capsys.readouterr().out
    assert main(asked(tmp_path, TINY_TARGET, None, **spec)) == 0
    assert re.search(r"\d,\d{3}(\.\d)? of [\d,]+ tokens \(", capsys.readouterr().out)


def test_a_drafter_that_does_not_fit_ends_with_3_and_both_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked(tmp_path, TINY_TARGET, TINY_DRAFTER | {"hidden_size": 256})) == 3
    text = capsys.readouterr().out
    assert "DrafterCompatible=False Incompatible" in text
    assert "drafter hidden_size 256, target hidden_size 128" in text
    assert "1 GPU no drafter" in text


def test_what_is_too_large_ends_with_3_and_the_arithmetic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"hardware": {"gpusPerReplica": [1], "gpuProducts": ["NVIDIA-H100-80GB-HBM3"]}, "drafter": None}
    assert main(asked(tmp_path, LLAMA_70B, None, **spec)) == 3
    assert "gives 73.2 GiB (79.6 x 0.92)" in capsys.readouterr().out


def test_a_volume_of_a_cluster_ends_with_4_and_says_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked(tmp_path, TINY_TARGET, None)) == 4
    assert "--drafter DIR" in capsys.readouterr().out


def test_a_hub_that_cannot_be_reached_ends_with_4_and_says_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    model = {"model": {"uri": "hf://example/target"}, "drafter": {"uri": "hf://example/drafter"}}
    assert main(asked(tmp_path, TINY_TARGET, None, **model)) == 4
    text = capsys.readouterr().out
    assert "cannot be reached" in text
    assert "name a folder that holds the same files with --drafter DIR" in text


def test_a_folder_that_is_not_there_is_no_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*asked(tmp_path, TINY_TARGET, None), "--drafter", str(tmp_path / "nowhere")]
    assert main(arguments) == 3
    assert "DrafterNotFound" in capsys.readouterr().out


def test_it_prints_in_the_terminals_encoding_and_says_when_nobody_reads(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from specmodel.cli.main import main; raise SystemExit(main())"]
    program += asked(tmp_path, TINY_TARGET, TINY_DRAFTER)
    narrow = subprocess.run(
        program, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )
    assert (narrow.returncode, narrow.stderr) == (0, "")
    assert "1 GPU \\u03b3=3" in narrow.stdout
    with Path("/dev/full").open("w") as full:
        lost = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert lost.returncode == 2
    assert lost.stderr == "specmodel preflight: stdout: cannot be written: No space left on device\n"


def test_a_manifest_that_is_wrong_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.yaml").write_text("kind: Pod")
    assert main(["preflight", "-f", str(tmp_path / "model.yaml")]) == 2
    assert "must be SpeculativeModel" in capsys.readouterr().err
