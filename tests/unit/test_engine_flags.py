"""What the operator renders and what users add, held against the recorded parsers of every checked release of vLLM."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specmodel.api.conditions import REASONS
from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec
from specmodel.domain.candidate import Candidate, enumerate_candidates
from specmodel.domain.engine import RESERVED_FLAGS, check_flags, resolve_engine
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.settings import Settings
from specmodel.engines.command_line import FaultKind, caveats, clashes, faults, gone_flags, is_flag
from specmodel.engines.releases import (
    DATA,
    Flag,
    Release,
    Table,
    checked_releases,
    nearest_release,
    release_for,
    version_key,
)
from specmodel.manifests.engine_arguments import Paths, engine_arguments
from tests.support.measured import model_of

EXAMPLES = Path(__file__).parents[2] / "examples"
README = EXAMPLES.parent / "README.md"
RELEASES = checked_releases()
BY_VERSION = {release.version: release for release in RELEASES}
PATHS = Paths(model="example/target", drafter="example/drafter")


def examples() -> Iterator[tuple[str, SpeculativeModel]]:
    """Yield every model of the examples."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document and document["kind"] == "SpeculativeModel":
                name = document["metadata"]["name"]
                spec = SpeculativeModelSpec.model_validate(document["spec"])
                yield path.stem, SpeculativeModel(name=name, namespace="default", spec=spec)


def matrix() -> Iterator[tuple[str, SpeculativeModel]]:
    """Yield models that between them render every flag that the operator has."""
    for weights in ("None", "FP8", "Checkpoint"):
        for kv_cache in ("Auto", "FP8"):
            yield (
                f"{weights}-{kv_cache}",
                model_of(
                    model={"uri": "hf://example/target", "revision": "0" * 40},
                    drafter={"uri": "hf://example/drafter", "revision": "1" * 40, "speculativeTokens": [3]},
                    quantization={"weights": [weights], "kvCache": kv_cache},
                    engine={"extraArgs": ["--max-model-len=4k", "--no-enable-prefix-caching", "--dtype", "bfloat16"]},
                ),
            )
    yield "volume", model_of(model={"uri": "pvc://weights/target"}, drafter={"uri": "pvc://weights/drafter"})


MODELS = dict([*examples(), *matrix()])


def rendered(model: SpeculativeModel, release: Release) -> list[list[str]]:
    """Return the arguments of every candidate of the model, as they are for a release."""
    choice = dataclasses.replace(resolve_engine(model, None, Settings()), version=release.version)
    candidates = enumerate_candidates(model, choice, Settings())
    return [engine_arguments(candidate, paths_of(candidate)) for candidate in candidates]


def paths_of(candidate: Candidate) -> Paths:
    """Return the weights' places as a pod has them."""
    hub = "hf://"
    model = candidate.model_uri.removeprefix(hub) if candidate.model_uri.startswith(hub) else "/models/target"
    drafter = candidate.drafter_uri or ""
    return Paths(model=model, drafter=drafter.removeprefix(hub) if drafter.startswith(hub) else "/models/drafter")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
@pytest.mark.parametrize("name", MODELS)
def test_every_release_takes_what_is_rendered(name: str, release: Release) -> None:
    for arguments in rendered(MODELS[name], release):
        model, *rest = arguments
        assert not is_flag(model)
        assert faults(release, rest, with_drafter=True) == []
        assert argparse_refuses(release, rest) is None


def test_the_matrix_renders_every_kind_of_argument() -> None:
    flags = {argument for model in MODELS.values() for line in rendered(model, RELEASES[-1]) for argument in line}
    wanted = {"--revision", "--quantization", "--kv-cache-dtype", "--speculative-config", "--shutdown-timeout"}
    assert wanted | {"--max-cudagraph-capture-size", "--generation-config"} <= flags
    values = [argument for argument in flags if argument.startswith("{")]
    assert {key for value in values for key in json.loads(value)} == {
        "method", "model", "num_speculative_tokens", "revision",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("--shutdown-timeout", "does not know '--shutdown-timeout'"),
        ("--max-cudagraph-capture-size", "does not know '--max-cudagraph-capture-size'"),
        ("--tensor-parallel-size", "does not know '--tensor-parallel-size'"),
    ],
)
def test_the_check_fails_for_a_release_without_a_flag(without: str, words: str) -> None:
    release = dataclasses.replace(
        RELEASES[-1], flags={name: flag for name, flag in RELEASES[-1].flags.items() if name != without}
    )
    found = faults(release, rendered(MODELS["None-Auto"], release)[-1][1:])
    assert [(fault.kind, words in fault.message) for fault in found] == [(FaultKind.UNKNOWN_FLAG, True)]


