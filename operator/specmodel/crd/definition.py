"""The two CustomResourceDefinitions: names, columns, subresources, and the schema of each.

The rule on `engine.extraArgs` is built here from the domain's list of reserved flags, so that the API server refuses
what the operator would refuse, in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from specmodel.api.benchmark import BenchmarkRunSpec, BenchmarkRunStatus
from specmodel.api.labels import GROUP, MODEL_KIND, MODEL_PLURAL, RUN_KIND, RUN_PLURAL, VERSION
from specmodel.api.model import NAME_RULE, SpeculativeModelSpec, SpeculativeModelStatus
from specmodel.api.rule import Rule
from specmodel.crd.schema import structural_schema
from specmodel.domain.engine import RESERVED_FLAGS

#: What etcd, kubectl's last-applied annotation and people can still carry.
SIZE_MAXIMUM_BYTES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One printer column of `kubectl get`; priority 1 appears with `-o wide`."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0

    def to_schema(self) -> dict[str, Any]:
        """Return the entry of `additionalPrinterColumns`."""
        wide = {"priority": self.priority} if self.priority else {}
        return {"name": self.name, "type": self.type, "description": self.description, "jsonPath": self.path} | wide


def _condition(kind: str, member: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{member}'


AGE = Column(name="Age", type="date", path=".metadata.creationTimestamp", description="Time since creation.")

MODEL_COLUMNS = (
    Column(name="Ready", type="string", path=_condition("Ready", "status"), description="Whether it serves as wanted."),
    Column(name="Reason", type="string", path=_condition("Ready", "reason"), description="See docs/conditions.md."),
    Column(name="GPUs", type="integer", path=".status.serving.gpusPerReplica", description="GPUs of each replica."),
    Column(
        name="Drafter tokens", type="integer", path=".status.serving.speculativeTokens",
        description="Tokens drafted per step; 0 without a drafter.",
    ),
    Column(
        name="Accept", type="integer", path=".status.serving.acceptanceRatePercent",
        description="Measured acceptance rate in percent.",
    ),
    Column(name="SLA", type="string", path=_condition("WithinSla", "status"), description="Whether the SLA is kept."),
    AGE,
    Column(name="Model", type="string", path=".spec.model.uri", description="The target model.", priority=1),
    Column(
        name="req/s", type="string", path=".status.serving.requestsPerSecond", priority=1,
        description="Measured requests per second of one replica at its capacity.",
    ),
    Column(
        name="P99", type="integer", path=".status.serving.p99Milliseconds", priority=1,
        description="Measured P99 of the end-to-end latency at capacity, in milliseconds.",
    ),
    Column(
        name="$/1M tokens", type="string", path=".status.serving.costPerMillionTokens", priority=1,
        description="Cost of a million output tokens at capacity.",
    ),
    Column(
        name="Revision", type="string", path=".status.serving.revision", priority=1,
        description="The revision that the Service selects.",
    ),
)  # fmt: skip

RUN_COLUMNS = (
    Column(name="Complete", type="string", path=_condition("Complete", "status"), description="Whether it is done."),
    Column(name="Cell", type="integer", path=".status.progress.cell", description="The cell being measured."),
    Column(name="Cells", type="integer", path=".status.progress.cells", description="Cells in all."),
    Column(name="GPUs", type="integer", path=".spec.candidate.gpusPerReplica", description="GPUs of the candidate."),
    Column(
        name="Drafter tokens", type="integer", path=".spec.candidate.speculativeTokens",
        description="Tokens that the candidate drafts per step.",
    ),
    Column(name="Weights", type="string", path=".spec.candidate.weights", description="Precision of the candidate."),
    Column(
        name="Engine", type="string", path=".status.provenance.engine",
        description="vllm, or replay for a rehearsal whose figures are no GPU's.",
    ),
    AGE,
    Column(name="Reason", type="string", path=_condition("Failed", "reason"), description="Why it failed.", priority=1),
    Column(name="Doing", type="string", path=".status.progress.doing", description="What goes on.", priority=1),
    Column(name="Target", type="string", path=".spec.target.url", description="The server under load.", priority=1),
)  # fmt: skip


def model_definition() -> dict[str, Any]:
    """Return the CRD of SpeculativeModel."""
    spec = structural_schema(SpeculativeModelSpec, with_defaults=True)
    items = spec["properties"]["engine"]["properties"]["extraArgs"]["items"]
    items["x-kubernetes-validations"] = [reserved_flag_rule()]
    scale = {
        "specReplicasPath": ".spec.serving.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return _definition(
        kind=MODEL_KIND,
        plural=MODEL_PLURAL,
        short_name="specm",
        columns=MODEL_COLUMNS,
        subresources={"status": {}, "scale": scale},
        description="A model served with speculative decoding in the cheapest measured way that keeps its SLA.",
        name_rule=NAME_RULE,
        spec=spec,
        status_type=SpeculativeModelStatus,
    )


def run_definition() -> dict[str, Any]:
    """Return the CRD of BenchmarkRun."""
    return _definition(
        kind=RUN_KIND,
        plural=RUN_PLURAL,
        short_name="bench",
        columns=RUN_COLUMNS,
        subresources={"status": {}},
        description="One measurement of one server: the cells that were asked for, and what came of them.",
        name_rule=None,
        spec=structural_schema(BenchmarkRunSpec, with_defaults=True),
        status_type=BenchmarkRunStatus,
    )


def reserved_flag_rule() -> dict[str, str]:
    """Return the rule that refuses a reserved flag, over one item of `engine.extraArgs`, naming what to use instead."""
    name = "self.split('=')[0].split('.')[0].replace('_', '-').replace('--no-', '--')"
    flag = f"(self.startsWith('-O') ? '-O' : {name})"  # vLLM reads -O3 as -O 3
    names = ", ".join(f"'{name}'" for name in RESERVED_FLAGS)
    pairs = ", ".join(f"'{name}': '{instead}'" for name, instead in _quoted().items())
    return {
        "rule": f"!({flag} in [{names}])",
        "messageExpression": f"'the operator owns ' + {flag} + ': use ' + {{{pairs}}}[{flag}]",
        "message": "the operator owns this flag: use the field of spec that stands for it",
    }


def _quoted() -> dict[str, str]:
    return {name: instead.replace("\\", "\\\\").replace("'", "\\'") for name, instead in RESERVED_FLAGS.items()}


def _definition(  # noqa: PLR0913 - the members of a CRD, all by name
    *,
    kind: str,
    plural: str,
    short_name: str,
    columns: tuple[Column, ...],
    subresources: dict[str, Any],
    description: str,
    name_rule: Rule | None,
    spec: dict[str, Any],
    status_type: type[BaseModel],
) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "description": description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": structural_schema(status_type, with_defaults=False),
        },
    }
    if name_rule is not None:
        schema["x-kubernetes-validations"] = [name_rule.to_schema()]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "categories": ["specmodel"],
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "shortNames": [short_name],
                "singular": kind.lower(),
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [column.to_schema() for column in columns],
                    "subresources": subresources,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
