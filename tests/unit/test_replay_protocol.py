"""The replay engine's wire: lengths, usage and refusals, without a server."""

import json
from typing import Any

import pytest

from specmodel_replay import protocol
from specmodel_replay.protocol import Limits, Request, RequestError

LIMITS = Limits(
    models=("m", "adapter"), max_model_len=1000, is_speculating=True, is_usage_forced=False, natural_tokens=256
)


def parse(*, is_chat: bool = False, **content: Any) -> Request:
    default = {"messages": [{"role": "user", "content": "a b c"}]} if is_chat else {"prompt": "a b c"}
    return protocol.parse(json.dumps({"model": "m"} | default | content).encode(), LIMITS, is_chat=is_chat)


def test_the_number_of_tokens_is_decided_as_by_vllm() -> None:
    assert parse().wanted.tokens == 16
    assert parse(max_tokens=100).wanted.tokens == 100
    assert parse(max_tokens=500).wanted.finish_reason == "stop"
    assert parse(max_tokens=500).wanted.tokens == 256
    assert parse(max_tokens=500, ignore_eos=True).wanted.tokens == 500
    assert parse(max_tokens=500, min_tokens=300).wanted.tokens == 300
    assert parse(is_chat=True).wanted.tokens == 256
    assert parse(is_chat=True, max_tokens=7).wanted.finish_reason == "length"
    assert parse(is_chat=True, max_tokens=7, max_completion_tokens=9).wanted.tokens == 9
    assert parse(is_chat=True, ignore_eos=True).wanted.tokens == 1000 - parse(is_chat=True).wanted.prompt_tokens


def test_a_prompt_is_a_text_a_list_of_token_ids_or_a_list_of_one_of_these() -> None:
    assert parse(prompt=[1, 2, 3, 4]).wanted.prompt_tokens == 4
    assert parse(prompt=[[1, 2, 3, 4]]).wanted.prompt_tokens == 4
    assert parse(prompt=["a b c"]).wanted.prompt_tokens == 3
    assert parse(prompt="x" * 40).wanted.prompt_tokens == 10
    parts = [{"role": "user", "content": [{"type": "text", "text": "a b c"}]}]
    assert parse(is_chat=True, messages=parts).wanted.prompt_tokens == parse(is_chat=True).wanted.prompt_tokens


def test_the_text_depends_on_the_prompt_alone_and_has_one_word_per_token() -> None:
    first, again, other = parse(), parse(temperature=0.9), parse(prompt="another")
    assert first.words(0, 40) == again.words(0, 40)
    assert first.words(0, 40) == first.words(0, 15) + first.words(15, 25)
    assert len(first.words(0, 40).split()) == 40
    assert {first.first_word, other.first_word} != {first.first_word}


def test_usage_counts_exactly_the_generated_tokens() -> None:
    request = parse(max_tokens=9, prompt=[1, 2])
    assert (request.usage["prompt_tokens"], request.usage["completion_tokens"], request.usage["total_tokens"]) == (
        2,
        9,
        11,
    )


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist."),
        (
            {"max_tokens": 998},
            400,
            "This model's maximum context length is 1000 tokens. However, you requested 998",
        ),
        ({"prompt": [1] * 1001}, 400, "your prompt contains at least 1001 input tokens"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
        ({"n": 2}, 400, "n and best_of must be 1"),
        ({"logprobs": 3}, 400, "runs no model and has no logprobs"),
        ({"response_format": {"type": "json_object"}}, 400, "cannot follow a response format"),
        ({"structured_outputs": {"choice": ["a"]}}, 400, "cannot follow a response format"),
        ({"tool_choice": "required"}, 400, "cannot call a tool"),
        ({"temperature": -1}, 400, "temperature must be non-negative"),
        ({"min_p": 0.1}, 400, "not yet supported with speculative decoding"),
        ({"logit_bias": {"1": 1}}, 400, "not yet supported with speculative decoding"),
        ({"stream_options": {"include_usage": True}}, 400, "Stream options can only be defined when `stream=True`"),
        ({"prompt": ""}, 400, "'prompt'"),
        ({"prompt": ["a", "b"]}, 400, "one prompt per request"),
    ],
)
def test_what_cannot_be_answered_is_refused(content: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(**content)
    assert caught.value.status == status
    assert message in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        protocol.parse(body, LIMITS, is_chat=False)
    assert caught.value.status == 400


@pytest.mark.parametrize("messages", ["text", [3], [{"content": "no role"}], []])
def test_messages_without_form_are_refused(messages: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse(is_chat=True, messages=messages)
    assert caught.value.status == 400
