"""The JSON of `--speculative-config`: what vLLM accepts, and how it refuses the rest.

The rules are those that a cluster without GPUs can rehearse: keys, types, method, and what belongs together.
What needs the drafter's files (vocabulary, heads) is not checked here, as no model is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Every key that the release takes, with the values to which it is limited, if it is.
KEYS: Final[dict[str, list[str]]] = json.loads((Path(__file__).parent / "flags.json").read_text(encoding="utf-8"))[
    "speculative_config"
]
_NEEDS_NO_MODEL: Final = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states", "medusa"})
_LIMITED: Final = ("method", "rejection_sample_method", "draft_sample_method")


class ConfigError(Exception):
    """The engine refuses its configuration; `str` is the message."""

    def __init__(self, config: str, problem: str, *, field: str | None = None) -> None:
        where = f"{field}\n  {problem}" if field else f"  Value error, {problem}"
        super().__init__(f"1 validation error for {config}\n{where}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What of the speculative configuration a replay acts on."""

    method: str
    tokens: int


def read(config: Mapping[str, Any], *, tensor_parallel_size: int, max_model_len: int) -> Speculation:
    """Return the speculation asked for; raises ConfigError where vLLM would refuse to start."""
    given = {key.replace("-", "_"): value for key, value in config.items()}
    if "tensor_parallel_size" in given:
        raise _invalid(
            "'tensor_parallel_size' is not a valid argument in the speculative_config."
            " Please pass 'draft_tensor_parallel_size' instead."
        )
    for key, value in given.items():
        if key not in KEYS:
            raise _invalid(
                "Unexpected keyword argument (extra inputs are not permitted)"
                f" [type=unexpected_keyword_argument, input_value={value!r}, input_type={type(value).__name__}]",
                field=key,
            )
    tokens = _tokens(given.get("num_speculative_tokens"))
    method = given.get("method")
    _check_choices(given)
    model = given.get("model")
    if model is None and method not in _NEEDS_NO_MODEL and not (method or "").endswith("mtp"):
        raise _invalid("num_speculative_tokens was provided but without speculative model.")
    if tokens is None:
        raise _invalid(
            "A speculative model was provided, but `num_speculative_tokens` was not provided"
            if model is not None
            else "num_speculative_tokens must be provided with speculative model unless the draft model config"
            " contains an n_predict parameter."
        )
    _check_together(given, tensor_parallel_size, max_model_len)
    return Speculation(method=method or _guess(str(model)), tokens=tokens)


def _check_choices(given: Mapping[str, Any]) -> None:
    for key in _LIMITED:
        if given.get(key) is not None and given[key] not in KEYS[key]:
            raise _invalid(
                f"Input should be {', '.join(map(repr, KEYS[key]))} [type=literal_error, input_value={given[key]!r}]",
                field=key,
            )


def _check_together(given: Mapping[str, Any], tensor_parallel_size: int, max_model_len: int) -> None:
    """Raise ConfigError for values that vLLM refuses beside each other or beside the target's."""
    draft_size = given.get("draft_tensor_parallel_size")
    if draft_size is not None and draft_size not in (1, tensor_parallel_size):
        raise _invalid(
            f"speculative_draft_tensor_parallel_size={draft_size} cannot be other value than 1 or target model"
            " tensor_parallel_size"
        )
    draft_length = given.get("max_model_len")
    if isinstance(draft_length, int) and draft_length > max_model_len:
        raise _invalid(
            f"speculative_max_model_len: {draft_length} cannot be larger than target_max_model_len: {max_model_len}"
        )
    if given.get("rejection_sample_method") == "synthetic" and (
        (given.get("synthetic_acceptance_rates") is None) == (given.get("synthetic_acceptance_length") is None)
    ):
        raise _invalid(
            "rejection_sample_method='synthetic' requires exactly one of synthetic_acceptance_rates or"
            " synthetic_acceptance_length."
        )


def _guess(model: str) -> str:
    """Return the method that vLLM reads from the drafter's path where none is named."""
    lower = model.lower()
    if "eagle-" in lower:
        return "eagle"
    return "eagle3" if "eagle3" in lower else "draft_model"


def _tokens(value: object) -> int | None:
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None:
        raise _invalid(
            f"Input should be a valid integer [type=int_parsing, input_value={value!r}]", field="num_speculative_tokens"
        )
    if number <= 0:
        raise _invalid(
            f"Input should be greater than 0 [type=greater_than, input_value={number}, input_type=int]",
            field="num_speculative_tokens",
        )
    return number


def _invalid(problem: str, field: str | None = None) -> ConfigError:
    return ConfigError("SpeculativeConfig", problem, field=field)