def test_the_check_fails_for_a_release_without_a_key_or_a_method() -> None:
    known = RELEASES[-1].keys["--speculative-config"]
    lacking = {name: key for name, key in known.items() if name != "num_speculative_tokens"}
    method = dataclasses.replace(known["method"], choices=("ngram",))
    for keys, words in ((lacking, "'num_speculative_tokens'"), ({**known, "method": method}, "'eagle3' is not one of")):
        release = dataclasses.replace(RELEASES[-1], keys={"--speculative-config": keys})
        (fault,) = faults(release, rendered(MODELS["None-Auto"], release)[-1][1:])
        assert fault.kind == FaultKind.INVALID_VALUE
        assert words in fault.message


def test_the_check_fails_for_a_flag_that_takes_something_else() -> None:
    shutdown = RELEASES[-1].flags["--shutdown-timeout"]
    for changed, words in (
        (dataclasses.replace(shutdown, takes="none"), "takes no value"),
        (dataclasses.replace(shutdown, choices=("never",)), "choose from never"),
        (dataclasses.replace(shutdown, takes="2"), "it takes 2"),
    ):
        release = dataclasses.replace(RELEASES[-1], flags={**RELEASES[-1].flags, "--shutdown-timeout": changed})
        found = faults(release, rendered(MODELS["None-Auto"], release)[-1][1:])
        assert words in found[0].message


def without_drafter(**changes: Any) -> SpeculativeModel:
    """Return a model that has none."""
    model = model_of(**changes)
    return model.model_copy(update={"spec": model.spec.model_copy(update={"drafter": None})})


def refused(*arguments: str, version: str = "0.25.1") -> tuple[str, str]:
    """Return the reason and the message with which extraArgs are refused."""
    changes: dict[str, Any] = {"engine": {"version": version, "extraArgs": list(arguments)}}
    model = model_of(**changes)
    with pytest.raises(InvalidModelError) as caught:
        resolve_engine(model, None, Settings())
    return caught.value.reason, caught.value.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-modellen=4096"], "did you mean --max-model-len?"),
        (["--swap-space=4"], "computes preempted requests anew"),
        (["--speculative-model", "example/drafter"], "use spec.drafter"),
        (["--device=cpu"], "the image decides the device"),  # which vLLM 0.25.1 would take for --device-ids
        (["--max-model=4096"], "'--max-model' is short for --max-model-len: write that"),
        (["--enable-log"], "could be short for"),
        (["--no-such-thing-anywhere"], "nor does any other release that was checked"),
        (["--watermark-config={}"], "0.30.0 is the first that has it"),
    ],
)
def test_a_flag_that_the_release_lacks_is_refused_with_what_to_write(arguments: list[str], words: str) -> None:
    reason, message = refused(*arguments)
    assert reason == "UnknownFlag"
    assert message.startswith("spec.engine.extraArgs[0]: ")
    assert words in message


