"""The processes of the node: their command lines and their configuration, as values. It starts nothing.

What is unusual here is what makes a node run inside a container or a small virtual machine: no capability to lower an
OOM score, no AppArmor, no loadable modules, cgroup v1 or v2, and no systemd.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.paths import NODE, Paths
from tests.cluster.state import State
from tests.cluster.versions import TOOLS

SANDBOX_IMAGE = "localhost/specmodel-pause:local"
AUDIT_MEGABYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One process. `after` names what must answer before it starts: `api` or nothing."""

    name: str
    command: tuple[str, ...]
    after: str = ""


def components(paths: Paths, state: State, program: Callable[[str], Path]) -> tuple[Component, ...]:
    """Return the processes in the order of their start. `program` gives the path of a built program."""
    pki, addresses = paths.pki, state.addresses

    def of(name: str, *arguments: str, label: str = "", after: str = "") -> Component:
        return Component(name=label or name, command=(str(program(name)), *arguments), after=after)

    return (
        of(
            "etcd",
            f"--data-dir={paths.data}/etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
        ),
        of("containerd", "--config", f"{paths.run}/containerd.toml"),
        of(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={addresses.node}",
            "--secure-port=6443",
            f"--service-cluster-ip-range={addresses.services}",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            # The default asks DNS for the node's name first: exec and logs would wait for that answer.
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={pki}/service-accounts.pub",
            f"--service-account-signing-key-file={pki}/service-accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--audit-policy-file={paths.run}/audit.json",
            f"--audit-log-path={paths.audit_log}",
            f"--audit-log-maxsize={AUDIT_MEGABYTES}",
            label="apiserver",
        ),
        of(
            "kube-controller-manager",
            f"--kubeconfig={pki}/controller-manager.kubeconfig",
            f"--service-account-private-key-file={pki}/service-accounts.key",
            f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials=true",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--leader-elect=false",
            label="controller-manager",
            after="api",
        ),
        of(
            "kube-scheduler",
            f"--kubeconfig={pki}/scheduler.kubeconfig",
            "--leader-elect=false",
            label="scheduler",
            after="api",
        ),
        of(
            "kubelet",
            f"--kubeconfig={pki}/node.kubeconfig",
            f"--config={paths.run}/kubelet.json",
            f"--hostname-override={NODE}",
            f"--node-ip={addresses.node}",
            after="api",
        ),
        of(
            "kube-proxy",
            f"--kubeconfig={pki}/proxy.kubeconfig",
            f"--hostname-override={NODE}",
            f"--cluster-cidr={addresses.pods}",
            "--proxy-mode=iptables",
            # Zero leaves conntrack's settings alone: they cannot be written from here.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            label="proxy",
            after="api",
        ),
        of("coredns", "-conf", f"{paths.run}/Corefile", after="api"),
        of(
            "kwok",
            f"--kubeconfig={paths.kubeconfig}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--node-ip={addresses.node}",
            *(f"--config={program(name)}" for name, _, _ in TOOLS.files if name.startswith("kwok-")),
            after="api",
        ),
    )


def configuration(paths: Paths, state: State, snapshotter: str) -> dict[str, str]:
    """Return the configuration files of the node: name in the run folder → text."""
    return {
        "containerd.toml": _containerd(paths, snapshotter),
        "cni/10-specmodel.conflist": json.dumps(_cni(paths, state)),
        "kubelet.json": json.dumps(_kubelet(paths, state)),
        "audit.json": json.dumps(_AUDIT_POLICY),
        "Corefile": _corefile(paths),
        "resolv.conf": f"nameserver {state.addresses.dns}\n",
    }


_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def _containerd(paths: Paths, snapshotter: str) -> str:
    """Return containerd's configuration.

    `restrict_oom_score_adj`: without it every sandbox fails where a process may not lower its OOM score.
    """
    return f"""\
version = 3
root = "{paths.data}/containerd"
state = "{paths.run}/containerd"

[grpc]
  address = "{paths.socket}"

[ttrpc]
  address = "{paths.socket}.ttrpc"

[plugins]
  [plugins."io.containerd.cri.v1.images"]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.cri.v1.images".pinned_images]
      sandbox = "{SANDBOX_IMAGE}"
  [plugins."io.containerd.cri.v1.runtime"]
    disable_apparmor = true
    enable_selinux = false
    restrict_oom_score_adj = true
    disable_hugetlb_controller = true
    tolerate_missing_hugetlb_controller = true
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
    [plugins."io.containerd.cri.v1.runtime".cni]
      bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
      conf_dir = "{paths.run}/cni"
  [plugins."io.containerd.internal.v1.opt"]
    path = "{paths.data}/opt"
"""


def _cni(paths: Paths, state: State) -> dict[str, object]:
    return {
        "cniVersion": "0.4.0",
        "name": "specmodel",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": f"{paths.data}/addresses",
                    "ranges": [[{"subnet": state.addresses.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _kubelet(paths: Paths, state: State) -> dict[str, object]:
    """Return the kubelet's configuration, the same for every minor in the table."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{paths.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": paths.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{paths.socket}",
        "clusterDNS": [state.addresses.dns],
        "clusterDomain": "cluster.local",
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "tlsCertFile": f"{paths.pki}/node.crt",
        "tlsPrivateKeyFile": f"{paths.pki}/node.key",
        "resolvConf": f"{paths.run}/resolv.conf",
        "serializeImagePulls": False,
    }


def _corefile(paths: Paths) -> str:
    """Return the DNS server's configuration: the cluster's own names and no others."""
    return f"""\
.:53 {{
  errors
  ready 127.0.0.1:8181
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {paths.kubeconfig}
    pods insecure
  }}
  cache 5
}}
"""


def cluster_objects(state: State) -> list[dict[str, object]]:
    """Return the objects that make the DNS process, which runs beside the kubelet, the cluster's DNS."""
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIP": state.addresses.dns, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-1",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [state.addresses.node], "conditions": {"ready": True}}],
        },
    ]
