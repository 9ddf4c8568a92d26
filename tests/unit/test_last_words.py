"""Why an engine failed, from what it printed. The logs are whole ones of real engines, paths aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from specmodel.domain.last_words import QUOTED_MAXIMUM, explain

LOGS = Path(__file__).parents[1] / "data" / "engine-logs"


def test_a_real_engine_that_nccl_kept_from_starting_is_explained_though_its_last_line_says_nothing() -> None:
    printed = (LOGS / "nccl-2-gpus.log").read_text(encoding="utf-8")
    assert "See root cause above" in printed.splitlines()[-1]
    words = explain(printed)
    assert words.startswith("NCCL could not connect its GPUs")
    assert words.endswith("Its words: RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)")


def test_a_real_engine_without_shared_memory_is_explained() -> None:
    words = explain((LOGS / "shared-memory-2-parts.log").read_text(encoding="utf-8"))
    assert words.startswith("Its processes ran out of shared memory (/dev/shm)")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory is too small"),
        ("ValueError: No available memory for the cache blocks.", "Too little GPU memory is left for the KV cache"),
        (
            "ValueError: Total number of attention heads (30) must be divisible by tensor parallel size (4).",
            "heads cannot be divided",
        ),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "refuses the weights"),
        ("OSError: [Errno 98] Address already in use", "Another process listens"),
        ("vllm serve: error: unrecognized arguments: --speculative-model", "It knows no such argument"),
    ],
)
def test_what_is_known_is_explained_and_quoted(line: str, said: str) -> None:
    printed = (
        f"(EngineCore pid=7) ERROR 11-30 10:00:00 [core.py:1] {line}\nRuntimeError: Engine core initialization failed."
    )
    words = explain(printed)
    assert said in words
    assert words.endswith(f"Its words: {line}")


def test_what_is_not_known_is_quoted_by_its_root_and_not_by_its_echo() -> None:
    printed = (
        "(EngineCore pid=7) ERROR 11-30 10:00:00 [core.py:1] KeyError: 'layers.7.weight'\n"
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert explain(printed) == "KeyError: 'layers.7.weight'"


def test_an_engine_that_printed_nothing_is_given_no_words_and_one_that_printed_too_much_is_cut() -> None:
    assert explain(" \n\n") == ""
    assert len(explain("ValueError: " + "x" * 5000)) == QUOTED_MAXIMUM
