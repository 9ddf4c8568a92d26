"""The chart: what it renders, which values it refuses, and that the operator gets the rights it uses and no others."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from specmodel.app.options import add_arguments, read_options
from tests.e2e.rehearsal import CHART, OPERATOR_NAMESPACE
from tests.e2e.world import World

#: Every right of the operator, and what it does with it.
RIGHTS: dict[tuple[str, str], tuple[set[str], str]] = {
    ("specmodel.dev", "speculativemodels"): ({"get", "list", "watch"}, "reads models, never writes a user's spec"),
    ("specmodel.dev", "benchmarkruns"): (
        {"get", "list", "watch", "create", "patch"},
        "applies runs; never deletes one",
    ),
    ("specmodel.dev", "speculativemodels/status"): ({"patch"}, "reports"),
    ("specmodel.dev", "benchmarkruns/status"): ({"patch"}, "reports; and grants the Job the same on its own run"),
    ("specmodel.dev", "speculativemodels/finalizers"): ({"update"}, "children that block their owner's deletion"),
    ("specmodel.dev", "benchmarkruns/finalizers"): ({"update"}, "children that block their owner's deletion"),
    ("apps", "deployments"): ({"get", "list", "watch", "create", "patch", "delete"}, "candidates' servers"),
    ("batch", "jobs"): ({"get", "list", "watch", "create", "patch", "delete"}, "benchmark Jobs"),
    ("", "services"): ({"get", "list", "create", "patch", "delete"}, "the stable Service and a candidate's own"),
    ("", "serviceaccounts"): ({"get", "list", "create", "patch", "delete"}, "the account of a benchmark Job"),
    ("rbac.authorization.k8s.io", "roles"): ({"get", "list", "create", "patch", "delete"}, "its role"),
    ("rbac.authorization.k8s.io", "rolebindings"): ({"get", "list", "create", "patch", "delete"}, "its binding"),
    ("", "pods"): ({"get", "list", "watch", "patch"}, "reads states and GPU requests; notes that a pod answered"),
    ("", "pods/log"): ({"get"}, "quotes why an engine ended; left out with rbac.engineLogs=false"),
    ("", "configmaps"): ({"get"}, "reads the prompts that a model names"),
    ("discovery.k8s.io", "endpointslices"): ({"list", "watch"}, "sees where traffic goes before the old pods leave"),
    ("events.k8s.io", "events"): ({"create"}, "tells what happened"),
    ("", "nodes"): ({"list", "watch"}, "counts free GPUs"),
}
EVERYTHING = (
    "--set", "replicas=2", "--set", "podDisruptionBudget.enabled=true", "--set", "serviceMonitor.enabled=true",
    "--set", "networkPolicy.enabled=true", "--set", "gpu.products={NVIDIA-H100-NVL,NVIDIA-H100-PCIe}",
    "--set", "engine.image=registry.example/vllm:v0.25.1", "--set", "imagePullSecrets[0].name=pull",
    "--set", "extraEnv[0].name=HTTPS_PROXY", "--set", "extraEnv[0].value=http://proxy:3128",
    "--set", "priorityClassName=system-cluster-critical", "--set", "podAnnotations.team=ml",
)  # fmt: skip


def try_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = os.environ.get("HELM") or shutil.which("helm")
    if not program:
        pytest.skip("helm is not on PATH and HELM does not name it")
    return subprocess.run([program, *arguments], text=True, capture_output=True, timeout=60, check=False)


def render(*settings: str) -> list[dict[str, Any]]:
    done = try_helm("template", "specmodel", str(CHART), "--namespace", OPERATOR_NAMESPACE, *settings)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def find(manifests: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    found = [each for each in manifests if each["kind"] == kind and name in each["metadata"]["name"]]
    assert found, f"no {kind} {name}"
    return found[0]


def rights_of(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """Return verbs by (group, resource)."""
    rights: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                rights.setdefault((group, resource), set()).update(rule["verbs"])
    return rights


def container_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    container: dict[str, Any] = find(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return container


def test_lint_has_nothing_to_say() -> None:
    done = try_helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


def test_the_operator_gets_the_rights_that_it_uses_and_no_others() -> None:
    assert rights_of(find(render(), "ClusterRole")) == {key: verbs for key, (verbs, _) in RIGHTS.items()}


def test_in_its_namespaces_the_operator_has_no_right_beyond_them() -> None:
    manifests = render(
        "--set", "scope=namespaced", "--set", "watchNamespaces={models,more}", "--set", "rbac.aggregate=false"
    )
    assert [each for each in manifests if each["kind"] in {"ClusterRole", "ClusterRoleBinding"}] == []
    expected = {key: verbs for key, (verbs, _) in RIGHTS.items() if key != ("", "nodes")}
    roles = [each for each in manifests if each["kind"] == "Role" and "lease" not in each["metadata"]["name"]]
    assert [role["metadata"]["namespace"] for role in roles] == ["models", "more"]
    assert all(rights_of(role) == expected for role in roles)
    arguments = container_of(manifests)["args"]
    assert "--namespace=models" in arguments
    assert "--namespace=more" in arguments


def test_namespaced_without_a_list_watches_the_release_s_own_namespace() -> None:
    assert f"--namespace={OPERATOR_NAMESPACE}" in container_of(render("--set", "scope=namespaced"))["args"]


def test_the_lease_may_be_touched_in_the_release_s_namespace_only_and_by_name() -> None:
    role = find(render(), "Role", "lease")
    assert role["metadata"]["namespace"] == OPERATOR_NAMESPACE
    named = [rule for rule in role["rules"] if "resourceNames" in rule]
    assert named == [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["specmodel"],
            "verbs": ["get", "update"],
        }
    ]
    assert "--lease-name=specmodel" in container_of(render())["args"]


def test_the_pod_is_as_restricted_as_kubernetes_can_ask_for() -> None:
    pod = find(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_values_reach_the_operator_s_command_line() -> None:
    arguments = container_of(render(*EVERYTHING))["args"]
    assert arguments[0] == "operator"
    assert "--gpu-products=NVIDIA-H100-NVL,NVIDIA-H100-PCIe" in arguments
    assert "--engine-image=registry.example/vllm:v0.25.1" in arguments
    assert "--benchmark-image=specmodel/benchmark:0.1.0" in arguments


def test_the_operator_takes_every_argument_that_the_chart_gives() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, {})
    parsed = read_options(parser.parse_args(container_of(render(*EVERYTHING))["args"][1:]))
    assert parsed.settings.gpu_products == ("NVIDIA-H100-NVL", "NVIDIA-H100-PCIe")
    assert parsed.metrics_port == 8081


def test_crds_are_kept_when_the_release_is_removed() -> None:
    for name in ("speculativemodels", "benchmarkruns"):
        crd = find(render(), "CustomResourceDefinition", name)
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_crds_may_come_another_way() -> None:
    manifests = render("--set", "crds.install=false")
    assert [each for each in manifests if each["kind"] == "CustomResourceDefinition"] == []


def test_selectors_never_name_the_instance() -> None:
    manifests = render(*EVERYTHING)
    deployment = find(manifests, "Deployment")["spec"]
    selected = deployment["selector"]["matchLabels"]
    assert "app.kubernetes.io/instance" not in selected
    assert selected.items() <= deployment["template"]["metadata"]["labels"].items()
    assert find(manifests, "Service")["spec"]["selector"] == selected


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("scope=galaxy", "scope"),
        ("replica=2", "replica"),
        ("logLevel=loud", "logLevel"),
        ("gpu.products={NVIDIA-H100-80GB-HBM3-SHARED}", "products"),
        ("ports.health=80", "health"),
        ("podDisruptionBudget.enabled=true", "set replicas: 2"),
    ],
)
def test_a_wrong_value_is_refused_by_name(setting: str, words: str) -> None:
    done = try_helm("template", "specmodel", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert words in done.stderr


def test_the_api_server_takes_every_object_of_the_chart(cluster: World) -> None:
    without = ("--set", "crds.install=false", "--set", "serviceMonitor.enabled=false")
    manifests = render(*EVERYTHING, *without)
    for manifest in manifests:
        manifest["metadata"]["name"] = f"dry-{manifest['metadata']['name']}"
        if "namespace" in manifest["metadata"]:
            manifest["metadata"]["namespace"] = "default"
    done = cluster.try_kubectl(
        "create", "--dry-run=server", "--validate=strict", "-f", "-", input=yaml.safe_dump_all(manifests)
    )
    assert done.returncode == 0, done.stderr


def test_the_running_operator_may_not_do_what_it_does_not_do(operator: World) -> None:
    account = f"system:serviceaccount:{OPERATOR_NAMESPACE}:specmodel"
    roles = "roles.rbac.authorization.k8s.io"
    for verb, resource in [
        ("get", "secrets"), ("create", "pods"), ("delete", "pods"), ("create", "pods/exec"),
        ("delete", "benchmarkruns.specmodel.dev"), ("update", "speculativemodels.specmodel.dev"),
        ("patch", "nodes"), ("escalate", roles), ("bind", roles), ("create", f"cluster{roles}"),
    ]:  # fmt: skip
        kind, _, subresource = resource.partition("/")  # kubectl takes `pods/log` for a pod named log
        asked = [verb, kind, *([f"--subresource={subresource}"] if subresource else [])]
        done = operator.try_kubectl("auth", "can-i", *asked, "--as", account, "--namespace", "default")
        assert done.stdout.strip() == "no", f"{verb} {resource}"
