"""Which loops an event rings, and what of a node matters."""

from __future__ import annotations

import copy
from typing import Any

import kopf
import pytest

from specmodel.api import labels
from specmodel.app.bells import CHILDREN, Bells, watch_settings
from specmodel.app.loops import Kind, Work
from specmodel.reconcile.action import Key


@pytest.fixture
def rung() -> list[str]:
    return []


@pytest.fixture
def bells(rung: list[str]) -> Bells:
    def ring(work: Work) -> None:
        rung.append(f"{work.kind}/{work.key.namespace}/{work.key.name}")

    return Bells(ring=ring, forget=lambda _key: None, on_event=lambda: None, gpu_resource="nvidia.com/gpu")


def thing(name: str, *, of_model: str = "", owner: tuple[str, str] | None = None) -> dict[str, Any]:
    own = {labels.MODEL: of_model} if of_model else {}
    owners = [{"kind": owner[0], "name": owner[1]}] if owner else []
    return {"metadata": {"name": name, "namespace": "shop", "labels": own, "ownerReferences": owners}}


NODE: dict[str, Any] = {
    "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-NVL"}},
    "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
}


def test_a_model_rings_its_own_loop_also_when_it_is_deleted(bells: Bells, rung: list[str]) -> None:
    bells.model(thing("m"), is_deleted=False)
    bells.model(thing("m"), is_deleted=True)
    assert rung == ["SpeculativeModel/shop/m"] * 2


def test_a_child_rings_its_model(bells: Bells, rung: list[str]) -> None:
    bells.child(thing("m-1234-abc", of_model="m"))
    assert rung == ["SpeculativeModel/shop/m"]


def test_a_run_of_a_model_rings_the_model_and_a_hand_made_one_itself(bells: Bells, rung: list[str]) -> None:
    bells.run(thing("m-1234", of_model="m", owner=(labels.MODEL_KIND, "m")), is_deleted=False)
    bells.run(thing("by-hand"), is_deleted=False)
    assert rung == ["SpeculativeModel/shop/m", "BenchmarkRun/shop/by-hand"]


def test_a_run_that_merely_carries_a_models_label_is_a_hand_made_one(bells: Bells, rung: list[str]) -> None:
    bells.run(thing("claims", of_model="m"), is_deleted=False)
    assert rung == ["BenchmarkRun/shop/claims"]


def test_the_job_of_a_hand_made_run_rings_the_run(bells: Bells, rung: list[str]) -> None:
    bells.child(thing("by-hand", owner=(labels.RUN_KIND, "by-hand")))
    bells.child(thing("of-somebody-else"))
    assert rung == ["BenchmarkRun/shop/by-hand"]


def test_a_node_rings_every_model_when_its_gpus_change_and_only_then(bells: Bells, rung: list[str]) -> None:
    bells.all_of([Work(kind=Kind.MODEL, key=Key(namespace="shop", name=name)) for name in ("a", "b")])
    rung.clear()
    bells.node(NODE, is_deleted=False)
    assert sorted(rung) == ["SpeculativeModel/shop/a", "SpeculativeModel/shop/b"]
    rung.clear()
    heartbeat = copy.deepcopy(NODE)
    heartbeat["status"]["images"] = ["x"]
    bells.node(heartbeat, is_deleted=False)
    assert not rung
    fewer = copy.deepcopy(NODE)
    fewer["status"]["allocatable"] = {"nvidia.com/gpu": "7"}
    bells.node(fewer, is_deleted=False)
    assert len(rung) == 2
    bells.node(fewer, is_deleted=True)
    assert len(rung) == 4


def test_a_node_without_gpus_rings_nobody(bells: Bells, rung: list[str]) -> None:
    bells.all_of([Work(kind=Kind.MODEL, key=Key(namespace="shop", name="a"))])
    rung.clear()
    bells.node({"metadata": {"name": "cpu"}, "status": {}}, is_deleted=False)
    assert not rung


def test_kopf_is_told_to_write_nothing_and_to_notice_dead_streams() -> None:
    settings = watch_settings()
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert settings.watching.server_timeout is not None
    assert settings.watching.inactivity_timeout <= 75


def test_children_are_filtered_by_the_api_server() -> None:
    settings = watch_settings()
    for group, version, plural, selector in CHILDREN:
        resource = kopf.Resource(group=group, version=version, plural=plural, namespaced=True)
        assert settings.watching.label_selectors.collect(resource) == [selector]
    models = kopf.Resource(group=labels.GROUP, version=labels.VERSION, plural=labels.MODEL_PLURAL, namespaced=True)
    assert settings.watching.label_selectors.collect(models) == []
