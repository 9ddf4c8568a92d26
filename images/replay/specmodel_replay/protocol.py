"""The OpenAI-compatible wire: what a request asks for, what is refused as vLLM refuses it, and the JSON of the answers.

Pure: nothing here reads a clock, waits or writes. The text of an answer is made of fixed words; it means nothing.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, Final

from specmodel_replay.engine import Wanted

# One word is one token; the words are plain, need no escaping in JSON, and say what this is.
_TEXT: Final = """replayed text of no meaning measured pace only real timing without any model here every word counts
as one token and nothing more the words repeat in a fixed order so that two runs agree"""
WORDS: Final = tuple(f" {word}" for word in _TEXT.split())
_CHARACTERS_PER_TOKEN: Final = 4
_DEFAULT_COMPLETION_TOKENS: Final = 16


class RequestError(Exception):
    """A request is refused; carries the HTTP status and what the error object says."""

    def __init__(self, status: int, kind: str, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: Final = {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What requests are checked against."""

    models: tuple[str, ...]
    max_model_len: int
    is_speculating: bool
    is_usage_forced: bool
    natural_tokens: int  # how long an answer is where neither max_tokens nor ignore_eos decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that is fine: what the engine has to do and how the answer is to look."""

    is_chat: bool
    model: str
    wanted: Wanted
    is_streaming: bool
    has_usage: bool
    has_running_usage: bool
    first_word: int

    @property
    def usage(self) -> dict[str, Any]:
        """The usage of the whole answer."""
        return self.usage_after(self.wanted.tokens)

    def usage_after(self, tokens: int) -> dict[str, Any]:
        """Return the usage once this many tokens are generated."""
        prompt = self.wanted.prompt_tokens
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
        return usage | {"prompt_tokens_details": None}

    def words(self, start: int, count: int) -> str:
        """Return the text of `count` tokens, the first of which is number `start` of the answer."""
        first = self.first_word + start
        return "".join(WORDS[(first + index) % len(WORDS)] for index in range(count))


def parse(body: bytes, limits: Limits, *, is_chat: bool) -> Request:
    """Return the request in `body`; raises RequestError with vLLM's status and kind of error."""
    try:
        content = json.loads(body)
    except ValueError as error:
        raise bad_request(f"The request body is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise bad_request("The request body must be a JSON object.")
    model = content.get("model")
    if model is not None and model not in limits.models:
        raise RequestError(404, "NotFoundError", f"The model `{model}` does not exist.", parameter="model")
    _refuse_unsupported(content, limits)
    prompt_tokens, seed = _prompt(content, is_chat=is_chat)
    most = _max_tokens(content, prompt_tokens, limits, is_chat=is_chat)
    least = _whole(content, "min_tokens", at_least=0) or 0
    tokens = most if content.get("ignore_eos") else min(most, max(limits.natural_tokens, least))
    options = content.get("stream_options") or {}
    if options and not content.get("stream"):
        raise bad_request("Stream options can only be defined when `stream=True`.", parameter="stream_options")
    return Request(
        is_chat=is_chat,
        model=model or limits.models[0],
        wanted=Wanted(tokens=tokens, max_tokens=most, prompt_tokens=prompt_tokens),
        is_streaming=bool(content.get("stream")),
        has_usage=bool(options.get("include_usage")) or limits.is_usage_forced,
        has_running_usage=bool(options.get("continuous_usage_stats")),
        first_word=seed % len(WORDS),
    )


def count_tokens(text: str) -> int:
    """Return a plausible number of tokens for a text: a token per word, or per four characters where words are long."""
    return max(1, len(text.split()), len(text) // _CHARACTERS_PER_TOKEN) if text else 0


def bad_request(message: str, parameter: str | None = None) -> RequestError:
    """Return the error for a request that can never succeed."""
    return RequestError(400, "BadRequestError", message, parameter=parameter)


def _refuse_unsupported(content: dict[str, Any], limits: Limits) -> None:
    if (content.get("n") or 1) != 1 or (content.get("best_of") or 1) != 1 or content.get("use_beam_search"):
        raise bad_request("The replay engine gives one answer per request: n and best_of must be 1.", parameter="n")
    if content.get("logprobs") or content.get("top_logprobs") or content.get("prompt_logprobs"):
        raise bad_request("The replay engine runs no model and has no logprobs.", parameter="logprobs")
    form = content.get("response_format") or {}
    if content.get("structured_outputs") or (isinstance(form, dict) and form.get("type", "text") != "text"):
        raise bad_request(
            "The replay engine runs no model and cannot follow a response format.", parameter="response_format"
        )
    if content.get("tool_choice") not in (None, "none", "auto"):
        raise bad_request("The replay engine runs no model and cannot call a tool.", parameter="tool_choice")
    temperature = content.get("temperature")
    if temperature is not None and (not isinstance(temperature, int | float) or temperature < 0):
        raise bad_request(f"temperature must be non-negative, got {temperature}.", parameter="temperature")
    if limits.is_speculating and (content.get("min_p") or content.get("logit_bias")):
        raise bad_request(
            "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
        )


def _prompt(content: dict[str, Any], *, is_chat: bool) -> tuple[int, int]:
    """Return the number of prompt tokens and a number that depends on the prompt alone."""
    key = "messages" if is_chat else "prompt"
    prompt = content.get(key)
    if prompt is None or prompt in ("", []):
        raise bad_request(f"[{{'type': 'missing', 'loc': ('body', '{key}'), 'msg': 'Field required'}}]", parameter=key)
    seed = zlib.crc32(json.dumps(prompt).encode())
    if is_chat:
        return _chat_tokens(prompt), seed
    if isinstance(prompt, str):
        return count_tokens(prompt), seed
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return len(prompt), seed
    if isinstance(prompt, list) and len(prompt) == 1:
        return _prompt(content | {"prompt": prompt[0]}, is_chat=False)
    raise bad_request(
        "The replay engine takes one prompt per request: a text or a list of token ids.", parameter="prompt"
    )


def _chat_tokens(messages: object) -> int:
    if not isinstance(messages, list):
        raise bad_request("messages must be a list.", parameter="messages")
    total = 0
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise bad_request("Every message must be an object with a role.", parameter="messages")
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else [{"text": parts}]:
            text = part.get("text") if isinstance(part, dict) else part
            total += count_tokens(text) if isinstance(text, str) else 0
        total += 4  # what a chat template wraps around each message
    return total


def _max_tokens(content: dict[str, Any], prompt_tokens: int, limits: Limits, *, is_chat: bool) -> int:
    wanted = _whole(content, "max_tokens", at_least=1)
    if is_chat:
        wanted = _whole(content, "max_completion_tokens", at_least=1) or wanted
    elif wanted is None:
        wanted = _DEFAULT_COMPLETION_TOKENS
    room = limits.max_model_len - prompt_tokens
    if wanted is None and room >= 1:
        return room
    if wanted is None or wanted > room:
        raise bad_request(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested"
            f" {wanted or 0} output tokens and your prompt contains at least {prompt_tokens} input tokens, for a"
            f" total of at least {prompt_tokens + (wanted or 0)} tokens. Please reduce the length of the input"
            " prompt or the number of requested output tokens.",
            parameter="input_tokens",
        )
    return wanted


def _whole(content: dict[str, Any], key: str, *, at_least: int) -> int | None:
    value = content.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise bad_request(f"{key} must be at least {at_least}, got {value}.", parameter=key)
    return value
