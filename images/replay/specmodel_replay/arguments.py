"""From vLLM's arguments to what a replay serves: name, address, limits, and the shape to look up in the table.

Reads the model's config.json when the model is a local folder (context length, stored quantisation) and nothing else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specmodel_replay import speculation
from specmodel_replay.speculation import ConfigError, Speculation
from specmodel_replay.table import Configuration, Shape, Table

if TYPE_CHECKING:
    from argparse import Namespace

DEFAULT_MODEL: Final = "Qwen/Qwen3-0.6B"
DEFAULT_MAX_MODEL_LEN: Final = 131072
DEFAULT_MAX_NUM_SEQS: Final = 256
_FP8_METHODS: Final = frozenset({"fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "fbgemm_fp8"})
_QUANTIZATION_METHODS: Final = (
    "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed",
    "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "compressed-tensors", "experts_int8", "quark", "moe_wna16",
    "torchao", "inc", "mxfp4", "online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel",
)  # fmt: skip
# What would change what is measured or how it is reached, and that a replay cannot honour: refused rather
# than ignored.
_UNSUPPORTED: Final = {
    "config": "--config (write the flags out)",
    "uds": "--uds",
    "grpc": "--grpc",
    "headless": "--headless",
}
_MUST_BE_ONE: Final = ("data_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size", "nnodes")


class UnsupportedError(Exception):
    """vLLM would accept this, but a replay cannot serve it; the message says what it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the server needs to know from the command line."""

    model: str
    served_names: tuple[str, ...]
    adapters: tuple[str, ...]
    host: str | None
    port: int
    api_keys: tuple[str, ...]
    certificate: tuple[str, str | None] | None
    root_path: str
    shape: Shape
    method: str | None
    max_model_len: int
    max_num_seqs: int
    kv_cache_dtype: str
    shutdown_timeout: int
    seed: int
    is_usage_forced: bool
    notices: tuple[str, ...]


def read(flags: Namespace) -> Settings:
    """Return the settings; raises ConfigError as vLLM would refuse, UnsupportedError where only a replay must."""
    _refuse_unsupported(flags)
    model = flags.model_tag or flags.model or DEFAULT_MODEL
    config = _model_config(model)
    notices: list[str] = []
    size = _positive("ParallelConfig", "tensor_parallel_size", flags.tensor_parallel_size, 1)
    max_model_len = _max_model_len(flags.max_model_len, config)
    speculative = _speculation(flags, size, max_model_len)
    if speculative is not None and speculative.method != "eagle3":
        notices.append(f"method {speculative.method}: the default table was measured with an EAGLE3-shaped drafter")
    weights = _weights(flags, model, config, notices)
    kv_cache_dtype = flags.kv_cache_dtype or "auto"
    if kv_cache_dtype != "auto":
        notices.append(
            f"--kv-cache-dtype {kv_cache_dtype}: the table was measured with auto; its pace is used unchanged"
        )
    utilization = flags.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        bound = "greater than 0" if utilization <= 0 else "less than or equal to 1"
        raise ConfigError(
            "CacheConfig",
            f"Input should be {bound} [input_value={utilization}, input_type=float]",
            field="gpu_memory_utilization",
        )
    if bool(flags.ssl_keyfile) > bool(flags.ssl_certfile):
        raise ConfigError("FrontendArgs", "--ssl-keyfile needs --ssl-certfile")
    return Settings(
        model=model,
        served_names=tuple(flags.served_model_name or [model]),
        adapters=tuple(_adapter_name(item) for item in flags.lora_modules or []),
        host=flags.host,
        port=8000 if flags.port is None else flags.port,
        api_keys=tuple(flags.api_key or []),
        certificate=(flags.ssl_certfile, flags.ssl_keyfile) if flags.ssl_certfile else None,
        root_path=(flags.root_path or "").rstrip("/"),
        shape=Shape(
            tensor_parallel_size=size, speculative_tokens=speculative.tokens if speculative else 0, weights=weights
        ),
        method=speculative.method if speculative else None,
        max_model_len=max_model_len,
        max_num_seqs=_positive("SchedulerConfig", "max_num_seqs", flags.max_num_seqs, DEFAULT_MAX_NUM_SEQS),
        kv_cache_dtype=kv_cache_dtype,
        shutdown_timeout=max(0, flags.shutdown_timeout or 0),
        seed=flags.seed or 0,
        is_usage_forced=bool(flags.enable_force_include_usage),
        notices=tuple(notices),
    )


def configuration(settings: Settings, table: Table) -> Configuration:
    """Return what the table holds for these settings; raises UnsupportedError with the list of shapes it has."""
    found = table.configurations.get(settings.shape)
    if found is not None:
        return found
    held = "\n".join(f"  - {shape}" for shape in table.shapes())
    raise UnsupportedError(
        f"replay table {table.name!r} has no measurement of the shape ({settings.shape}). It has:\n{held}\n"
        "Choose one of these by --tensor-parallel-size, num_speculative_tokens in --speculative-config and"
        " --quantization, or measure this one and give the result by SPECMODEL_REPLAY_TABLE."
    )


def _refuse_unsupported(flags: Namespace) -> None:
    for name, shown in _UNSUPPORTED.items():
        if getattr(flags, name):
            raise UnsupportedError(f"the replay engine does not do {shown}")
    for name in _MUST_BE_ONE:
        value = getattr(flags, name)
        if value is not None and int(value) != 1:
            raise UnsupportedError(
                f"the replay engine has no measurements with --{name.replace('_', '-')} {value}; leave it at 1"
            )
    if flags.dtype in {"float", "float32"}:
        raise UnsupportedError(
            f"the replay engine has no measurements with --dtype {flags.dtype}; use auto or bfloat16"
        )


def _speculation(flags: Namespace, size: int, max_model_len: int) -> Speculation | None:
    config: dict[str, Any] = dict(flags.speculative_config or {})
    for flag, key in (("spec_method", "method"), ("spec_model", "model"), ("spec_tokens", "num_speculative_tokens")):
        value = getattr(flags, flag)
        if value is None:
            continue
        if key in config:
            shown = "--" + flag.replace("_", "-")
            raise ConfigError("EngineArgs", f"{shown} and --speculative-config both set {key!r}; give it once")
        config[key] = value
    if not config:
        return None
    return speculation.read(config, tensor_parallel_size=size, max_model_len=max_model_len)


def _weights(flags: Namespace, model: str, config: dict[str, Any], notices: list[str]) -> str:
    method = flags.quantization
    if method is not None:
        method = method.lower()
        if method not in _QUANTIZATION_METHODS:
            raise ConfigError(
                "ModelConfig", f"Unknown quantization method: {method}. Must be one of {list(_QUANTIZATION_METHODS)}."
            )
    stored = (config.get("quantization_config") or {}).get("quant_method")
    if method is None and stored is not None:
        method = str(stored)
    if method in _FP8_METHODS:
        return "FP8"
    if method == "compressed-tensors" or (method is None and re.search(r"(?i)(^|[^a-z0-9])fp8([^a-z0-9]|$)", model)):
        notices.append(
            f"the weights of {model} are taken to be FP8 (stored quantisation or name); its files are not read"
        )
        return "FP8"
    if method is not None:
        raise UnsupportedError(f"the replay engine has no measurements with quantisation {method!r}; use fp8 or none")
    return "BF16"


def _max_model_len(wanted: int | None, config: dict[str, Any]) -> int:
    derived = config.get("max_position_embeddings")
    longest = derived if isinstance(derived, int) and derived > 0 else None
    if wanted is None or wanted == -1:
        return longest or DEFAULT_MAX_MODEL_LEN
    if wanted < 1:
        raise ConfigError(
            "ModelConfig", f"Input should be greater than 0 [input_value={wanted}]", field="max_model_len"
        )
    if longest is not None and wanted > longest:
        raise ConfigError(
            "ModelConfig", f"User-specified max_model_len ({wanted}) is greater than the derived max_model_len"
            f" (max_position_embeddings={longest} or model_max_length=None in model's config.json).",
        )  # fmt: skip
    return wanted


def _model_config(model: str) -> dict[str, Any]:
    path = Path(model) / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _positive(config: str, field: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if value < 1:
        raise ConfigError(
            config,
            f"Input should be greater than or equal to 1 [type=greater_than_equal, input_value={value},"
            " input_type=int]",
            field=field,
        )
    return value


def _adapter_name(item: str) -> str:
    if item.startswith("{"):
        try:
            return str(json.loads(item)["name"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError("FrontendArgs", f"Invalid JSON format for --lora-modules: {item}") from error
    name, equals, _ = item.partition("=")
    if not equals:
        raise ConfigError("FrontendArgs", f"Invalid format for --lora-modules: {item}; write name=path")
    return name
