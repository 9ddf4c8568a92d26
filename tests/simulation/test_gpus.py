"""GPUs are few, unknown, come and go: nothing is dropped, nothing is stuck in silence, nothing exceeds the budget."""

from __future__ import annotations

from datetime import timedelta

from specmodel.api.conditions import ConditionStatus, ConditionType
from specmodel.api.labels import RUN_KIND
from specmodel.cluster.reading import true_condition
from tests.support.rehearsal import Rehearsal, in_any_order, model_of, rehearse, within


def waits(rehearsal: Rehearsal, reason: str = "WaitingForGPUs") -> bool:
    found = rehearsal.condition(ConditionType.PROGRESSING)
    return found is not None and found.status is ConditionStatus.FALSE and found.reason == reason


@in_any_order
def test_a_challenger_without_gpus_waits_in_words_and_goes_on_by_itself(seed: int | None) -> Rehearsal:
    spec = {"hardware": {"gpusPerReplica": [1]}}
    rehearsal = rehearse(model_of(spec), seed=seed, nodes={"node-a": 2})
    rehearsal.run()
    before = rehearsal.cluster.servers()
    rehearsal.cluster.edit(model_of(within(1000)))
    rehearsal.run()
    assert waits(rehearsal), rehearsal.text()
    message = rehearsal.condition(ConditionType.PROGRESSING).message
    assert "2 GPUs wanted" in message
    assert "1 free of 2" in message
    assert set(before) <= set(rehearsal.cluster.servers())
    assert len(rehearsal.cluster.endpoints("agent")) == 1
    rehearsal.cluster.nodes["node-b"] = 2
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    assert rehearsal.serving() == (2, 3, "None")
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


@in_any_order
def test_candidates_that_fit_no_node_hold_up_no_decision(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, nodes={"node-a": 1, "node-b": 1})
    rehearsal.run()
    assert rehearsal.serving() == (1, 3, "None")
    assert waits(rehearsal)
    assert len(rehearsal.cluster.endpoints("agent")) == 1
    rehearsal.cluster.nodes["node-c"] = 2
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


@in_any_order
def test_without_any_gpu_the_first_candidate_waits_and_names_the_products_seen(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, product="NVIDIA-H200")
    rehearsal.run()
    assert waits(rehearsal, "NoMatchingGPU")
    assert "NVIDIA-H200" in rehearsal.condition(ConditionType.PROGRESSING).message
    rehearsal.cluster.product = "NVIDIA-H100-80GB-HBM3"
    rehearsal.run()
    assert rehearsal.is_ready()
    return rehearsal


@in_any_order
def test_a_node_selector_that_matches_no_node_of_the_product_is_quoted(seed: int | None) -> Rehearsal:
    spec = {"hardware": {"nodeSelector": {"pool": "blue"}}}
    rehearsal = rehearse(model_of(spec), seed=seed, nodes={"node-a": 2, "node-b": 2})
    rehearsal.run()
    assert waits(rehearsal, "NoMatchingGPU")
    message = rehearsal.condition(ConditionType.PROGRESSING).message
    assert "hardware.nodeSelector {pool: blue} or taints keep the pods off the 2 nodes that offer" in message
    assert "No node offers" not in message
    rehearsal.cluster.node_labels["pool"] = "blue"
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    return rehearsal


@in_any_order
def test_taints_and_cordons_that_keep_pods_off_the_product_are_named(seed: int | None) -> Rehearsal:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    rehearsal = rehearse(model_of({}), seed=seed, taints=[taint])
    rehearsal.run()
    assert waits(rehearsal, "NoMatchingGPU")
    message = rehearsal.condition(ConditionType.PROGRESSING).message
    assert "Taints keep the pods off the 1 node that offers NVIDIA-H100-80GB-HBM3" in message
    rehearsal.cluster.taints.clear()
    rehearsal.cluster.cordoned = True
    rehearsal.run()
    assert "are cordoned" in rehearsal.condition(ConditionType.PROGRESSING).message
    rehearsal.cluster.cordoned = False
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    return rehearsal


QUOTA = 'pods "agent-1" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=1, limited: 0'


@in_any_order
def test_pods_that_a_quota_refuses_are_waited_for_in_the_server_s_words(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, refuses_pods=QUOTA)
    rehearsal.run(until=lambda: waits(rehearsal, "MeasurementBlocked"), limit=timedelta(seconds=30))
    message = rehearsal.condition(ConditionType.PROGRESSING).message
    assert "FailedCreate: " + QUOTA in message
    assert "its server starts" not in message
    rehearsal.cluster.refuses_pods = ""
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    return rehearsal


@in_any_order
def test_a_quota_that_stays_ends_each_run_in_time_and_no_candidate_is_to_blame(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, refuses_pods=QUOTA)
    rehearsal.run()
    runs = [value for (kind, _), value in rehearsal.cluster.objects.items() if kind == RUN_KIND]
    failures = [true_condition(run, "Failed") for run in runs]
    assert failures, rehearsal.text()
    assert all(found and found["reason"] == "TargetUnreachable" for found in failures), failures
    assert all(found and QUOTA in found["message"] for found in failures)
    model = rehearsal.cluster.model
    assert model is not None
    assert not any(each.verdict == "Failed" for each in model.status.candidates)
    return rehearsal


@in_any_order
def test_a_replica_that_a_quota_refuses_is_explained_while_the_others_serve(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed)
    rehearsal.run()
    before = len(rehearsal.cluster.endpoints("agent"))
    rehearsal.cluster.refuses_pods = QUOTA
    rehearsal.cluster.edit(model_of({"serving": {"replicas": 2}}))
    rehearsal.run()
    assert waits(rehearsal, "Rejected"), rehearsal.text()
    assert QUOTA in rehearsal.condition(ConditionType.PROGRESSING).message
    assert len(rehearsal.cluster.endpoints("agent")) == before == 1
    rehearsal.cluster.refuses_pods = ""
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    assert rehearsal.cluster.outage_seconds == 0
    return rehearsal


@in_any_order
def test_gpus_of_others_are_counted(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, foreign={"node-a": 3})
    rehearsal.run()
    assert rehearsal.serving() == (1, 3, "None")
    rehearsal.cluster.foreign.clear()
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    return rehearsal


@in_any_order
def test_an_operator_that_may_not_read_nodes_gets_there_too(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, may_read_nodes=False)
    rehearsal.run()
    assert rehearsal.is_ready()
    assert rehearsal.serving() == (1, 3, "None")
    return rehearsal


@in_any_order
def test_a_node_that_vanishes_takes_a_replica_and_it_comes_back_elsewhere(seed: int | None) -> Rehearsal:
    rehearsal = rehearse(model_of({}), seed=seed, nodes={"node-a": 4})
    rehearsal.run()
    rehearsal.cluster.nodes["node-b"] = 4
    del rehearsal.cluster.nodes["node-a"]
    for pod in rehearsal.cluster.pods():
        rehearsal.cluster.kill_pod(pod["metadata"]["name"])
    rehearsal.run()
    assert rehearsal.is_ready(), rehearsal.text()
    return rehearsal
