"""Faults on demand are read exactly as documented."""

from __future__ import annotations

import pytest

from specmodel_replay import faults


def test_a_drafters_own_fault_counts_for_that_drafter_alone() -> None:
    text = "slow:0.1; example/worse=slow:0.2"
    assert faults.parse(text, "example/worse").slowdown == 0.2
    assert faults.parse(text, "example/other").slowdown == 0.1
    assert faults.parse(text).slowdown == 0.1


@pytest.mark.parametrize("text", ["slow", "slow:0", "example/worse=slwo:2", "nonsense"])
def test_what_cannot_be_understood_is_refused_whichever_drafter_is_configured(text: str) -> None:
    with pytest.raises(faults.FaultError, match="SPECMODEL_REPLAY_FAULT"):
        faults.parse(text, "example/other")
