"""What a preflight asks, how its Job is rendered, what is believed of its answer, and what follows for candidates."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specmodel.api import labels
from specmodel.api.conditions import REASONS, ConditionStatus
from specmodel.cluster import reading
from specmodel.domain.candidate import Candidate, EngineChoice, enumerate_candidates
from specmodel.domain.checkpoint import CheckpointError, read_config
from specmodel.domain.preflight import (
    TEXT_MAXIMUM,
    Cause,
    Judgement,
    Policy,
    Question,
    Reading,
    Unread,
    judge,
    question_of,
    reading_from_json,
)
from specmodel.domain.settings import Settings
from specmodel.manifests.names import model_owner
from specmodel.manifests.preflight import preflight_job
from tests.support.checkpoints import LLAMA_8B, LLAMA_8B_DRAFTER, LLAMA_70B, TINY_DRAFTER, TINY_TARGET
from tests.support.rehearsal import model_of

SETTINGS = Settings()
TARGET = read_config(LLAMA_8B, source="hf://org/target@main")
DRAFTER = read_config(LLAMA_8B_DRAFTER, source="hf://org/drafter@main")
POLICY = Policy(has_drafter=True, fails_when_incompatible=False)


def candidates(spec: dict[str, Any] | None = None) -> tuple[Candidate, ...]:
    engine = EngineChoice(image="vllm/vllm-openai:v0.25.1", version="0.25.1")
    return enumerate_candidates(model_of(spec or {}), engine, SETTINGS)


def question(spec: dict[str, Any] | None = None) -> Question:
    return question_of(model_of(spec or {}), candidates(spec))


def judged(found: Reading | None, policy: Policy = POLICY, proven: Collection[str] = ()) -> Judgement:
    return judge(found, candidates(), policy, proven=proven)


def job(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    asked = question(spec)
    return preflight_job(model_owner("agent", "uid-model"), asked, candidates(spec)[0], settings=SETTINGS)


def pod_of(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = job(spec)["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"uri": "hf://example/another"}},
        {"model": {"revision": "v2"}},
        {"model": {"tokenSecretRef": {"name": "a", "key": "b"}}},
        {"drafter": {"uri": "hf://example/another"}},
        {"drafter": {"revision": "v2"}},
        {"drafter": None},
        {"engine": {"env": [{"name": "HF_ENDPOINT", "value": "http://mirror"}]}},
    ],
)
def test_what_changes_the_answer_is_asked_anew(change: dict[str, Any]) -> None:
    assert question(change).digest != question().digest


@pytest.mark.parametrize(
    "change",
    [
        {"hardware": {"gpusPerReplica": [4]}},
        {"engine": {"extraArgs": ["--max-model-len=4096"], "env": [{"name": "VLLM_X", "value": "1"}]}},
        {"drafter": {"speculativeTokens": [5], "onIncompatible": "Fail"}},
        {"quantization": {"weights": ["FP8"]}},
    ],
)
def test_what_is_only_judged_is_not_asked_anew(change: dict[str, Any]) -> None:
    assert question(change).digest == question().digest


def test_the_job_has_no_right_and_no_gpu_and_ends() -> None:
    manifest, spec = job(), pod_of()
    assert manifest["metadata"]["labels"][labels.PREFLIGHT] == question().digest
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-model"
    assert manifest["spec"]["activeDeadlineSeconds"] <= 120
    assert manifest["spec"]["ttlSecondsAfterFinished"] > 0
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert spec["securityContext"]["runAsNonRoot"] is True
    container = spec["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])
    assert "tolerations" not in spec


def test_claims_are_mounted_read_only_where_nodes_with_gpus_may_hold_them() -> None:
    spec = pod_of({"model": {"uri": "pvc://models/a"}, "drafter": {"uri": "pvc://heads/b"}})
    mounts = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"].startswith("weights")]
    assert [(mount["mountPath"], mount["readOnly"]) for mount in mounts] == [
        ("/weights/heads", True),
        ("/weights/models", True),
    ]
    assert all(volume["persistentVolumeClaim"]["readOnly"] for volume in spec["volumes"] if volume["name"] != "tmp")
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_the_token_comes_from_its_secret_and_the_hub_from_the_engines_variables() -> None:
    env = [{"name": "HF_ENDPOINT", "value": "http://mirror"}, {"name": "OTHER", "value": "x"}]
    spec = pod_of({"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}, "engine": {"env": env}})
    environment = {one["name"]: one for one in spec["containers"][0]["env"]}
    assert environment["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token", "optional": True}
    assert environment["HF_ENDPOINT"]["value"] == "http://mirror"
    assert "OTHER" not in environment


def test_an_answer_survives_its_way() -> None:
    found = Reading(target=TARGET, drafter=Unread(cause=Cause.MISSING, message="no such repository"))
    assert reading_from_json(found.to_json()) == found


def test_an_answer_never_outgrows_a_termination_message() -> None:
    long = "x" * 300
    wide = replace(TARGET, architectures=(long,) * 8, verifier_architectures=(long,) * 8, verifier=long)
    text = Reading(target=wide, drafter=wide).to_json()
    assert len(text) <= TEXT_MAXIMUM
    kept = reading_from_json(text)
    assert isinstance(kept.target, Unread)
    assert kept.target.cause is Cause.BROKEN


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=60) | st.sampled_from(['{"target":{}}', '{"target":null}', '{"target":[]}', "9" * 5000]))
def test_no_answer_breaks_the_operator(text: str) -> None:
    try:
        reading_from_json(text)
    except CheckpointError:
        return


def wire_job(**more: Any) -> dict[str, Any]:
    owner = {"uid": "uid-model", "controller": True}
    metadata = {"name": "j", "uid": "uid-job", "labels": {labels.PREFLIGHT: "d"}, "ownerReferences": [owner]}
    return {"metadata": metadata | {"creationTimestamp": "2026-11-30T12:00:00Z"}, "status": {}} | more


def wire_pod(message: str, *, owner: str = "uid-job", code: int = 0) -> dict[str, Any]:
    ended = {"exitCode": code, "message": message}
    metadata = {"name": "p", "uid": "uid-pod", "ownerReferences": [{"uid": owner, "controller": True}]}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "x", "state": {"terminated": ended}}]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "x"}]}, "status": status}


def test_the_answer_is_read_whole_from_the_jobs_own_pod() -> None:
    long = "x" * 4000
    (found,) = reading.read_preflights([wire_job()], [wire_pod(long)], "uid-model", "nvidia.com/gpu")
    assert (found.digest, found.answer, found.created_at) == ("d", long, datetime(2026, 11, 30, 12, tzinfo=UTC))


@pytest.mark.parametrize("pod", [wire_pod("forged", owner="another"), wire_pod("Traceback", code=1)])
def test_no_other_pod_and_no_failure_is_an_answer(pod: dict[str, Any]) -> None:
    (found,) = reading.read_preflights([wire_job()], [pod], "uid-model", "nvidia.com/gpu")
    assert found.answer is None


def test_a_job_of_another_owner_is_not_the_models() -> None:
    assert reading.read_preflights([wire_job()], [], "another", "nvidia.com/gpu") == ()


def test_a_pair_that_fits_refuses_nobody() -> None:
    answer = judged(Reading(target=TARGET, drafter=DRAFTER))
    assert (answer.drafter[:2], answer.refused, answer.stalled) == ((ConditionStatus.TRUE, "Compatible"), {}, None)


def test_nobody_who_was_measured_is_refused() -> None:
    wrong = replace(DRAFTER, hidden_size=5120)
    drafted = [one.digest for one in candidates() if one.speculative_tokens]
    assert set(judged(Reading(target=TARGET, drafter=wrong)).refused) == set(drafted)
    answer = judged(Reading(target=TARGET, drafter=wrong), proven=drafted)
    assert answer.refused == {}
    assert answer.drafter[0] is ConditionStatus.TRUE


def test_a_network_without_a_hub_refuses_nobody() -> None:
    nobody = Unread(cause=Cause.UNREACHABLE, message="no route")
    for found in (
        Reading(target=nobody, drafter=nobody),
        Reading(target=TARGET, drafter=nobody),
        Reading(target=TARGET),
        None,
    ):
        answer = judged(found)
        assert (answer.drafter[:2], answer.refused, answer.stalled) == (
            (ConditionStatus.UNKNOWN, "NotRead"),
            {},
            None,
        )


def test_the_secret_is_named_where_the_hub_refuses() -> None:
    refused = Unread(cause=Cause.REFUSED, message="hf://org/target@main answers 401")
    policy = replace(POLICY, token_secret=("hub", "token"))
    answer = judged(Reading(target=refused), policy)
    assert answer.stalled is not None
    assert "key token of Secret hub" in answer.stalled[1]
    without = judged(Reading(target=refused))
    assert without.stalled is not None
    assert "model.tokenSecretRef names no Secret" in without.stalled[1]


def test_only_products_that_nodes_have_count_where_they_are_known() -> None:
    large = read_config(LLAMA_70B | {"num_hidden_layers": 48, "max_position_embeddings": 2048}, source="x")
    anywhere = judged(Reading(target=large), replace(POLICY, has_drafter=False))
    here = judged(
        Reading(target=large), replace(POLICY, has_drafter=False, products=frozenset({"NVIDIA-H100-80GB-HBM3"}))
    )
    assert anywhere.refused == {}, "an H100 NVL holds it"
    assert {reason for reason, _ in here.refused.values()} == {"DoesNotFit"}


def test_every_reason_is_documented() -> None:
    tiny = read_config(TINY_TARGET, source="x")
    answers = [
        judged(None),
        judged(Reading(target=TARGET)),
        judged(Reading(target=TARGET, drafter=DRAFTER)),
        judged(Reading(target=TARGET, drafter=read_config(TINY_DRAFTER, source="x"))),
        judged(Reading(target=tiny, drafter=DRAFTER), replace(POLICY, fails_when_incompatible=True)),
        judged(Reading(target=Unread(cause=Cause.MISSING, message=""))),
        judged(Reading(target=TARGET, drafter=Unread(cause=Cause.REFUSED, message=""))),
    ]
    for answer in answers:
        told = [answer.drafter[1], *(reason for reason, _ in answer.refused.values())]
        told += [answer.stalled[0]] if answer.stalled is not None else []
        assert set(told) <= set(REASONS)
