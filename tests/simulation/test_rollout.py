"""Something serves and the spec changes: what is measured, what is promoted, and that nobody notices."""

from __future__ import annotations

from typing import Any

from specmodel.api.conditions import ConditionStatus, ConditionType
from tests.support.rehearsal import Rehearsal, in_any_order, model_of, rehearse, within
from tests.support.scripted_cluster import Engine


def installed(spec: dict[str, Any], seed: int | None, **cluster: Any) -> Rehearsal:
    rehearsal = rehearse(model_of(spec), seed=seed, **cluster)
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    return rehearsal


def edited(rehearsal: Rehearsal, spec: dict[str, Any]) -> Rehearsal:
    rehearsal.cluster.edit(model_of(spec))
    rehearsal.history.append("------ the user edits the model")
    rehearsal.run()
    return rehearsal


def runs(rehearsal: Rehearsal) -> set[str]:
    return {name for kind, name in rehearsal.cluster.objects if kind == "BenchmarkRun"}


@in_any_order
def test_a_tighter_sla_is_decided_from_what_is_stored_and_moves_traffic_without_a_gap(seed: int | None) -> Rehearsal:
    rehearsal = installed({}, seed)
    measured = runs(rehearsal)
    edited(rehearsal, within(1000))
    assert rehearsal.is_ready()
    assert rehearsal.serving() == (2, 3, "None")
    assert runs(rehearsal) == measured
    assert rehearsal.cluster.outage_seconds == 0
    assert len(rehearsal.cluster.servers()) == 1
    return rehearsal


@in_any_order
def test_a_looser_sla_measures_only_the_levels_that_the_tight_one_spared(seed: int | None) -> Rehearsal:
    rehearsal = installed(within(1000), seed)
    measured = runs(rehearsal)
    edited(rehearsal, {})
    assert rehearsal.is_ready()
    assert rehearsal.serving() == (1, 3, "None")
    new = runs(rehearsal) - measured
    for name in new:
        asked = rehearsal.cluster.objects[("BenchmarkRun", name)]["spec"]["cells"]
        assert len(asked) < 3, asked
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


@in_any_order
def test_what_serves_is_measured_further_on_a_twin(seed: int | None) -> Rehearsal:
    rehearsal = installed({"workload": {"concurrency": [1, 8]}}, seed)
    edited(rehearsal, {})
    assert rehearsal.is_ready()
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


def drafter(uri: str) -> dict[str, Any]:
    return {"drafter": {"uri": uri, "speculativeTokens": [3]}}


@in_any_order
def test_a_better_drafter_is_promoted(seed: int | None) -> Rehearsal:
    def engine(arguments: list[str]) -> Engine:
        return Engine(slowness=0.7 if "better" in " ".join(arguments) else 1.0)

    rehearsal = installed({}, seed, engine=engine)
    assert rehearsal.cluster.model is not None
    assert rehearsal.cluster.model.status.serving is not None
    before = rehearsal.cluster.model.status.serving.revision
    edited(rehearsal, drafter("hf://example/better-eagle3"))
    assert rehearsal.is_ready()
    assert rehearsal.cluster.model.status.serving.revision != before
    assert rehearsal.serving() == (1, 3, "None")
    assert rehearsal.cluster.outage_seconds == 0
    assert any("Promoted" in event for event in rehearsal.cluster.events[5:])
    return rehearsal


@in_any_order
def test_a_worse_drafter_leaves_the_incumbent_serving(seed: int | None) -> Rehearsal:
    def engine(arguments: list[str]) -> Engine:
        return Engine(slowness=1.2 if "worse" in " ".join(arguments) else 1.0)

    rehearsal = installed({}, seed, engine=engine)
    measured = runs(rehearsal)
    before = rehearsal.cluster.servers()
    edited(rehearsal, drafter("hf://example/worse-eagle3"))
    assert rehearsal.is_ready()
    assert rehearsal.cluster.servers() == before
    assert runs(rehearsal) > measured
    assert rehearsal.cluster.model is not None
    assert rehearsal.cluster.model.status.decision is not None
    assert rehearsal.cluster.model.status.decision.reason == "IncumbentKept"
    return rehearsal


