"""The operator is killed, the cluster has faults, people pull plugs: the end is always the same."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from specmodel.reconcile.action import Action, RefusedError, TransientError
from tests.support.rehearsal import Rehearsal, in_any_order, model_of, rehearse, within
from tests.support.scripted_cluster import KilledError


def whole_life(rehearsal: Rehearsal) -> Rehearsal:
    """Install, then tighten the SLA, then loosen it."""
    rehearsal.run()
    for spec in (within(1000), {}):
        rehearsal.cluster.edit(model_of(spec))
        rehearsal.run()
    return rehearsal


def the_end(rehearsal: Rehearsal) -> tuple[object, ...]:
    """Return what must be the same however one got there: what serves, and what exists."""
    objects = {(k, n) for k, n in rehearsal.cluster.objects if k not in ("Pod", "EndpointSlice")}
    return rehearsal.is_ready(), rehearsal.serving(), sorted(objects), rehearsal.cluster.outage_seconds


#: Two candidates are enough to be killed over: one GPU serves first, then two.
SMALL: dict[str, Any] = {"drafter": None, **within(2800)}


def small_life(rehearsal: Rehearsal) -> Rehearsal:
    """Install with two candidates, then tighten the SLA."""
    rehearsal.run()
    rehearsal.cluster.edit(model_of(SMALL | within(1700)))
    rehearsal.run()
    return rehearsal


def actions_of_a_small_life() -> int:
    count = 0

    def one_more(_: Action) -> None:
        nonlocal count
        count += 1

    small_life(rehearse(model_of(SMALL), after_action=one_more))
    return count


@pytest.mark.parametrize("moment", ["before_action", "after_action"])
def test_killing_the_operator_at_every_single_action_ends_in_the_same_state(moment: str) -> None:
    expected = the_end(small_life(rehearse(model_of(SMALL))))
    assert expected[:2] == (True, (2, 0, "None"))
    for number in range(actions_of_a_small_life()):
        seen = 0

        def kill(_: Action, number: int = number) -> None:
            nonlocal seen
            seen += 1
            if seen == number + 1:
                raise KilledError

        rehearsal = small_life(rehearse(model_of(SMALL), **{moment: kill}))
        assert rehearsal.restarts == 1
        assert the_end(rehearsal) == expected, f"killed at action {number}\n{rehearsal.text()}"


@pytest.mark.parametrize("seed", range(6))
def test_seeded_chaos_ends_in_the_same_state(seed: int) -> None:
    expected = the_end(whole_life(rehearse(model_of({}))))
    dice = random.Random(seed)  # noqa: S311 - a script, no secret

    def accident(_: Action) -> None:
        roll = dice.random()
        if roll < 0.05:
            raise KilledError
        if roll < 0.15:
            raise TransientError("the API server is busy", after=timedelta(seconds=dice.randint(1, 20)))
        if roll < 0.17:
            raise RefusedError("Rejected", "a policy is in the way for a moment")

    rehearsal = whole_life(rehearse(model_of({}), before_action=accident, seed=seed))
    assert the_end(rehearsal) == expected, rehearsal.text()


@in_any_order
def test_a_server_that_someone_deletes_in_the_middle_of_measuring_comes_back(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run(until=lambda: "cell 2 of 3" in rehearsal.status_line())
    for name in rehearsal.cluster.servers():
        rehearsal.cluster.objects[("Deployment", name)]["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    assert rehearsal.serving() == (1, 3, "None")
    return rehearsal


@in_any_order
def test_the_stable_service_that_someone_deletes_comes_back(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run()
    before = rehearsal.cluster.servers()
    del rehearsal.cluster.objects[("Service", "agent")]
    rehearsal.run()
    assert rehearsal.is_ready()
    assert rehearsal.cluster.servers() == before
    return rehearsal


@pytest.mark.parametrize("spec", [within(2600), within(1)], ids=["eligible", "nobody eligible"])
@pytest.mark.parametrize("mode", ["Auto", "Recommend"])
@pytest.mark.parametrize("accident", ["deleted", "edited"])
def test_what_serves_outlives_its_service(spec: dict[str, Any], mode: str, accident: str) -> None:
    rehearsal = rehearse(model_of(spec))
    rehearsal.run()
    rehearsal.cluster.edit(model_of(spec | {"selection": {"mode": mode}}))
    rehearsal.run()
    before = rehearsal.cluster.servers()
    assert len(before) == 1
    if accident == "deleted":
        del rehearsal.cluster.objects[("Service", "agent")]
    else:
        rehearsal.cluster.objects[("Service", "agent")]["spec"]["selector"]["specmodel.dev/revision"] = "0000000000"
    rehearsal.run()
    assert rehearsal.cluster.servers() == before
    assert rehearsal.cluster.endpoints("agent")


@in_any_order
def test_a_pod_that_serves_and_is_evicted_is_reported_and_replaced(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run()
    for pod in rehearsal.cluster.pods():
        rehearsal.cluster.kill_pod(pod["metadata"]["name"])
    rehearsal.run(until=lambda: "ReplicasUnavailable" in rehearsal.status_line())
    rehearsal.run()
    assert rehearsal.is_ready()
    return rehearsal


@in_any_order
def test_an_evicted_pod_that_stays_as_failed_holds_up_nothing(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run(until=lambda: "its server starts" in rehearsal.status_line())
    rehearsal.run(until=lambda: bool(rehearsal.cluster.pods()))
    rehearsal.cluster.evict_pod(rehearsal.cluster.pods()[0]["metadata"]["name"])
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    assert rehearsal.serving() == (1, 3, "None")
    return rehearsal


@in_any_order
def test_a_server_that_loads_slowly_again_after_it_served_is_not_stalled(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run()
    rehearsal.cluster.now += timedelta(days=2)
    for pod in rehearsal.cluster.pods():
        pod["simulated"]["dies"] = "yes"
    rehearsal.run(until=lambda: "ReplicasUnavailable" in rehearsal.status_line())
    assert "Stalled" not in rehearsal.status_line()
    rehearsal.run()
    assert rehearsal.is_ready()
    return rehearsal


@in_any_order
def test_an_engines_pod_that_is_replaced_under_load_is_no_fault_of_the_candidate(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run(until=lambda: "cell 2 of 3" in rehearsal.status_line())
    for pod in rehearsal.cluster.pods():
        if "specmodel.dev/role" in pod["metadata"]["labels"]:
            rehearsal.cluster.kill_pod(pod["metadata"]["name"])
    rehearsal.run()
    assert rehearsal.is_ready()
    assert rehearsal.cluster.model is not None
    assert {c.verdict for c in rehearsal.cluster.model.status.candidates} == {"Eligible"}
    return rehearsal


@in_any_order
def test_a_replica_count_that_someone_edits_by_hand_is_put_back(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run()
    rehearsal.cluster.objects[("Deployment", rehearsal.cluster.servers()[0])]["spec"]["replicas"] = 2
    rehearsal.run()
    assert rehearsal.is_ready()
    assert len(rehearsal.cluster.pods()) == 1
    return rehearsal
