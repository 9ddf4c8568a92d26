"""The checkpoints' files are read before a GPU is taken; what cannot work takes none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from specmodel.api.conditions import Condition, ConditionStatus, ConditionType
from specmodel.domain.checkpoint import Checkpoint, read_config
from specmodel.domain.preflight import Cause, Reading, Unread
from specmodel.reconcile.action import Action, Apply, RefusedError
from tests.support.checkpoints import LLAMA_8B, LLAMA_8B_DRAFTER, LLAMA_70B, Config
from tests.support.rehearsal import Rehearsal, in_any_order, model_of, rehearse
from tests.support.scripted_cluster import KilledError

FAIL = {"drafter": {"onIncompatible": "Fail"}}
#: Two candidates, one GPU.
SMALL: dict[str, Any] = {"hardware": {"gpusPerReplica": [1]}, "engine": {"extraArgs": ["--max-model-len=4096"]}}


def checkpoint(config: Config, name: str = "hf://org/one@main") -> Checkpoint:
    return read_config(config, source=name)


def answers(target: Checkpoint | Unread, drafter: Checkpoint | Unread | None = None) -> Callable[[list[str]], str]:
    """Return a script of preflight Jobs: they answer with these."""

    def answer(arguments: list[str]) -> str:
        return Reading(target=target, drafter=drafter if "--drafter" in arguments else None).to_json()

    return answer


PAIR = answers(checkpoint(LLAMA_8B), checkpoint(LLAMA_8B_DRAFTER))
WRONG = answers(checkpoint(LLAMA_8B), checkpoint(LLAMA_8B_DRAFTER | {"hidden_size": 5120}))
REFUSED = Unread(cause=Cause.REFUSED, message="hf://org/one@main may not be read: the hub answers 401 without a token")


def drafter_condition(rehearsal: Rehearsal) -> Condition:
    found: Condition = rehearsal.condition(ConditionType.DRAFTER_COMPATIBLE)
    return found


def reasons(rehearsal: Rehearsal) -> set[str]:
    assert rehearsal.cluster.model is not None
    return {candidate.reason for candidate in rehearsal.cluster.model.status.candidates}


def jobs(rehearsal: Rehearsal) -> list[str]:
    return [name for kind, name in rehearsal.cluster.objects if kind == "Job"]


@in_any_order
def test_a_pair_that_fits_is_measured_after_it_was_read_once(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=PAIR)
    rehearsal.run()
    assert rehearsal.serving() == (1, 3, "None")
    assert (drafter_condition(rehearsal).status, drafter_condition(rehearsal).reason) == (
        ConditionStatus.TRUE,
        "Compatible",
    )
    assert len(rehearsal.cluster.preflights) == 1
    assert jobs(rehearsal) == []
    return rehearsal


@in_any_order
def test_no_gpu_is_taken_before_the_answer(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=lambda _: None)
    rehearsal.run(until=lambda: "Preflight" in rehearsal.status_line())
    for _ in range(60):
        rehearsal.cluster.tick()
    assert rehearsal.cluster.servers() == []
    assert "hf://example/eagle3-8b" in rehearsal.condition(ConditionType.PROGRESSING).message
    return rehearsal


@in_any_order
def test_a_job_that_never_answers_holds_nothing_up_for_ever(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=lambda _: None)
    rehearsal.run()
    assert rehearsal.serving() == (1, 3, "None")
    found = drafter_condition(rehearsal)
    assert (found.status, found.reason) == (ConditionStatus.UNKNOWN, "NotRead")
    assert "did not answer in 150 s" in found.message
    return rehearsal


@pytest.mark.parametrize("answer", ["", "no JSON", '{"target": 1}', "[" * 4000, "x" * 5000])
def test_an_answer_that_is_none_counts_as_not_read(answer: str) -> None:
    rehearsal = rehearse(model_of(SMALL), checkpoints=lambda _: answer)
    rehearsal.run(until=lambda: bool(rehearsal.cluster.servers()))
    assert drafter_condition(rehearsal).reason == "NotRead"
    assert "answered with something else" in drafter_condition(rehearsal).message


@in_any_order
def test_a_drafter_that_does_not_fit_is_left_out_and_the_baseline_serves(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=WRONG)
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    assert rehearsal.serving() == (1, 0, "None")
    found = drafter_condition(rehearsal)
    assert (found.status, found.reason) == (ConditionStatus.FALSE, "Incompatible")
    assert "drafter hidden_size 5120, target hidden_size 4096" in found.message
    assert "Without the drafter" in rehearsal.condition(ConditionType.READY).message
    assert "DrafterIncompatible" in reasons(rehearsal)
    assert not any("--speculative-config" in str(arguments) for arguments in rehearsal.cluster.written)
    return rehearsal


@in_any_order
def test_what_serves_with_a_drafter_stays_when_the_next_one_does_not_fit(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=PAIR)
    rehearsal.run()
    before = rehearsal.cluster.servers()
    rehearsal.cluster.checkpoints = WRONG
    rehearsal.cluster.edit(model_of(SMALL | {"drafter": {"uri": "hf://example/other"}}))
    rehearsal.run()
    assert rehearsal.cluster.servers() == before
    ready = rehearsal.condition(ConditionType.READY)
    assert ready.status is ConditionStatus.TRUE
    assert "Without the drafter that the spec names" in ready.message
    return rehearsal


@in_any_order
def test_with_fail_nothing_is_started_and_the_model_is_stalled(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL | FAIL), seed=seed, checkpoints=WRONG)
    rehearsal.run()
    stalled = rehearsal.condition(ConditionType.STALLED)
    assert (stalled.status, stalled.reason) == (ConditionStatus.TRUE, "DrafterIncompatible")
    assert "5120" in stalled.message
    assert rehearsal.cluster.servers() == []
    return rehearsal


@in_any_order
def test_with_fail_what_serves_goes_on_serving(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=PAIR)
    rehearsal.run()
    before = rehearsal.cluster.servers()
    rehearsal.cluster.checkpoints = WRONG
    rehearsal.cluster.edit(model_of(SMALL | {"drafter": {"uri": "hf://example/other", "onIncompatible": "Fail"}}))
    rehearsal.run()
    assert rehearsal.condition(ConditionType.STALLED).reason == "DrafterIncompatible"
    assert rehearsal.cluster.servers() == before
    assert rehearsal.cluster.endpoints("agent")
    assert rehearsal.cluster.outage_seconds == 0
    rehearsal.cluster.edit(model_of(SMALL))
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    return rehearsal


@in_any_order
def test_a_drafter_that_does_not_fit_two_gpus_is_tried_with_one(seed: int | None) -> Rehearsal:
    drafter = checkpoint(LLAMA_8B_DRAFTER | {"num_attention_heads": 31, "num_key_value_heads": 31})
    args = {"engine": {"extraArgs": ["--max-model-len=4096"]}}
    rehearsal = rehearse(model_of(args), seed=seed, checkpoints=answers(checkpoint(LLAMA_8B), drafter))
    rehearsal.run()
    assert drafter_condition(rehearsal).status is ConditionStatus.TRUE
    assert "not divisible by gpusPerReplica 2" in drafter_condition(rehearsal).message
    assert rehearsal.serving() == (1, 3, "None")
    assert "DrafterIncompatible" in reasons(rehearsal)
    return rehearsal


@in_any_order
def test_a_model_that_fits_no_single_gpu_is_tried_with_two(seed: int | None) -> Rehearsal:
    spec = {"drafter": None, "engine": {"extraArgs": ["--max-model-len=8192"]}}
    config = LLAMA_70B | {"num_hidden_layers": 48}
    rehearsal = rehearse(model_of(spec), seed=seed, checkpoints=answers(checkpoint(config)))
    rehearsal.run()
    assert rehearsal.serving() == (2, 0, "None"), rehearsal.text()
    assert "DoesNotFit" in reasons(rehearsal)
    assert not any("--tensor-parallel-size 1" in line for line in rehearsal.cluster.written)
    return rehearsal


@in_any_order
def test_a_model_that_fits_nowhere_is_stalled_with_the_arithmetic(seed: int | None) -> Rehearsal:
    config = LLAMA_70B | {"num_hidden_layers": 200}
    rehearsal = rehearse(model_of({}), seed=seed, checkpoints=answers(checkpoint(config), checkpoint(LLAMA_8B_DRAFTER)))
    rehearsal.run()
    stalled = rehearsal.condition(ConditionType.STALLED)
    assert stalled.status is ConditionStatus.TRUE
    assert rehearsal.cluster.servers() == []
    assert "GiB" in stalled.message
    return rehearsal


@in_any_order
def test_a_model_that_may_not_be_read_takes_no_gpu_until_it_may(seed: int | None) -> Rehearsal:
    secret = {"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}}
    rehearsal = rehearse(model_of(SMALL | secret), seed=seed, checkpoints=answers(REFUSED))
    rehearsal.run(until=lambda: "ModelNotFound" in rehearsal.status_line())
    assert rehearsal.cluster.servers() == []
    message = rehearsal.condition(ConditionType.STALLED).message
    assert "401" in message
    assert "key token of Secret hub" in message
    rehearsal.cluster.checkpoints = PAIR
    rehearsal.run(until=rehearsal.is_ready)
    assert rehearsal.serving() == (1, 3, "None")
    assert len(rehearsal.cluster.preflights) == 2
    return rehearsal


@in_any_order
def test_a_drafter_that_is_not_there_is_left_out_until_it_is(seed: int | None) -> Rehearsal:
    missing = Unread(cause=Cause.MISSING, message="hf://example/eagle3-8b@main: the hub has no such repository")
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=answers(checkpoint(LLAMA_8B), missing))
    rehearsal.run(until=rehearsal.is_ready)
    assert rehearsal.serving() == (1, 0, "None")
    assert drafter_condition(rehearsal).reason == "DrafterNotFound"
    rehearsal.cluster.checkpoints = PAIR
    rehearsal.run()
    assert rehearsal.serving() == (1, 3, "None")
    assert drafter_condition(rehearsal).reason == "Compatible"
    return rehearsal


@in_any_order
def test_a_model_without_drafter_says_so(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL | {"drafter": None}), seed=seed, checkpoints=PAIR)
    rehearsal.run()
    found = drafter_condition(rehearsal)
    assert (found.status, found.reason) == (ConditionStatus.UNKNOWN, "NoDrafter")
    return rehearsal


@in_any_order
def test_what_was_measured_is_believed_against_any_theory(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed)
    rehearsal.run()
    assert rehearsal.serving() == (1, 3, "None")
    rehearsal.cluster.checkpoints = WRONG
    assert rehearsal.cluster.model is not None
    status = rehearsal.cluster.model.status.model_copy(update={"preflight": None})
    rehearsal.cluster.model = rehearsal.cluster.model.model_copy(update={"status": status})
    rehearsal.run()
    assert rehearsal.serving() == (1, 3, "None")
    assert rehearsal.is_ready()
    return rehearsal


@in_any_order
def test_an_answer_that_someone_breaks_in_the_status_is_read_again(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=PAIR)
    rehearsal.run()
    assert rehearsal.cluster.model is not None
    kept = rehearsal.cluster.model.status.preflight
    assert kept is not None
    broken = kept.model_copy(update={"result": "broken"})
    status = rehearsal.cluster.model.status.model_copy(update={"preflight": broken})
    rehearsal.cluster.edit(rehearsal.cluster.model)
    rehearsal.cluster.model = rehearsal.cluster.model.model_copy(update={"status": status})
    rehearsal.run()
    assert rehearsal.cluster.model.status.preflight is not None
    assert rehearsal.cluster.model.status.preflight.result == kept.result
    assert len(rehearsal.cluster.preflights) == 2
    assert rehearsal.is_ready()
    return rehearsal


@in_any_order
def test_another_drafter_is_read_and_another_sla_is_not(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL), seed=seed, checkpoints=PAIR)
    rehearsal.run()
    rehearsal.cluster.edit(model_of(SMALL | {"sla": {"confidencePercent": 0, "maxErrorRatePercent": "1"}}))
    rehearsal.run()
    assert len(rehearsal.cluster.preflights) == 1
    rehearsal.cluster.edit(model_of(SMALL | {"drafter": {"uri": "hf://example/another"}}))
    rehearsal.run()
    assert len(rehearsal.cluster.preflights) == 2
    assert jobs(rehearsal) == []
    return rehearsal


@in_any_order
def test_a_suspended_model_is_not_read(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of(SMALL | {"suspend": True}), seed=seed, checkpoints=PAIR)
    rehearsal.run()
    assert rehearsal.cluster.written == []
    return rehearsal


def test_a_job_of_somebody_else_is_not_heard() -> None:
    rehearsal = rehearse(model_of(SMALL), checkpoints=lambda _: None)
    rehearsal.run(until=lambda: bool(rehearsal.cluster.preflights))
    job = next(value for (kind, _), value in rehearsal.cluster.objects.items() if kind == "Job")
    forged = replace(checkpoint(LLAMA_8B), hidden_size=1)
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "forged",
            "uid": "uid-forged",
            "labels": dict(job["metadata"]["labels"]),
            "ownerReferences": [{"uid": "another", "controller": True}],
        },
        "spec": {"containers": [{"name": "x"}], "nodeName": "node-a"},
        "status": {
            "phase": "Succeeded",
            "containerStatuses": [
                {"name": "x", "state": {"terminated": {"exitCode": 0, "message": Reading(target=forged).to_json()}}}
            ],
        },
        "simulated": {"owner": "another", "exit_seconds": 0},
    }
    rehearsal.cluster.objects[("Pod", "forged")] = pod
    for _ in range(30):
        rehearsal.cluster.tick()
    rehearsal.run(until=lambda: "Preflight" in rehearsal.status_line())
    assert rehearsal.cluster.servers() == []


def test_why_the_jobs_pod_waits_is_said_while_it_does() -> None:
    rehearsal = rehearse(model_of(SMALL), checkpoints=lambda _: None)
    rehearsal.run(until=lambda: bool(rehearsal.cluster.preflights))
    pod = next(pod for pod in rehearsal.cluster.pods() if "specmodel.dev/preflight" in pod["metadata"]["labels"])
    words = 'persistentvolumeclaim "models" not found'
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    pod["status"]["conditions"] = [unscheduled]
    rehearsal.run(until=lambda: words in rehearsal.status_line())
    assert rehearsal.cluster.servers() == []


def actions_of_a_life(checkpoints: Callable[[list[str]], str]) -> int:
    count = 0

    def one_more(_: Action) -> None:
        nonlocal count
        count += 1

    rehearse(model_of(SMALL), checkpoints=checkpoints, after_action=one_more).run()
    return count


@pytest.mark.parametrize("moment", ["before_action", "after_action"])
@pytest.mark.parametrize("checkpoints", [PAIR, WRONG], ids=["compatible", "incompatible"])
def test_killing_the_operator_at_every_action_ends_in_the_same_state(
    moment: str, checkpoints: Callable[[list[str]], str]
) -> None:
    def the_end(rehearsal: Rehearsal) -> tuple[object, ...]:
        objects = {(k, n) for k, n in rehearsal.cluster.objects if k not in ("Pod", "EndpointSlice")}
        return rehearsal.is_ready(), rehearsal.serving(), sorted(objects), drafter_condition(rehearsal).message

    untouched = rehearse(model_of(SMALL), checkpoints=checkpoints)
    untouched.run()
    for number in range(actions_of_a_life(checkpoints)):
        seen = 0

        def kill(_: Action, number: int = number) -> None:
            nonlocal seen
            seen += 1
            if seen == number + 1:
                raise KilledError

        rehearsal = rehearse(model_of(SMALL), checkpoints=checkpoints, **{moment: kill})
        rehearsal.run()
        assert rehearsal.restarts == 1
        assert the_end(rehearsal) == the_end(untouched), f"killed at action {number}\n{rehearsal.text()}"
        assert len(rehearsal.cluster.preflights) == 1


def test_a_refused_job_is_said_in_the_servers_words_and_tried_again() -> None:
    refusals = 2

    def refuse(action: Action) -> None:
        nonlocal refusals
        if refusals and isinstance(action, Apply) and action.manifest["kind"] == "Job":
            refusals -= 1
            raise RefusedError("Rejected", "a policy wants a label")

    rehearsal = rehearse(model_of(SMALL), checkpoints=PAIR, before_action=refuse)
    rehearsal.run(until=rehearsal.is_ready, limit=timedelta(hours=1))
    assert rehearsal.serving() == (1, 3, "None")
    assert "a policy wants a label" in rehearsal.text()