def test_a_flag_that_only_older_releases_have_is_refused_with_the_last_of_them() -> None:
    newest = RELEASES[-1]
    flag = next(name for name in RELEASES[0].flags if name not in newest.flags and name not in RESERVED_FLAGS)
    last = [release.version for release in RELEASES if flag in release.flags][-1]
    reason, message = refused(flag, version=newest.version)
    assert reason == "UnknownFlag"
    assert f"vLLM {newest.version} does not know {flag!r}: {last} is the last that has it" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-model-len=many"], "--max-model-len: 'many' is not a number such as 4096 or 4k"),
        (["--max-model-len"], "--max-model-len: has no value"),
        (["--max-model-len", "--enforce-eager"], "--max-model-len: has no value"),
        (["--gpu-memory-utilization=most"], "'most' is not a number"),
        (["--seed=1.5"], "'1.5' is not a whole number"),
        (["--dtype=bfloat61"], "did you mean bfloat16?"),
        (["--enforce-eager=true"], "takes no value, not 'true': write --enforce-eager or --no-enforce-eager"),
        (["--hf-overrides", "{}", "stray"], "'stray' belongs to no flag"),
        (["--structured-outputs-config={"], "is not JSON"),
        (["--seed.x=1"], "has no members"),
    ],
)
def test_a_value_that_the_release_does_not_take_is_refused_with_what_it_takes(arguments: list[str], words: str) -> None:
    reason, message = refused(*arguments)
    assert reason == "InvalidFlagValue"
    assert words in message


@pytest.mark.parametrize(
    "argument",
    [
        "-O3", "-O.level=3", "-O=3", "-cc.level=3", "-tp=2", "-dp=2", "-pp=2", "-qfp8", "-q=fp8", "--tensor-parallel=2",
        "--max-cudagraph=8", "--max-cudagraph-capture-size=8", "--optimization-level=0", "--spec-tokens=3", "--spec=x",
        "--no-disable-log-stats", "--headless",
    ],
)  # fmt: skip
def test_no_spelling_of_an_owned_flag_gets_past(argument: str) -> None:
    for release in RELEASES:
        reason, message = refused("--enforce-eager", argument, version=release.version)
        ambiguous = "'--spec' could be short for"  # also for a flag that is not the operator's
        assert reason == "ReservedFlag" or ambiguous in message, message


def test_every_spelling_of_every_owned_flag_is_reserved() -> None:
    for release in RELEASES:
        for name, flag in release.flags.items():
            if set(flag.names) & set(RESERVED_FLAGS):
                assert name in RESERVED_FLAGS or name.startswith("--no-"), (release.version, name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--logits-processors", "a.b:C"], "custom logits processors"),
        (["--kv-sharing-fast-prefill"], "fast prefill"),
        (['--override-generation-config={"min_p": 0.1}'], "every request that has min_p"),
        (["--override-generation-config.logit_bias", '{"5": 1}'], "every request that has logit_bias"),
    ],
)
def test_what_cannot_go_with_a_drafter_is_refused_only_with_one(arguments: list[str], words: str) -> None:
    reason, message = refused(*arguments)
    assert reason == "UnsupportedFlag"
    assert words in message
    model = without_drafter(engine={"extraArgs": arguments})
    assert resolve_engine(model, None, Settings()).version == "0.25.1"


def test_arguments_that_mean_nothing_wrong_pass() -> None:
    fine = [
        "--max_model_len=8192", "--max-model-len", "-1", "--no-kv-sharing-fast-prefill", "--api-server-count=2", "-asc",
        "2",        "--override-generation-config", '{"temperature": 0, "min_p": 0}', "--hf-overrides", '{"a": 1}',
        "--hf-overrides.rope_scaling", "{}", "--lora-modules", "a=b", "c=d", "--enable-lora", "--dtype", "auto",
        "--structured-outputs-config.backend=xgrammar", "--max-num-batched-tokens=8k",
    ]  # fmt: skip
    for release in RELEASES:
        check_flags(release, release.version, fine, with_drafter=True)


def test_a_patch_that_was_not_checked_is_rendered_by_its_minor_and_says_so() -> None:
    assert release_for("0.25.0") is BY_VERSION["0.25.1"]
    assert release_for("0.25.9") is BY_VERSION["0.25.1"]
    assert "(engine 0.25.0 is taken for vLLM 0.25.1)" in refused("--swap-space=4", version="0.25.0")[1]


@pytest.mark.parametrize("version", ["0.21.2", "0.99.0", "1.0.0"])
def test_a_minor_that_was_not_checked_is_refused_with_those_that_were(version: str) -> None:
    assert release_for(version) is None
    reason, message = refused(version=version)
    assert reason == "EngineUnsupported"
    assert all(release.version in message for release in RELEASES)
    assert f"for example {nearest_release(version).version}" in message


