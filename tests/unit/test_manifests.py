"""What is rendered of a candidate: the engine's command line, its pod, its Services and its benchmark Job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specmodel.api.benchmark import CellRequest
from specmodel.api.labels import ANSWERED, CANDIDATE_JSON, RENDERED, ROLE, ROLE_MEASURE, ROLE_SERVE
from specmodel.domain.candidate import Candidate, EngineChoice, candidate_from_json, enumerate_candidates
from specmodel.domain.settings import Settings
from specmodel.manifests.benchmark import benchmark_job, role, run_spec, target_server
from specmodel.manifests.difference import first_difference
from specmodel.manifests.engine_arguments import Paths, drain_seconds, engine_arguments
from specmodel.manifests.names import job_name, model_owner, run_owner, server_name
from specmodel.manifests.quantities import parse_quantity
from specmodel.manifests.server import rescaled, server_deployment, server_service, stable_service
from tests.support.rehearsal import model_of

OWNER = model_owner("agent", "uid-model")
SETTINGS = Settings()


def candidates(spec: dict[str, Any] | None = None) -> tuple[Candidate, ...]:
    engine = EngineChoice(image="vllm/vllm-openai:v0.25.1", version="0.25.1")
    return enumerate_candidates(model_of(spec or {}), engine, SETTINGS)


def candidate(spec: dict[str, Any] | None = None) -> Candidate:
    """Return the last candidate: 2 GPUs, γ = 3 unless the spec says otherwise."""
    return candidates(spec)[-1]


def deployment(spec: dict[str, Any] | None = None, role_: str = ROLE_SERVE) -> dict[str, Any]:
    return server_deployment(OWNER, candidate(spec), role=role_, replicas=1, settings=SETTINGS)


def pod(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = deployment(spec)["spec"]["template"]["spec"]
    return found


def flag(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_the_command_line_names_the_method_and_the_tokens_of_the_drafter() -> None:
    arguments = pod()["containers"][0]["args"]
    assert arguments[0] == "example/target-8b"
    assert json.loads(flag(arguments, "--speculative-config")) == {
        "method": "eagle3",
        "model": "example/eagle3-8b",
        "num_speculative_tokens": 3,
        "revision": "main",
    }
    assert flag(arguments, "--tensor-parallel-size") == "2"
    assert flag(arguments, "--served-model-name") == "agent"


def test_a_candidate_without_drafter_has_no_speculative_config() -> None:
    reference = candidates()[0]
    assert "--speculative-config" not in engine_arguments(reference, Paths(model="m"))


def test_fp8_weights_and_kv_cache_are_asked_of_the_engine() -> None:
    arguments = pod({"quantization": {"weights": ["FP8"], "kvCache": "FP8"}})["containers"][0]["args"]
    assert flag(arguments, "--quantization") == "fp8"
    assert flag(arguments, "--kv-cache-dtype") == "fp8"


def test_the_users_own_arguments_come_last() -> None:
    arguments = pod({"engine": {"extraArgs": ["--max-model-len", "4096"]}})["containers"][0]["args"]
    assert arguments[-2:] == ["--max-model-len", "4096"]


def test_cuda_graphs_cover_every_sequence_with_its_drafted_tokens() -> None:
    arguments = pod({"workload": {"concurrency": [1, 40]}})["containers"][0]["args"]
    assert flag(arguments, "--max-num-seqs") == "80"
    assert flag(arguments, "--max-cudagraph-capture-size") == "320"


def test_weights_on_a_claim_are_mounted_read_only_and_the_hub_is_left_alone() -> None:
    spec = {"model": {"uri": "pvc://models/llama/8b"}, "drafter": {"uri": "pvc://models/eagle3"}}
    found = pod(spec)
    container = found["containers"][0]
    assert container["args"][0] == "/weights/models/llama/8b"
    assert json.loads(flag(container["args"], "--speculative-config"))["model"] == "/weights/models/eagle3"
    assert "--revision" not in container["args"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]
    claims = [volume for volume in found["volumes"] if "persistentVolumeClaim" in volume]
    assert [volume["persistentVolumeClaim"] for volume in claims] == [{"claimName": "models", "readOnly": True}]


def test_a_token_comes_from_its_secret() -> None:
    env = pod({"model": {"tokenSecretRef": {"name": "hf", "key": "token"}}})["containers"][0]["env"]
    reference = {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": reference} in env


def test_pods_go_to_exact_products_and_never_to_shared_gpus() -> None:
    terms = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    product, sharing = terms[0]["matchExpressions"]
    assert product["operator"] == "In"
    assert product["values"] == sorted(SETTINGS.gpu_products)
    assert (sharing["operator"], sharing["values"]) == ("NotIn", ["time-slicing", "mps"])


def test_pods_keep_the_restricted_profile() -> None:
    found = pod()
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["automountServiceAccountToken"] is False
    assert found["enableServiceLinks"] is False
    own = found["containers"][0]["securityContext"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)


@pytest.mark.parametrize(("drain", "grace"), [(0, 30), (10, 30), (60, 90), (600, 630)])
def test_grace_covers_the_sleep_the_drain_and_the_engines_own_exit(drain: int, grace: int) -> None:
    spec = {"serving": {"rollout": {"drainSeconds": drain}}}
    sleep, shutdown, total = drain_seconds(candidate(spec))
    found = pod(spec)
    assert total == grace == sleep + shutdown + 15
    assert found["terminationGracePeriodSeconds"] == grace
    assert found["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": sleep}}}
    assert flag(found["containers"][0]["args"], "--shutdown-timeout") == str(shutdown)


def test_the_kubelet_waits_longer_than_the_engine_and_the_deployment_longer_than_both() -> None:
    found = deployment()
    container = found["spec"]["template"]["spec"]["containers"][0]
    budget = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    ready = next(int(v["value"]) for v in container["env"] if v["name"] == "VLLM_ENGINE_READY_TIMEOUT_S")
    assert ready == 120 < budget < found["spec"]["progressDeadlineSeconds"]


def test_memory_is_sized_with_shared_memory_in_it_unless_the_user_says() -> None:
    resources = pod()["containers"][0]["resources"]
    assert resources["limits"]["memory"] == f"{(24 + 16) * 1024 + 8192}Mi"
    assert resources["requests"]["cpu"] == "8"
    small = pod({"engine": {"resources": {"cpu": "100m", "memory": "256Mi"}}})
    assert small["containers"][0]["resources"]["requests"]["memory"] == "256Mi"
    shm = next(volume for volume in small["volumes"] if volume["name"] == "shm")
    assert parse_quantity(shm["emptyDir"]["sizeLimit"]) <= parse_quantity("256Mi") / 2


def test_a_deployment_never_surges_and_carries_its_candidate() -> None:
    found = deployment()
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert candidate_from_json(found["metadata"]["annotations"][CANDIDATE_JSON]) == candidate()


def test_a_twin_has_another_name_and_is_not_what_the_stable_service_selects() -> None:
    serving, twin = deployment(), deployment(role_=ROLE_MEASURE)
    assert serving["metadata"]["name"] != twin["metadata"]["name"]
    selector = stable_service(OWNER, candidate().revision, moved_at="2026-11-30T12:00:00Z")["spec"]["selector"]
    labels_of = [d["spec"]["template"]["metadata"]["labels"] for d in (serving, twin)]
    assert [all(found[key] == value for key, value in selector.items()) for found in labels_of] == [True, False]
    assert selector[ROLE] == ROLE_SERVE


def test_a_candidates_service_has_the_name_of_its_deployment() -> None:
    service = server_service(OWNER, candidate(), role=ROLE_SERVE)
    assert service["metadata"]["name"] == deployment()["metadata"]["name"]


def test_a_template_of_another_release_keeps_its_fields_when_it_is_scaled() -> None:
    live = deployment()
    live["metadata"]["annotations"] = {RENDERED: "another", ANSWERED: "not ours"} | live["metadata"]["annotations"]
    live["metadata"]["annotations"][RENDERED] = "another"
    live["spec"]["template"]["spec"]["added"] = "by an earlier release"
    scaled = rescaled(live, OWNER, replicas=3)
    assert scaled["spec"]["replicas"] == 3
    assert scaled["spec"]["template"] == live["spec"]["template"]
    assert scaled["metadata"]["annotations"][RENDERED] == "another"
    assert ANSWERED not in scaled["metadata"]["annotations"]


def test_the_jobs_account_may_read_its_run_and_patch_its_status_and_nothing_else() -> None:
    rules = role(run_owner("agent-0123456789", "uid"), "agent")["rules"]
    assert [(rule["resources"], rule["verbs"], rule["resourceNames"]) for rule in rules] == [
        (["benchmarkruns"], ["get"], ["agent-0123456789"]),
        (["benchmarkruns/status"], ["patch"], ["agent-0123456789"]),
    ]


def test_the_job_is_told_its_run_and_mounts_the_prompts() -> None:
    prompts = {"configMapRef": {"name": "queries", "key": "prompts.jsonl"}}
    model = model_of({"workload": {"dataset": {"prompts": prompts}}})
    cell = CellRequest(concurrency=1, temperature="0", min_requests=24, max_requests=200)
    name = server_name("agent", candidate(), ROLE_SERVE)
    spec = run_spec(model, candidate(), server=name, cells=[cell], dataset_digest="d")
    assert target_server(spec) == name
    owner = run_owner("agent-0123456789", "uid")
    job = benchmark_job(owner, spec, model="agent", namespace="default", settings=SETTINGS)
    found = job["spec"]["template"]["spec"]
    assert found["containers"][0]["args"] == ["--namespace", "default", "--name", "agent-0123456789"]
    assert {"name": "prompts", "mountPath": "/prompts", "readOnly": True} in found["containers"][0]["volumeMounts"]
    assert job["spec"]["activeDeadlineSeconds"] > spec.deadline_seconds


@pytest.mark.parametrize("name", ["nightly", "a" * 253, "with.dots.in.it", "x" * 52])
def test_a_runs_job_has_a_name_that_labels_and_pods_can_carry(name: str) -> None:
    found = job_name(name)
    assert len(found) <= 52
    assert "." not in found


def test_what_the_api_server_defaults_is_no_difference() -> None:
    live = deployment()
    live["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    live["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "48Gi"
    live["metadata"]["uid"] = "given"
    assert first_difference(deployment(), live) is None


@pytest.mark.parametrize(
    ("wanted", "live", "words"),
    [
        ({"a": 1}, {"a": 2}, "a: 2, wanted 1"),
        ({"a": [1, 2]}, {"a": [1]}, "a: 1 items, wanted 2"),
        ({"a": {"b": "x"}}, {}, "a: missing"),
        ({"a": {}}, {}, None),
        ({"limits": {"cpu": "0.1"}}, {"limits": {"cpu": "100m"}}, None),
        ({"name": "0.1"}, {"name": "100m"}, "name: '100m', wanted '0.1'"),
    ],
)
def test_the_first_difference_is_told_in_words(wanted: object, live: object, words: str | None) -> None:
    assert first_difference(wanted, live) == words


@pytest.mark.parametrize(
    ("one", "other"), [("100m", "0.1"), ("1024Mi", "1Gi"), ("2e3", "2k"), ("1.5", "1500m"), ("128974848", "123Mi")]
)
def test_quantities_are_equal_by_value(one: str, other: str) -> None:
    assert parse_quantity(one) == parse_quantity(other)


@pytest.mark.parametrize("text", ["", "ten", "1.2.3", "5 Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)
