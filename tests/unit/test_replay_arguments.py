"""The replay engine's command line: vLLM's flags are taken, and wrong ones fail with vLLM's status and words."""

import json
from pathlib import Path

import pytest

from specmodel.engines.releases import checked_releases
from specmodel_replay import VLLM_VERSION, __main__, arguments, flags, speculation, table
from specmodel_replay.arguments import Settings, UnsupportedError
from specmodel_replay.speculation import ConfigError

EAGLE3 = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3}


def settings(*given: str) -> Settings:
    return arguments.read(flags.parser().read(["org/target", *given]))


def speculating(**changes: object) -> Settings:
    config = {key: value for key, value in (EAGLE3 | changes).items() if value is not None}
    return settings("--speculative-config", json.dumps(config))


def test_the_shape_is_read_from_the_arguments() -> None:
    assert str(settings().shape) == "BF16, 1 GPU, no speculation"
    assert str(settings("--tensor-parallel-size", "2", "--quantization", "fp8").shape) == "FP8, 2 GPUs, no speculation"
    assert str(speculating(num_speculative_tokens=5).shape) == "BF16, 1 GPU, γ=5"
    by_flags = settings("--spec-method", "eagle3", "--spec-model", "org/drafter", "--spec-tokens", "3", "-tp", "2")
    assert str(by_flags.shape) == "BF16, 2 GPUs, γ=3"
    by_keys = settings("-sc.method", "eagle3", "--speculative-config.model", "d", "-sc.num_speculative_tokens=3")
    assert str(by_keys.shape) == "BF16, 1 GPU, γ=3"


def test_what_a_vllm_deployment_passes_is_taken() -> None:
    result = settings(
        "--served-model-name", "shop", "second", "--host", "0.0.0.0", "--port", "8080", "--max-model-len", "4k",  # noqa: S104
        "--max_num_seqs", "64", "--kv-cache-dtype", "fp8", "--no-enable-prefix-caching", "--enable-chunked-prefill",
        "--gpu-memory-utilization", "0.9", "--cudagraph-capture-sizes", "1", "2", "4", "--shutdown-timeout", "45",
        "--disable-uvicorn-access-log", "--compilation-config", '{"mode": 3}', "-O3", "--enforce-eager", "--seed", "7",
        "--lora-modules", "commerce=/adapters/commerce", "--api-key", "k", "--trust-remote-code", "--dtype", "bfloat16",
        "--async-scheduling", "--max-num-batched-tokens", "8192", "--revision", "main", "--load-format", "dummy",
    )  # fmt: skip
    assert result.served_names == ("shop", "second")
    assert (result.port, result.max_model_len, result.max_num_seqs) == (8080, 4000, 64)
    assert (result.shutdown_timeout, result.seed, result.adapters) == (45, 7, ("commerce",))
    assert any("--kv-cache-dtype" in notice for notice in result.notices)


def test_the_model_may_be_given_by_the_old_flag_but_not_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments.read(flags.parser().read(["--model", "org/target"])).model == "org/target"
    with pytest.raises(SystemExit) as caught:
        flags.parser().read(["other", "--model", "org/target"])
    assert caught.value.code == 2
    assert "vllm: error: unrecognized arguments: other" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        "--speculative-model m", "--num-speculative-tokens 3", "--guided-decoding-backend xgrammar", "--swap-space 4",
        "--disable-log-requests", "--use-v2-block-manager", "--max-seq-len-to-capture 8192", "--enable-reasoning",
        "--num-scheduler-steps 8", "--preemption-mode swap", "--rope-scaling {}", "--enable-prompt-adapter",
        "--enable-lora-bias", "--lora-extra-vocab-size 256", "--task generate", "--ngram-prompt-lookup-max 4", "--foo",
    ],
)  # fmt: skip
def test_flags_that_vllm_does_not_have_or_has_removed_end_with_status_2(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        flags.parser().read(["org/target", *given.split()])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: unrecognized arguments: {given}\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--port abc", "argument --port: invalid int value: 'abc'"),
        ("--ssl-c x", "ambiguous option: --ssl-c could match --ssl-ca-certs, --ssl-cert-reqs, --ssl-certfile"),
        ("--performance-mode latency", "argument --performance-mode: invalid choice: 'latency'"),
        ("--max-model-len 4kk", "argument --max-model-len: invalid human_readable_int_or_auto value: '4kk'"),
        ("--speculative-config {bad", "argument --speculative-config/-sc: Value {bad cannot be converted"),
        ("--max-model-len", "argument --max-model-len: expected one argument"),
    ],
)
def test_wrong_values_end_with_status_2_and_name_the_flag(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        flags.parser().read(["org/target", *given.split()])
    assert caught.value.code == 2
    assert f"vllm serve: error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_spec": 3}, "num_spec\n  Unexpected keyword argument"),
        ({"tensor_parallel_size": 1}, "Please pass 'draft_tensor_parallel_size' instead"),
        ({"num_speculative_tokens": None}, "but `num_speculative_tokens` was not provided"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens\n  Input should be greater than 0"),
        ({"num_speculative_tokens": "x"}, "Input should be a valid integer"),
        ({"model": None}, "num_speculative_tokens was provided but without speculative model"),
        ({"method": "egle3"}, "method\n  Input should be 'bailing_hybrid_mtp'"),
        ({"draft_tensor_parallel_size": 3}, "cannot be other value than 1 or target model tensor_parallel_size"),
        ({"rejection_sample_method": "synthetic"}, "requires exactly one of synthetic_acceptance_rates"),
        ({"rejection_sample_method": "loose"}, "rejection_sample_method\n  Input should be 'block'"),
        ({"max_model_len": 10**9}, "cannot be larger than target_max_model_len"),
        ({"disable_by_batch_size": 4}, "disable_by_batch_size\n  Unexpected keyword argument"),
    ],
)
def test_a_speculative_config_that_vllm_refuses_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match="1 validation error for SpeculativeConfig") as caught:
        speculating(**changes)
    assert message in str(caught.value)