def test_what_serves_already_is_not_refused_for_its_version() -> None:
    choice = dataclasses.replace(resolve_engine(model_of(), None, Settings()), version="0.99.0")
    incumbent = enumerate_candidates(model_of(), choice, Settings())[0]
    model = model_of(engine={"extraArgs": ["--a-flag-of-the-future=1"]})
    assert resolve_engine(model, incumbent, Settings()).version == "0.99.0"


def test_what_serves_already_gets_no_flag_that_its_release_lacks() -> None:
    incumbent = enumerate_candidates(model_of(), resolve_engine(model_of(), None, Settings()), Settings())[0]
    newer = Settings(engine_image="vllm/vllm-openai:v0.33.0")
    model = model_of(engine={"extraArgs": ["--disable-log-requests"]})
    assert resolve_engine(model, None, newer).version == "0.33.0"
    with pytest.raises(InvalidModelError, match=r"vLLM 0\.25\.1 does not know '--disable-log-requests'"):
        resolve_engine(model, incumbent, newer)


def test_the_readme_names_the_range_that_was_checked() -> None:
    oldest, newest = (release.version.rpartition(".")[0] for release in (RELEASES[0], RELEASES[-1]))
    assert f"(docs/engines.md), {oldest} to {newest}." in README.read_text(encoding="utf-8")


def test_every_reason_of_a_fault_is_documented() -> None:
    assert {kind.value for kind in FaultKind} <= set(REASONS)


def test_the_default_engine_is_one_that_was_checked() -> None:
    assert resolve_engine(model_of(), None, Settings()).version in BY_VERSION


def test_the_data_are_as_the_tool_writes_them() -> None:
    assert Table.read(DATA).text() == DATA.read_text(encoding="utf-8")


def test_the_data_hold_releases_in_order_each_with_what_a_command_line_has() -> None:
    versions = [release.version for release in RELEASES]
    assert versions == sorted(set(versions), key=version_key)
    for release in RELEASES:
        assert len({flag.name for flag in release.flags.values()}) > 250
        assert {"--model", "--port", "--speculative-config"} <= release.flags.keys()
        assert release.flags["--dtype"].choices
        assert {"method", "model", "num_speculative_tokens"} <= release.keys["--speculative-config"].keys()
        assert {"eagle3", "ngram"} <= set(release.keys["--speculative-config"]["method"].choices)


def test_a_release_that_is_taken_in_changes_only_the_lines_of_what_changed() -> None:
    table = Table.read(DATA)
    newest = RELEASES[-1].version
    flags = [
        {
            **row,
            "choices": [value["value"] for value in table.rows_of(newest, "choices") if value["of"] == row["names"][0]],
        }
        for row in table.rows_of(newest, "flags")
        if row["names"] != ["--seed"]
    ]
    keys: dict[str, list[Any]] = {}
    for row in table.rows_of(newest, "keys"):
        of = f"{row['flag']}.{row['name']}"
        values = [value["value"] for value in table.rows_of(newest, "choices") if value["of"] == of]
        keys.setdefault(row["flag"], []).append(
            {"name": row["name"], "type": row["type"], "choices": values}
            | ({"default": row["default"]} if "default" in row else {})
        )
    rewrites = {row["argument"]: row["sets"] for row in table.rows_of(newest, "rewrites")}
    source = {"distribution": "vllm 9.0.0", "python": "3.12.0", "platform": "CudaPlatform", "torch": "9"}
    extracted = {
        "version": "9.0.0", "source": source, "parser": {"rewrites": rewrites}, "keys": keys,
        "flags": [*flags, {"names": ["--new-flag"], "takes": "none", "default": "False"}],
    }  # fmt: skip
    before, after = table.text().splitlines(), table.with_release(extracted).text().splitlines()
    gained = [line for line in after if line not in before]
    assert [line for line in gained if '"9.0.0"' in line and '"version"' not in line] == [
        '{"names": ["--new-flag"], "takes": "none", "since": "9.0.0"},'
    ]
    assert [json.loads(line.rstrip(","))["until"] for line in gained if "--seed" in line] == [newest]
    assert len([line for line in gained if '"version"' not in line]) == 2
    assert table.with_release(extracted).release("9.0.0").where == "Python 3.12.0, on a GPU"


