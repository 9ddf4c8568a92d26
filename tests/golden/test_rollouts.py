"""Whole rollouts as a person would watch them: time, what was done and why, and what the status said."""

from __future__ import annotations

from typing import Any

from specmodel.domain.checkpoint import read_config
from specmodel.domain.preflight import Reading
from specmodel.reconcile.action import Action, Ask
from tests.golden.texts import assert_golden
from tests.support.checkpoints import LLAMA_8B, LLAMA_8B_DRAFTER
from tests.support.rehearsal import Rehearsal, model_of, rehearse, within
from tests.support.scripted_cluster import Engine, KilledError


def told(rehearsal: Rehearsal) -> str:
    return rehearsal.text() + "\nEvents\n" + "\n".join(f"  {event}" for event in rehearsal.cluster.events) + "\n"


def edit(rehearsal: Rehearsal, spec: dict[str, Any], what: str) -> None:
    rehearsal.history.append(f"------ {what}")
    rehearsal.cluster.edit(model_of(spec))
    rehearsal.run()


def test_an_install_then_a_tighter_sla() -> None:
    rehearsal = rehearse(model_of({}))
    rehearsal.run()
    edit(rehearsal, within(1000), "the SLA becomes P99 <= 1000 ms")
    assert_golden("install-then-tighter-sla.txt", told(rehearsal))


def test_a_challenger_that_waits_for_gpus() -> None:
    rehearsal = rehearse(model_of({"hardware": {"gpusPerReplica": [1]}}), nodes={"node-a": 2})
    rehearsal.run()
    edit(rehearsal, within(1000), "the SLA becomes P99 <= 1000 ms, and 2 GPUs per replica are allowed")
    rehearsal.history.append("------ a node with 2 GPUs is added")
    rehearsal.cluster.nodes["node-b"] = 2
    rehearsal.run()
    assert_golden("waiting-for-gpus.txt", told(rehearsal))


def test_a_drafter_that_does_not_fit_then_one_that_does() -> None:
    def checkpoints(arguments: list[str]) -> str:
        drafter = LLAMA_8B_DRAFTER | ({"hidden_size": 5120} if "wide" in " ".join(arguments) else {})
        read = (read_config(config, source="hf://example/files@main") for config in (LLAMA_8B, drafter))
        return Reading(target=next(read), drafter=next(read)).to_json()

    given: dict[str, Any] = {"hardware": {"gpusPerReplica": [1]}, "workload": {"concurrency": [1]}}
    wide = {"uri": "hf://example/wide-eagle3", "onIncompatible": "Fail"}
    rehearsal = rehearse(model_of(given | {"drafter": wide}), checkpoints=checkpoints)
    rehearsal.run()
    edit(rehearsal, given | {"drafter": wide | {"onIncompatible": "Baseline"}}, "onIncompatible becomes Baseline")
    edit(rehearsal, given, "the drafter becomes one that fits")
    assert_golden("drafter-that-does-not-fit.txt", told(rehearsal))


def test_a_broken_drafter() -> None:
    def engine(arguments: list[str]) -> Engine:
        return Engine(dies_at_start="RuntimeError: no such head" if "broken" in " ".join(arguments) else "")

    rehearsal = rehearse(model_of({"hardware": {"gpusPerReplica": [1]}}), engine=engine)
    rehearsal.run()
    drafter = {"drafter": {"uri": "hf://example/broken-eagle3"}, "hardware": {"gpusPerReplica": [1]}}
    edit(rehearsal, drafter, "the drafter becomes one that cannot be loaded")
    assert_golden("broken-drafter.txt", told(rehearsal))


def test_an_operator_that_is_killed_in_the_middle_of_a_promotion() -> None:
    killed: list[Action] = []

    def kill(action: Action) -> None:
        if isinstance(action, Ask) and not killed:
            killed.append(action)
            raise KilledError

    rehearsal = rehearse(model_of({"hardware": {"gpusPerReplica": [1]}}), after_action=kill)
    rehearsal.run()
    assert_golden("killed-while-promoting.txt", told(rehearsal))
