"""A PATCH is sent only when it would change something: fields compared by meaning, and by whose they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from specmodel.cluster.difference import first_difference

MANIFEST: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "m-1", "namespace": "shop", "labels": {"a": "b"}},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "enableServiceLinks": False,
                "containers": [
                    {
                        "name": "engine",
                        "args": ["--port", "8000"],
                        "env": [{"name": "EMPTY", "value": ""}, {"name": "HOME", "value": "/home/engine"}],
                        "ports": [{"containerPort": 8000}],
                        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi", "nvidia.com/gpu": 1}},
                    }
                ],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "0.5Gi"}}],
            }
        },
    },
}
#: As an API server stores it: canonical quantities, defaults, an empty value left out, fields of others.
LIVE: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "m-1",
        "namespace": "shop",
        "uid": "1",
        "resourceVersion": "7",
        "labels": {"a": "b", "of-another": "tool"},
        "managedFields": [
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "fieldsV1": {}},
            {
                "manager": "specmodel-operator",
                "operation": "Apply",
                "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:a": {}}},
                    "f:spec": {
                        "f:replicas": {},
                        "f:template": {
                            "f:spec": {
                                "f:enableServiceLinks": {},
                                "f:containers": {
                                    'k:{"name":"engine"}': {
                                        ".": {},
                                        "f:name": {},
                                        "f:args": {},
                                        "f:env": {
                                            'k:{"name":"EMPTY"}': {".": {}, "f:name": {}, "f:value": {}},
                                            'k:{"name":"HOME"}': {".": {}, "f:name": {}, "f:value": {}},
                                        },
                                        "f:ports": {
                                            'k:{"containerPort":8000,"protocol":"TCP"}': {
                                                ".": {},
                                                "f:containerPort": {},
                                            }
                                        },
                                        "f:resources": {
                                            "f:limits": {"f:cpu": {}, "f:memory": {}, "f:nvidia.com/gpu": {}}
                                        },
                                    }
                                },
                                "f:volumes": {
                                    'k:{"name":"shm"}': {
                                        ".": {},
                                        "f:name": {},
                                        "f:emptyDir": {"f:medium": {}, "f:sizeLimit": {}},
                                    }
                                },
                            }
                        },
                    },
                },
            },
        ],
    },
    "spec": {
        "replicas": 2,
        "revisionHistoryLimit": 10,
        "template": {
            "spec": {
                "enableServiceLinks": False,
                "dnsPolicy": "ClusterFirst",
                "containers": [
                    {
                        "name": "engine",
                        "args": ["--port", "8000"],
                        "env": [{"name": "EMPTY"}, {"name": "HOME", "value": "/home/engine"}],
                        "ports": [{"containerPort": 8000, "protocol": "TCP"}],
                        "resources": {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}},
                        "imagePullPolicy": "IfNotPresent",
                    }
                ],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}}],
            }
        },
    },
    "status": {"replicas": 2},
}


def container(value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = value["spec"]["template"]["spec"]["containers"][0]
    return found


def owned(live: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = live["metadata"]["managedFields"][1]["fieldsV1"]
    return fields


def test_an_object_as_the_server_stored_it_needs_no_write() -> None:
    assert first_difference(MANIFEST, LIVE) is None


@pytest.mark.parametrize(("cpu", "same"), [("1", True), ("1000m", True), (1, True), ("1001m", False), ("2", False)])
def test_quantities_are_compared_by_what_they_mean(cpu: str | int, same: bool) -> None:
    manifest = copy.deepcopy(MANIFEST)
    container(manifest)["resources"]["limits"]["cpu"] = cpu
    assert (first_difference(manifest, LIVE) is None) is same


def test_other_strings_are_no_quantities() -> None:
    manifest = copy.deepcopy(MANIFEST)
    container(manifest)["env"][1]["value"] = "1000m"
    live = copy.deepcopy(LIVE)
    container(live)["env"][1]["value"] = "1"
    assert "value" in str(first_difference(manifest, live))


def test_the_first_difference_names_the_field_and_both_values() -> None:
    live = copy.deepcopy(LIVE)
    live["spec"]["replicas"] = 3
    assert first_difference(MANIFEST, live) == "spec.replicas is 3, wanted 2"


def test_a_sidecar_that_others_inject_needs_no_write() -> None:
    live = copy.deepcopy(LIVE)
    live["spec"]["template"]["spec"]["containers"].insert(0, {"name": "mesh", "image": "proxy"})
    container_env = live["spec"]["template"]["spec"]["containers"][1]["env"]
    container_env.append({"name": "INJECTED", "value": "1"})
    assert first_difference(MANIFEST, live) is None


def test_the_order_of_arguments_matters() -> None:
    live = copy.deepcopy(LIVE)
    container(live)["args"] = ["8000", "--port"]
    assert "args[0]" in str(first_difference(MANIFEST, live))


def test_a_field_that_is_no_longer_wanted_needs_a_write_that_removes_it() -> None:
    manifest = copy.deepcopy(MANIFEST)
    del manifest["metadata"]["labels"]
    assert first_difference(manifest, LIVE) == "metadata is no longer wanted"


def test_a_list_element_that_is_no_longer_wanted_needs_a_write_that_removes_it() -> None:
    manifest = copy.deepcopy(MANIFEST)
    del container(manifest)["env"][1]
    assert "HOME" in str(first_difference(manifest, LIVE))


def test_a_field_that_someone_else_owns_with_our_value_is_claimed() -> None:
    live = copy.deepcopy(LIVE)
    del owned(live)["f:spec"]["f:replicas"]
    assert first_difference(MANIFEST, live) == "spec.replicas is not ours yet"


def test_an_object_that_was_never_applied_by_us_is_claimed() -> None:
    live = copy.deepcopy(LIVE)
    live["metadata"]["managedFields"] = []
    assert first_difference(MANIFEST, live) is not None


def test_fields_of_other_managers_are_not_ours_to_remove() -> None:
    live = copy.deepcopy(LIVE)
    live["metadata"]["managedFields"].append(
        {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {"f:of-another": {}}}}}
    )
    assert first_difference(MANIFEST, live) is None


def test_a_status_is_compared_with_what_we_own_of_the_status() -> None:
    manifest = {"apiVersion": "x", "kind": "X", "metadata": {"name": "x", "uid": "1"}, "status": {"phase": "Ready"}}
    entry = {
        "manager": "specmodel-operator",
        "operation": "Apply",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:phase": {}}},
    }
    live = {"metadata": {"name": "x", "uid": "1", "managedFields": [entry]}, "status": {"phase": "Ready", "cells": []}}
    assert first_difference(manifest, live, subresource="status") is None
    entry["fieldsV1"] = {"f:status": {"f:phase": {}, "f:message": {}}}
    assert first_difference(manifest, live, subresource="status") == "status.message is no longer wanted"


@pytest.mark.parametrize("managed", [None, "x", [None], [{"manager": 1}], [{"manager": "specmodel-operator"}]])
def test_odd_managed_fields_do_no_harm(managed: object) -> None:
    live = copy.deepcopy(LIVE)
    live["metadata"]["managedFields"] = managed
    assert first_difference(MANIFEST, live) is not None