def test_what_is_said_to_be_gone_was_gone_by_the_oldest_release_and_what_clashes_is_in_one() -> None:
    assert not gone_flags().keys() & RELEASES[0].flags.keys()
    for clash in clashes():
        assert any(clash.flag in release.flags for release in RELEASES)
    assert caveats()


def test_what_the_operator_owns_is_a_flag_of_some_release() -> None:
    for flag in RESERVED_FLAGS:
        assert flag == "-O" or any(flag in release.flags for release in RELEASES)  # vLLM rewrites -O by itself


# The same data as a real argparse parser: what it takes, the check must take, and the other way round.


def argparse_refuses(release: Release, arguments: list[str]) -> str | None:
    """Return what argparse says against the arguments, as vLLM's parser prepares them, or None."""
    parser = argparse.ArgumentParser(prog="vllm serve", add_help=False, exit_on_error=True, allow_abbrev=False)
    for flag in {id(flag): flag for flag in release.flags.values()}.values():
        parser.add_argument(*flag.names, dest=flag.name, **options(flag))
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            parser.parse_args([hyphenated(argument) for argument in arguments])
        except SystemExit:
            return said.getvalue()
    return None


def options(flag: Flag) -> dict[str, Any]:
    """Return what add_argument needs for a flag."""
    if flag.takes == "none":
        return {"action": "store_true"}
    convert: Any = {"integer": int, "number": float, "json": json.loads}.get(flag.kind, str)
    nullable = (lambda text: None if text in ("", "None") else convert(text)) if flag.is_nullable else convert
    result: dict[str, Any] = {"type": nullable}
    if flag.choices:
        extra = [None] if flag.is_nullable else []
        result["choices"] = [convert(choice) for choice in flag.choices] + extra
    nargs = {"one": None, "optional": "?", "any": "*", "some": "+"}.get(flag.takes, flag.takes)
    return result if nargs is None else {**result, "nargs": int(nargs) if nargs.isdigit() else nargs}


def hyphenated(argument: str) -> str:
    """Return a flag with hyphens, as vLLM's parser makes it before argparse sees it."""
    name, equals, value = argument.partition("=")
    return (name.replace("_", "-") if name.startswith("--") else name) + equals + value


WORDS = st.sampled_from(
    ["1", "-1", "0.5", "4096", "auto", "bfloat16", "float13", "{}", '{"a": 1}', "[", "word", "a=b", "-1.5", "", "None"]
)


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[Release, list[str]]:
    """Return a release and arguments made of its flags, others' flags and values."""
    release = draw(st.sampled_from([RELEASES[0], BY_VERSION["0.25.1"], RELEASES[-1]]))
    names = sorted(set(RELEASES[0].flags) | set(RELEASES[-1].flags))
    argument = st.one_of(
        st.sampled_from(names),
        st.builds(lambda name, value: f"{name}={value}", st.sampled_from(names), WORDS),
        st.builds(lambda name: name[:2] + name[2:].replace("-", "_"), st.sampled_from(names)),
        WORDS,
    )
    return release, draw(st.lists(argument, max_size=4))


@given(command_lines())
def test_the_check_agrees_with_a_real_parser_of_the_same_flags(line: tuple[Release, list[str]]) -> None:
    release, arguments = line
    if any("." in argument.partition("=")[0] and not is_a_number(argument) for argument in arguments):
        return
    said = argparse_refuses(release, arguments)
    sizes = {flag.name for flag in release.flags.values() if flag.kind == "size"}
    found = [fault for fault in faults(release, arguments) if not any(name in fault.message for name in sizes)]
    is_short = any("could be short" in fault.message or "is short for" in fault.message for fault in found)
    if said is None:
        assert found == []
    elif not is_short:
        assert faults(release, arguments) != [], said


def is_a_number(text: str) -> bool:
    """Return whether argparse reads a text as a negative number and no flag."""
    return not is_flag(text)
