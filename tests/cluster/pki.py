"""Certificates and kubeconfigs of one cluster: one authority, one certificate per component, by the `openssl` program.

Kubernetes takes the user from the CN and the groups from the O. Everything is made anew for each cluster and goes with
it; nothing here is a secret that outlives a test.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.faults import ClusterError
from tests.cluster.paths import NODE, Paths
from tests.cluster.state import State

DAYS = 365
SECONDS = 30
EXTENSIONS = """\
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature,keyEncipherment
extendedKeyUsage=serverAuth,clientAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""
"""What strict clients ask for; Python's are strict from 3.13 on."""


@dataclass(frozen=True, slots=True)
class _Subject:
    file: str
    distinguished_name: str
    names: str = ""


def make(paths: Paths, state: State) -> None:
    """Write keys, certificates and kubeconfigs. The administrator's kubeconfig holds all it needs and may be copied."""
    paths.pki.mkdir(mode=0o700, parents=True, exist_ok=True)
    addresses = state.addresses
    apiserver_names = (
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,"
        f"DNS:localhost,IP:127.0.0.1,IP:{addresses.first_service},IP:{addresses.node}"
    )
    subjects = (
        _Subject("apiserver", "/CN=kube-apiserver", apiserver_names),
        _Subject("admin", "/O=system:masters/CN=admin"),
        _Subject("controller-manager", "/CN=system:kube-controller-manager"),
        _Subject("scheduler", "/CN=system:kube-scheduler"),
        _Subject("proxy", "/CN=system:kube-proxy"),
        _Subject("node", f"/O=system:nodes/CN=system:node:{NODE}", f"DNS:{NODE},IP:{addresses.node}"),
    )
    pki = paths.pki
    _openssl(
        pki, "req", "-x509", *_new_key("ca"), "-days", str(DAYS), "-subj", f"/CN={paths.name}-ca", "-out", "ca.crt",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    for subject in subjects:
        _sign(pki, subject)
    _openssl(pki, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "service-accounts.key")
    _openssl(pki, "ec", "-in", "service-accounts.key", "-pubout", "-out", "service-accounts.pub")
    for subject in subjects[1:]:
        config = _kubeconfig(paths, state, subject.file)
        target = paths.kubeconfig if subject.file == "admin" else pki / f"{subject.file}.kubeconfig"
        target.write_text(json.dumps(config, indent=1), encoding="utf-8")
        target.chmod(0o600)


def _sign(pki: Path, subject: _Subject) -> None:
    name = subject.file
    _openssl(pki, "req", *_new_key(name), "-subj", subject.distinguished_name, "-out", f"{name}.csr")
    with tempfile.NamedTemporaryFile("w", dir=pki) as extensions:
        names = subject.names or f"DNS:{name}"
        extensions.write(f"subjectAltName={names}\n{EXTENSIONS}")
        extensions.flush()
        _openssl(
            pki, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", str(DAYS), "-out", f"{name}.crt", "-extfile", extensions.name,
        )  # fmt: skip
    (pki / f"{name}.csr").unlink()


def _new_key(name: str) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")


def _openssl(pki: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], cwd=pki, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if done.returncode != 0:
        raise ClusterError(f"openssl {' '.join(arguments)} failed\n{done.stderr.strip()}")


def _kubeconfig(paths: Paths, state: State, user: str) -> dict[str, object]:
    def content(file: str) -> str:
        return base64.b64encode((paths.pki / file).read_bytes()).decode()

    name = f"specmodel-{paths.name}"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {
                    "server": f"https://{state.addresses.node}:6443",
                    "certificate-authority-data": content("ca.crt"),
                },
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": content(f"{user}.crt"),
                    "client-key-data": content(f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