def test_a_key_given_both_as_flag_and_in_the_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="both set 'method'"):
        settings("--spec-method", "eagle3", "--speculative-config", json.dumps(EAGLE3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--quantization", "fp7"), "Unknown quantization method: fp7"),
        (("--tensor-parallel-size", "0"), "tensor_parallel_size\n  Input should be greater than or equal to 1"),
        (("--max-num-seqs", "0"), "max_num_seqs\n  Input should be greater than or equal to 1"),
        (("--gpu-memory-utilization", "1.5"), "gpu_memory_utilization\n  Input should be less than or equal to 1"),
        (("--lora-modules", "nameless"), "write name=path"),
    ],
)
def test_a_configuration_that_vllm_refuses_is_refused(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(*given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--quantization", "awq"), "use fp8 or none"),
        (("--data-parallel-size", "2"), "--data-parallel-size 2; leave it at 1"),
        (("--pipeline-parallel-size", "2"), "--pipeline-parallel-size 2"),
        (("--dtype", "float32"), "use auto or bfloat16"),
        (("--config", "x.yaml"), "does not do --config"),
    ],
)
def test_what_vllm_could_do_and_a_replay_cannot_is_refused_by_name(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        settings(*given)
    assert message in str(caught.value)


def test_a_shape_that_the_table_lacks_is_refused_with_the_list_of_those_it_has() -> None:
    wanted = settings("-tp", "2", "--speculative-config", json.dumps(EAGLE3 | {"num_speculative_tokens": 5}))
    with pytest.raises(UnsupportedError, match=r"has no measurement of the shape \(BF16, 2 GPUs, γ=5\)") as caught:
        arguments.configuration(wanted, table.load())
    for shape in table.load().shapes():
        assert f"  - {shape}\n" in str(caught.value)


def test_a_local_model_tells_its_length_and_stored_quantisation(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 2048, "quantization_config": {"quant_method": "compressed-tensors"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = arguments.read(flags.parser().read([str(tmp_path)]))
    assert (result.max_model_len, result.shape.weights) == (2048, "FP8")
    with pytest.raises(ConfigError, match=r"max_model_len \(4096\) is greater than the derived max_model_len"):
        arguments.read(flags.parser().read([str(tmp_path), "--max-model-len", "4096"]))


def test_a_name_that_says_fp8_counts_as_stored_fp8_and_is_mentioned() -> None:
    result = arguments.read(flags.parser().read(["org/Some-8B-Instruct-FP8"]))
    assert result.shape.weights == "FP8"
    assert any("taken to be FP8" in notice for notice in result.notices)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SPECMODEL_REPLAY_FAULT", "explode", "'explode' is unknown; write one or more of die-at-start"),
        ("SPECMODEL_REPLAY_FAULT", "slow:fast", "'slow:fast' needs a number from 0.01 to 1000"),
        ("SPECMODEL_REPLAY_FAULT", "error-rate:2", "needs a number from 0 to 1"),
        ("SPECMODEL_REPLAY_STARTUP_SECONDS", "soon", "must be a number of seconds, 0 or more, not 'soon'"),
        ("SPECMODEL_REPLAY_TABLE", "/nowhere/table", "/nowhere/table: no such file or folder"),
    ],
)
def test_a_wrong_environment_ends_with_status_1_and_says_what_to_write(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert __main__.main(["serve", "org/target"]) == 1
    assert message in capsys.readouterr().err


def test_the_recorded_flags_are_those_of_the_release_that_is_replayed() -> None:
    """Their one home is the operator's table of releases, of which flags.json is a copy (`make generate`)."""
    recorded = json.loads((Path(flags.__file__).parent / "flags.json").read_text(encoding="utf-8"))
    release = next(it for it in checked_releases() if it.version == VLLM_VERSION)
    assert recorded["vllm"] == VLLM_VERSION
    assert {name for flag in recorded["flags"] for name in flag["names"]} == release.flags.keys() - {"-h", "--help"}
    assert speculation.KEYS.keys() == release.keys["--speculative-config"].keys()
