"""Wire objects become values of the domain; odd and hostile objects become absent values, never a crash."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from specmodel.api import labels
from specmodel.api.model import SpeculativeModel
from specmodel.cluster import reading
from specmodel.reconcile.action import UnreadableModel

GPU = "nvidia.com/gpu"
H100 = "NVIDIA-H100-80GB-HBM3"


def model(**hardware: Any) -> SpeculativeModel:
    found = reading.read_model(
        {
            "metadata": {"name": "m", "namespace": "shop", "uid": "1", "generation": 3},
            "spec": {"model": {"uri": "hf://a/b"}, "hardware": hardware},
        }
    )
    assert isinstance(found, SpeculativeModel)
    return found


def pod(
    name: str = "p", *, gpus: int | str = 1, phase: str = "Running", node: str = "n1", **more: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": more.pop("labels", {})},
        "spec": {"nodeName": node, "containers": [{"name": "engine", "resources": {"requests": {GPU: gpus}}}]},
        "status": {"phase": phase, **more},
    }


def node(name: str = "n1", *, product: str = H100, gpus: str = "4", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product, **more.pop("labels", {})}},
        "spec": more.pop("spec", {}),
        "status": {"allocatable": {GPU: gpus}, "conditions": [{"type": "Ready", "status": more.pop("ready", "True")}]},
    }


# Models


def test_a_model_is_read_with_its_identity_and_defaults() -> None:
    found = model()
    assert (found.name, found.namespace, found.uid, found.generation) == ("m", "shop", "1", 3)
    assert found.spec.hardware.gpus_per_replica == [1, 2]
    assert not found.is_being_deleted


def test_a_spec_that_does_not_parse_says_which_field_is_wrong() -> None:
    found = reading.read_model(
        {
            "metadata": {"name": "m", "namespace": "shop", "uid": "1"},
            "spec": {"model": {"uri": "ftp://x"}, "colour": "red"},
        }
    )
    assert isinstance(found, UnreadableModel)
    assert "spec.model.uri" in found.message
    assert "spec.colour" in found.message


def test_a_status_that_someone_spoilt_keeps_the_members_that_parse() -> None:
    found = reading.read_model(
        {
            "metadata": {"name": "m", "namespace": "shop"},
            "spec": {"model": {"uri": "hf://a/b"}},
            "status": {
                "phase": 7,
                "conditions": "all fine",
                "serving": {
                    "gpusPerReplica": 1,
                    "speculativeTokens": 3,
                    "weights": "None",
                    "replicas": 1,
                    "engine": "x",
                },
            },
        }
    )
    assert isinstance(found, SpeculativeModel)
    assert found.status.conditions == []
    assert found.status.serving is not None
    assert found.status.serving.engine == "x"


# Pods


@pytest.mark.parametrize(
    ("containers", "init", "gpus"),
    [
        ([{"resources": {"requests": {GPU: "2"}}}], [], 2),
        ([{"resources": {"limits": {GPU: 2}}}, {"resources": {"requests": {GPU: "1"}}}], [], 3),
        ([{}], [{"resources": {"requests": {GPU: "4"}}}], 4),
        (
            [{"resources": {"requests": {GPU: "1"}}}],
            [{"restartPolicy": "Always", "resources": {"requests": {GPU: "1"}}}],
            2,
        ),
        ([{"resources": {"requests": {GPU: "many"}}}], [], 0),
        ([{"resources": {"requests": {GPU: "-3"}}}], [], 0),
        ([{"resources": {"requests": {GPU: "1e30"}}}], [], 1024),
        ([{"resources": None}, "x", None], [], 0),
    ],
)
def test_gpus_of_a_pod_are_counted_as_the_scheduler_counts(containers: list[Any], init: list[Any], gpus: int) -> None:
    assert reading.gpus_of({"spec": {"containers": containers, "initContainers": init}}, GPU) == gpus


def test_a_crashing_engine_shows_its_last_words_and_why_it_waits() -> None:
    status = {
        "name": "engine",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "ValueError: no such drafter\n"}},
    }
    found = reading.read_pod(pod(containerStatuses=[status]), GPU)
    assert found.waiting == "CrashLoopBackOff"
    assert found.last_words == "ValueError: no such drafter"
    assert (found.exit_code, found.restarts) == (1, 3)


def test_an_engines_log_says_why_it_ended_where_the_kubelets_last_lines_do_not() -> None:
    ended = {"exitCode": 0, "reason": "Completed", "message": "INFO: Application shutdown complete."}
    status = {"name": "engine", "restartCount": 1, "lastState": {"terminated": ended}}
    wire = pod(labels={labels.ROLE: "measure"}, containerStatuses=[status])
    why = "IndexError: index 9 is out of bounds"
    assert reading.read_pod(wire, GPU, why).last_words == why
    assert reading.read_pod(wire, GPU).last_words == "INFO: Application shutdown complete."
    killed = {"name": "engine", "lastState": {"terminated": {"reason": "OOMKilled"}}}
    wire = pod(labels={labels.ROLE: "measure"}, containerStatuses=[killed])
    assert reading.read_pod(wire, GPU, why).last_words == f"OOMKilled: {why}"


def test_a_pod_killed_for_memory_says_so() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    found = reading.read_pod(pod(containerStatuses=[{"name": "engine", "lastState": {"terminated": ended}}]), GPU)
    assert found.last_words == "OOMKilled"


def test_an_unschedulable_pod_carries_the_scheduler_s_words() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: gpu"}
    assert reading.read_pod(pod(phase="Pending", conditions=[condition]), GPU).unschedulable == "0/3 nodes: gpu"


def test_a_finished_pod_holds_no_gpu() -> None:
    assert reading.read_pod(pod(phase="Failed", reason="Evicted", message="disk"), GPU).gpus == 0


# Servers


def deployment(name: str, revision: str, **more: Any) -> dict[str, Any]:
    own = {labels.MODEL: "m", labels.ROLE: "serve", labels.REVISION: revision}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "generation": 2,
            "creationTimestamp": "2026-11-30T06:00:00Z",
            "labels": own,
            "annotations": more.pop("annotations", {}),
        },
        "spec": {"replicas": 1, "selector": {"matchLabels": own}},
        "status": {"observedGeneration": 1, "updatedReplicas": 5, "readyReplicas": 1},
    }


def test_pods_belong_to_the_deployment_that_selects_them_and_the_rest_are_strays() -> None:
    own = {labels.MODEL: "m", labels.ROLE: "serve", labels.REVISION: "r1"}
    pods = [
        pod("b", labels=own),
        pod("a", labels=own),
        pod("left-over", labels={**own, labels.REVISION: "r0"}),
        pod("job", labels={labels.MODEL: "m", labels.RUN: "x"}),
    ]
    servers, strays = reading.read_servers([deployment("m-r1", "r1")], pods, GPU)
    assert [each.name for each in servers[0].pods] == ["a", "b"]
    assert [each.name for each in strays] == ["left-over"]


def test_a_status_of_an_older_generation_counts_no_updated_replicas() -> None:
    servers, _ = reading.read_servers([deployment("m-r1", "r1")], [], GPU)
    assert servers[0].updated_replicas == 0
    assert servers[0].created_at == datetime(2026, 11, 30, 6, tzinfo=UTC)


def test_the_words_of_a_refused_pod_are_read_while_a_pod_is_missing() -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: team"}
    value = deployment("m-r1", "r1")
    value["status"]["conditions"] = [failed]
    own = {labels.MODEL: "m", labels.ROLE: "serve", labels.REVISION: "r1"}
    (short,), _ = reading.read_servers([value], [], GPU)
    assert short.replica_failure == short.refused_pods == "FailedCreate: exceeded quota: team"
    (whole,), _ = reading.read_servers([value], [pod(labels=own)], GPU)
    assert whole.refused_pods is None
    failed["status"] = "False"
    (mended,), _ = reading.read_servers([value], [], GPU)
    assert mended.replica_failure is None


def test_an_edited_candidate_annotation_is_no_candidate() -> None:
    edited = deployment("m-r1", "r1", annotations={labels.CANDIDATE_JSON: '{"model_uri": "x"}'})
    servers, _ = reading.read_servers([edited], [], GPU)
    assert servers[0].candidate is None


# Runs

RUN = {
    "metadata": {"name": "m-abc", "uid": "r", "labels": {labels.MODEL: "m", labels.CANDIDATE: "c"}},
    "spec": {
        "target": {"url": "http://m:8000", "model": "m"},
        "cells": [{"concurrency": 1, "temperature": "0", "minRequests": 1, "maxRequests": 1}],
    },
}
CELL = {
    "concurrency": 1,
    "temperature": "0",
    "completed": 10,
    "failed": 0,
    "durationMilliseconds": 1000,
    "outputTokens": 100,
    "requestsPerSecond": "10",
    "outputTokensPerSecond": "100",
}


def test_cells_that_do_not_parse_are_left_out_and_the_rest_kept() -> None:
    run = {**RUN, "status": {"cells": [CELL, {**CELL, "completed": -1}, "x", None]}}
    found = reading.read_run(run, [], [], GPU)
    assert found is not None
    assert [cell.completed for cell in found.status.cells] == [10]


def test_more_cells_than_were_asked_for_are_not_believed() -> None:
    found = reading.read_run({**RUN, "status": {"cells": [CELL] * 500}}, [], [], GPU)
    assert found is not None
    assert len(found.status.cells) == 1


def test_the_job_of_a_run_is_found_by_its_label() -> None:
    job = {
        "metadata": {"name": "m-abc", "uid": "j", "labels": {labels.RUN: "m-abc"}, "annotations": {"x": "y"}},
        "status": {
            "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "!"}]
        },
    }
    found = reading.read_run(RUN, [job], [pod("w", gpus=0, labels={labels.RUN: "m-abc"})], GPU)
    assert found is not None
    assert found.job is not None
    assert found.job.failure == ("BackoffLimitExceeded", "!")
    assert [each.name for each in found.job.pods] == ["w"]


def test_a_run_whose_spec_does_not_parse_is_no_run() -> None:
    assert reading.read_run({**RUN, "spec": {"cells": []}}, [], [], GPU) is None


# The stable Service


def endpoint(name: str, *, ready: bool = True) -> dict[str, Any]:
    return {"targetRef": {"kind": "Pod", "name": name}, "conditions": {"ready": ready}}


def service_with(*endpoints: dict[str, Any]) -> Any:
    selector = {labels.MODEL: "m", labels.REVISION: "r1"}
    service = {"metadata": {"name": "m"}, "spec": {"selector": selector}}
    slices = [
        {"metadata": {"labels": {"kubernetes.io/service-name": "m"}}, "endpoints": list(endpoints)},
        {"metadata": {"labels": {"kubernetes.io/service-name": "m-r1"}}, "endpoints": [endpoint("of-another-service")]},
    ]
    ready = [{"type": "Ready", "status": "True"}]
    pods = [
        pod("new", labels=selector, conditions=ready),
        pod("old", labels={labels.MODEL: "m", labels.REVISION: "r0"}),
    ]
    return reading.read_service(service, slices, pods)


def test_the_service_is_settled_when_its_slices_hold_the_ready_pods_of_its_revision_only() -> None:
    found = service_with(endpoint("new"))
    assert (found.revision, found.endpoints, found.is_settled) == ("r1", ("new",), True)


@pytest.mark.parametrize("endpoints", [(endpoint("old"), endpoint("new")), (), (endpoint("new", ready=False),)])
def test_the_service_is_not_settled_while_old_pods_are_in_or_new_ones_out(endpoints: Any) -> None:
    assert not service_with(*endpoints).is_settled


def test_an_empty_selector_selects_no_pod() -> None:
    found = reading.read_service({"metadata": {"name": "m"}, "spec": {}}, [], [pod("x")])
    assert found is not None
    assert found.revision is None


# GPUs


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (node(), True),
        (node(product="NVIDIA-H200"), False),
        (node(product=f"{H100}-SHARED"), False),
        (node(product=f"{H100}-MIG-1g.10gb"), False),
        (node(labels={"nvidia.com/gpu.sharing-strategy": "time-slicing"}), False),
        (node(labels={"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}), True),
        (node(labels={"nvidia.com/gpu.replicas": "4"}), False),
        (node(ready="Unknown"), False),
        (node(spec={"unschedulable": True}), False),
        (node(spec={"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}), True),
        (node(spec={"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}), False),
        (node(spec={"taints": [{"key": "team", "value": "a", "effect": "PreferNoSchedule"}]}), True),
        ({}, False),
    ],
)
def test_only_whole_ready_schedulable_gpus_of_the_exact_products_count(value: dict[str, Any], fits: bool) -> None:
    assert reading.can_host(value, model(), [H100, f"{H100}-SHARED", f"{H100}-MIG-1g.10gb"], GPU) is fits


def test_a_toleration_and_a_selector_of_the_user_s_are_honoured() -> None:
    tainted = node(labels={"pool": "a"}, spec={"taints": [{"key": "team", "value": "a", "effect": "NoExecute"}]})
    tolerated = [{"key": "team", "operator": "Equal", "value": "a"}]
    assert reading.can_host(tainted, model(tolerations=tolerated, nodeSelector={"pool": "a"}), [H100], GPU)
    assert not reading.can_host(tainted, model(tolerations=tolerated, nodeSelector={"pool": "b"}), [H100], GPU)
    assert not reading.can_host(tainted, model(tolerations=[{"key": "team", "value": "b"}]), [H100], GPU)


def test_pods_of_anyone_hold_gpus_until_they_are_finished() -> None:
    pods = [pod("a", gpus=1), pod("b", gpus=2, phase="Pending"), pod("c", gpus=4, phase="Succeeded"), pod("d", node="")]
    assert reading.requests_by_node(pods, GPU) == {"n1": 3}


def test_the_supply_names_every_product_that_was_seen() -> None:
    other = node("n2", product="NVIDIA-A100")
    supply = reading.read_supply([other, node()], [node()], {"n1": 3}, GPU)
    assert (supply.free, supply.products_seen) == (1, ("NVIDIA-A100", H100))


def test_the_supply_counts_nodes_that_could_run_pods_whatever_their_labels_and_taints() -> None:
    tainted = node("n2", spec={"taints": [{"key": "team", "effect": "NoSchedule"}]})
    cordoned, down = node("n3", spec={"unschedulable": True}), node("n4", ready="False")
    supply = reading.read_supply(iter([node(), tainted, cordoned, down]), [], {}, GPU)
    assert supply.products_ready == (H100, H100)


# Prompts


def test_prompts_have_a_digest_that_blank_lines_do_not_change() -> None:
    one = reading.read_prompts({"data": {"k": '{"prompt": "a"}\n{"prompt":"b"}\n'}}, name="c", key="k")
    two = reading.read_prompts({"data": {"k": '{"prompt":"a"}\n\n{"prompt": "b"}'}}, name="c", key="k")
    three = reading.read_prompts({"data": {"k": '{"prompt": "b"}\n{"prompt":"a"}\n'}}, name="c", key="k")
    assert one.digest == two.digest
    assert one.digest != three.digest


@pytest.mark.parametrize(
    ("config_map", "reason", "words"),
    [
        (None, "DatasetNotFound", "does not exist"),
        ({"data": {"other": "x"}}, "DatasetNotFound", "its keys: other"),
        ({"binaryData": {"k": "AAAA"}}, "DatasetNotFound", "its keys: none"),
        ({"data": {"k": '{"prompt": "a"}\n{"text": "b"}'}}, "DatasetInvalid", "line 2"),
        ({"data": {"k": "[" * 100_000}}, "DatasetInvalid", "line 1"),
        ({"data": {"k": " \n"}}, "DatasetInvalid", "no line"),
    ],
)
def test_prompts_that_cannot_be_used_say_why(config_map: Any, reason: str, words: str) -> None:
    problem = reading.read_prompts(config_map, name="queries", key="k").problem
    assert problem is not None
    assert problem[0] == reason
    assert words in problem[1]


# Hostile objects


def _spoil(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.15:
        return chance.choice([None, "", "x", -1, 2**70, 1.5, True, [], {}, [None], {"x": None}, "2026-99-99T00:00:00Z"])
    if isinstance(value, dict):
        return {key: _spoil(inner, chance) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spoil(inner, chance) for inner in value]
    return value


@pytest.mark.parametrize("seed", range(200))
def test_no_object_crashes_the_reading(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 — a seeded test, no secret
    own = {labels.MODEL: "m", labels.ROLE: "serve", labels.REVISION: "r1"}
    status = {"name": "engine", "restartCount": 1, "state": {"waiting": {"reason": "X"}}, "imageID": "sha"}
    pods = [
        _spoil(pod(labels=own, containerStatuses=[status], podIP="10.0.0.1", startTime="2026-11-30T06:00:00Z"), chance)
    ]
    pods = [each for each in pods if isinstance(each, dict)]
    wire = [_spoil(each, chance) for each in (deployment("m-r1", "r1"), {**RUN, "status": {"cells": [CELL]}}, node())]
    server, run, host = (each if isinstance(each, dict) else {} for each in wire)
    reading.read_servers([server], pods, GPU)
    reading.read_run(run, [run, server], pods, GPU)
    reading.read_model(run)
    reading.read_service(server, [server, run], pods)
    reading.read_supply([host], [host] if reading.can_host(host, model(), [H100], GPU) else [], {}, GPU)
    reading.requests_by_node(pods, GPU)
    reading.read_prompts(run, name="x", key="y")
