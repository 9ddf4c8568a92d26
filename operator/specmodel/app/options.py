"""What the command line and the environment say: every flag may also be given as SPECMODEL_<FLAG>."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specmodel.domain.settings import Settings

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
LOG_LEVELS = ("debug", "info", "warning", "error")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How this process runs. `namespaces` empty: all of them."""

    settings: Settings
    namespaces: tuple[str, ...]
    lease_name: str
    lease_namespace: str
    has_leader_election: bool
    log_level: str
    health_port: int
    metrics_port: int
    #: The address that health and metrics are served on.
    bind: str


def add_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str] | None = None) -> None:
    """Add the operator's flags to a parser; defaults come from the environment, then from the release."""
    env = os.environ if environment is None else environment
    release = Settings()

    def default(flag: str, fallback: str) -> str:
        return env.get(f"SPECMODEL_{flag.upper().replace('-', '_')}", "") or fallback

    text = parser.add_argument
    text("--engine-image", default=default("engine-image", release.engine_image), help="vLLM image where none is named")
    text("--benchmark-image", default=default("benchmark-image", release.benchmark_image), help="image of the Jobs")
    text(
        "--image-pull-policy",
        choices=PULL_POLICIES,
        default=default("image-pull-policy", release.image_pull_policy),
        help="of every container that the operator makes",
    )
    text("--gpu-resource", default=default("gpu-resource", release.gpu_resource), help="extended resource of the GPUs")
    text(
        "--gpu-products",
        default=default("gpu-products", ",".join(release.gpu_products)),
        help="exact values of label nvidia.com/gpu.product, separated by commas",
    )
    text(
        "--namespace",
        action="append",
        default=None,
        help="watch only this namespace (may be repeated); free GPUs are then not known. Default: all namespaces",
    )
    text("--lease-name", default=default("lease-name", "specmodel-operator"), help="name of the leader's Lease")
    text("--lease-namespace", default=default("lease-namespace", _own_namespace(env)), help="where that Lease is")
    text(
        "--no-leader-election",
        action="store_true",
        default=default("no-leader-election", "").lower() in ("1", "true", "yes"),
        help="run without a Lease: only where nothing can start a second operator",
    )
    text("--log-level", choices=LOG_LEVELS, default=default("log-level", "info"), help="of the operator's own lines")
    text("--health-port", type=_port, default=default("health-port", "8080"), help="/healthz and /readyz")
    text("--metrics-port", type=_port, default=default("metrics-port", "8081"), help="/metrics")
    text("--bind", default=default("bind", "0.0.0.0"), help="address of both ports")  # noqa: S104 — the kubelet asks from outside the pod
    parser.set_defaults(environment_namespaces=env.get("SPECMODEL_NAMESPACE", ""))


def read_options(arguments: argparse.Namespace) -> Options:
    """Return the options that parsed arguments mean."""
    given: Sequence[str] = arguments.namespace or _split(arguments.environment_namespaces)
    return Options(
        settings=Settings(
            engine_image=arguments.engine_image,
            benchmark_image=arguments.benchmark_image,
            image_pull_policy=arguments.image_pull_policy,
            gpu_resource=arguments.gpu_resource,
            gpu_products=tuple(_split(arguments.gpu_products)),
        ),
        namespaces=tuple(sorted(set(given))),
        lease_name=arguments.lease_name,
        lease_namespace=arguments.lease_namespace,
        has_leader_election=not arguments.no_leader_election,
        log_level=arguments.log_level,
        health_port=arguments.health_port,
        metrics_port=arguments.metrics_port,
        bind=arguments.bind,
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _port(text: str) -> int:
    number = int(text) if text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 1 to 65535, or 0 for any free one")
    return number


def _own_namespace(environment: Mapping[str, str]) -> str:
    if environment.get("POD_NAMESPACE"):
        return environment["POD_NAMESPACE"]
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