@in_any_order
def test_a_broken_drafter_leaves_the_incumbent_serving_and_is_explained(seed: int | None) -> Rehearsal:
    def engine(arguments: list[str]) -> Engine:
        return Engine(dies_at_start="RuntimeError: no such head" if "broken" in " ".join(arguments) else "")

    rehearsal = installed({}, seed, engine=engine)
    before = rehearsal.cluster.servers()
    edited(rehearsal, drafter("hf://example/broken-eagle3"))
    assert rehearsal.is_ready()
    assert rehearsal.cluster.servers() == before
    assert any("no such head" in event for event in rehearsal.cluster.events)
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


@in_any_order
def test_another_placement_is_rolled_out_without_measuring(seed: int | None) -> Rehearsal:
    rehearsal = installed({}, seed, node_labels={"pool": "new"})
    measured = runs(rehearsal)
    before = rehearsal.cluster.servers()
    edited(rehearsal, {"hardware": {"nodeSelector": {"pool": "new"}}})
    assert rehearsal.is_ready()
    assert rehearsal.cluster.servers() != before
    assert runs(rehearsal) == measured
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


@in_any_order
def test_replicas_follow_the_scale_and_measure_nothing(seed: int | None) -> Rehearsal:
    rehearsal = installed({"hardware": {"gpusPerReplica": [1], "gpuBudget": 4}}, seed)
    measured = runs(rehearsal)
    edited(rehearsal, {"hardware": {"gpusPerReplica": [1], "gpuBudget": 4}, "serving": {"replicas": 3}})
    assert rehearsal.is_ready()
    assert len(rehearsal.cluster.endpoints("agent")) == 3
    edited(rehearsal, {"hardware": {"gpusPerReplica": [1], "gpuBudget": 4}, "serving": {"replicas": 2}})
    assert rehearsal.is_ready()
    assert len(rehearsal.cluster.endpoints("agent")) == 2
    assert runs(rehearsal) == measured
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


@in_any_order
def test_too_small_a_budget_for_both_revisions_is_said_and_nothing_is_dropped(seed: int | None) -> Rehearsal:
    spec = {"hardware": {"gpuBudget": 2}}
    rehearsal = installed(spec, seed)
    edited(rehearsal, spec | within(1000))
    progressing = rehearsal.condition(ConditionType.PROGRESSING)
    assert (progressing.status, progressing.reason) == (ConditionStatus.FALSE, "BudgetExceeded")
    assert rehearsal.serving() == (1, 3, "None")
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


@in_any_order
def test_recreate_frees_first_when_both_do_not_fit(seed: int | None) -> Rehearsal:
    spec: dict[str, Any] = {"hardware": {"gpuBudget": 2}, "serving": {"rollout": {"mode": "Recreate"}}}
    rehearsal = installed(spec, seed, allows_outage=True)
    edited(rehearsal, spec | within(1000))
    assert rehearsal.is_ready()
    assert rehearsal.serving() == (2, 3, "None")
    assert rehearsal.cluster.outage_seconds > 0
    return rehearsal


@in_any_order
def test_a_workload_edit_in_the_middle_of_measuring_begins_anew_and_ends_well(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run(until=lambda: "cell 2 of 3" in rehearsal.status_line())
    edited(rehearsal, {"workload": {"dataset": {"synthetic": {"inputTokens": 512, "outputTokens": 256}}}})
    assert rehearsal.is_ready()
    assert rehearsal.serving() == (1, 3, "None")
    return rehearsal


@in_any_order
def test_a_placement_edit_in_the_middle_of_measuring_measures_nothing_twice(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, node_labels={"pool": "new"})
    rehearsal.run(until=lambda: "cell 2 of 3" in rehearsal.status_line())
    edited(rehearsal, {"hardware": {"nodeSelector": {"pool": "new"}}})
    assert rehearsal.is_ready()
    assert len(runs(rehearsal)) == 4
    return rehearsal


@in_any_order
def test_deleting_the_model_leaves_nothing_behind(seed: int | None) -> Rehearsal:
    rehearsal = installed({}, seed)
    rehearsal.cluster.model = None
    rehearsal.run()
    assert rehearsal.cluster.objects == {}
    return rehearsal


@in_any_order
def test_at_rest_a_hundred_passes_write_nothing(seed: int | None) -> Rehearsal:
    rehearsal = installed({}, seed)
    written, statuses = len(rehearsal.cluster.written), rehearsal.cluster.status_writes
    passes = rehearsal.passes
    rehearsal.is_impatient = True
    rehearsal.run(until=lambda: rehearsal.passes >= passes + 100)
    assert (len(rehearsal.cluster.written), rehearsal.cluster.status_writes) == (written, statuses)
    return rehearsal
