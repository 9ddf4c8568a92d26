"""One way to serve a model, and the digests that name it.

`digest` covers only what changes tokens, speed or memory: measurements are kept under it. `revision` covers, beside
that, what else a user chose about the pods (placement, names): Deployments are named by it. Neither covers how this
release renders a pod, so that upgrading the operator restarts nothing.

    spec ──enumerate_candidates──► Candidate ──digest──► measurements
                                            └─revision─► Deployment `<model>-<revision>`
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from specmodel.api.labels import DIGEST_DIGITS
from specmodel.api.model import DrafterMethod, SpeculativeModel, Toleration, Weights
from specmodel.domain.settings import Settings

#: Version of the digests' own definition: raised when the canonical form changes, which re-measures everything.
DIGEST_VERSION = 1


def digest_of(value: object) -> str:
    """Return the first 10 hex digits of SHA-256 over canonical JSON (sorted keys, no spaces) and the digest version."""
    text = json.dumps([DIGEST_VERSION, value], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Shape:
    """What people call a candidate: GPUs per replica (tensor parallel size), speculative tokens, weights."""

    gpus_per_replica: int
    speculative_tokens: int
    weights: str

    def __str__(self) -> str:
        gpus = f"{self.gpus_per_replica} GPU" + ("s" if self.gpus_per_replica != 1 else "")
        speculation = f"γ={self.speculative_tokens}" if self.speculative_tokens else "no drafter"
        precision = "" if self.weights == Weights.NONE.value else f" {self.weights}"
        return f"{gpus}{precision} {speculation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a user chose about pods that changes neither tokens, speed nor memory."""

    served_name: str
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[tuple[str, str | int], ...], ...] = ()
    runtime_class_name: str | None = None
    priority_class_name: str | None = None
    token_secret: tuple[str, str] | None = None
    startup_timeout_seconds: int = 1800
    drain_seconds: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to serve: everything that a server's pods are rendered from."""

    model_uri: str
    model_revision: str
    engine_image: str
    engine_version: str
    weights: str
    kv_cache: str
    speculative_tokens: int
    drafter_uri: str | None
    drafter_revision: str | None
    gpus_per_replica: int
    gpu_products: tuple[str, ...]
    max_num_seqs: int
    extra_args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cpu: str | None = None
    memory: str | None = None
    placement: Placement

    @property
    def shape(self) -> Shape:
        """The candidate's name for people."""
        return Shape(
            gpus_per_replica=self.gpus_per_replica,
            speculative_tokens=self.speculative_tokens,
            weights=self.weights,
        )

    @property
    def digest(self) -> str:
        """10 hex digits over what changes tokens, speed or memory."""
        value = asdict(self)
        del value["placement"]
        value["gpu_products"] = sorted(self.gpu_products)
        value["env"] = sorted(self.env)
        return digest_of(value)

    @property
    def revision(self) -> str:
        """10 hex digits over everything that a user chose about the pods."""
        return digest_of([self.digest, asdict(self.placement)])

    def to_json(self) -> str:
        """Return the candidate as canonical JSON, for the annotation on its Deployment."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


def candidate_from_json(text: str) -> Candidate:
    """Return the candidate that `Candidate.to_json` wrote.

    Raises `ValueError` when the text is not one: the annotation can be edited by anyone with the right.
    """
    try:
        value: dict[str, Any] = json.loads(text)
        placement = value.pop("placement")
        placement["node_selector"] = tuple((k, v) for k, v in placement["node_selector"])
        placement["tolerations"] = tuple(tuple((k, v) for k, v in t) for t in placement["tolerations"])
        if placement["token_secret"] is not None:
            placement["token_secret"] = tuple(placement["token_secret"])
        value["gpu_products"] = tuple(value["gpu_products"])
        value["extra_args"] = tuple(value["extra_args"])
        value["env"] = tuple((k, v) for k, v in value["env"])
        return Candidate(placement=Placement(**placement), **value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"not a candidate: {error!r}"
        raise ValueError(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine image and its version, resolved from the spec, the incumbent or the operator's settings."""

    image: str
    version: str


def enumerate_candidates(model: SpeculativeModel, engine: EngineChoice, settings: Settings) -> tuple[Candidate, ...]:
    """Return every candidate that the spec allows, in a stable order: fewest GPUs, then weights, then γ.

    γ = 0 (no drafter) is always among them: it is the reference.
    """
    spec = model.spec
    gammas = [0]
    if spec.drafter is not None and spec.drafter.method is not DrafterMethod.NONE:
        gammas += sorted(set(spec.drafter.speculative_tokens))
    products = tuple(sorted(set(spec.hardware.gpu_products or settings.gpu_products)))
    placement = Placement(
        served_name=spec.model.served_name or model.name,
        node_selector=tuple(sorted(spec.hardware.node_selector.items())),
        tolerations=tuple(_toleration(t) for t in spec.hardware.tolerations),
        runtime_class_name=spec.hardware.runtime_class_name,
        priority_class_name=spec.hardware.priority_class_name,
        token_secret=(spec.model.token_secret_ref.name, spec.model.token_secret_ref.key)
        if spec.model.token_secret_ref
        else None,
        startup_timeout_seconds=spec.engine.startup_timeout_seconds,
        drain_seconds=spec.serving.rollout.drain_seconds,
    )
    return tuple(
        Candidate(
            model_uri=spec.model.uri,
            model_revision=spec.model.revision,
            engine_image=engine.image,
            engine_version=engine.version,
            weights=weights.value,
            kv_cache=spec.quantization.kv_cache.value,
            speculative_tokens=gamma,
            drafter_uri=spec.drafter.uri if spec.drafter and gamma else None,
            drafter_revision=spec.drafter.revision if spec.drafter and gamma else None,
            gpus_per_replica=gpus,
            gpu_products=products,
            max_num_seqs=max(64, 2 * max(spec.workload.concurrency)),
            extra_args=tuple(spec.engine.extra_args),
            env=tuple((e.name, e.value) for e in spec.engine.env),
            cpu=spec.engine.resources.cpu,
            memory=spec.engine.resources.memory,
            placement=placement,
        )
        for gpus in sorted(set(spec.hardware.gpus_per_replica))
        for weights in sorted(set(spec.quantization.weights))
        for gamma in gammas
    )


def _toleration(toleration: Toleration) -> tuple[tuple[str, str | int], ...]:
    wire = toleration.to_wire()
    return tuple(sorted((k, v) for k, v in wire.items() if isinstance(v, str | int)))
