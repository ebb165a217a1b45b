"""Fields of text generation: defaults of the model, limits that depend on it, and bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.shared.bodies import Body, read_body
from app.protocols.shared.fields.generation import (
    MAX_NAMED_TOKENS,
    MAX_STOP_CHARACTERS,
    Logprobs,
    Messages,
    NumChoices,
    SamplingFields,
    StoppingFields,
    TopLogprobs,
    check_token_ids,
    num_top_logprobs,
    to_conversation,
    to_sampling,
    to_stopping,
)
from frameworks.core.errors import FieldError, InvalidInput, RequestError, UnknownField
from frameworks.generation.types import Conversation, GenerationSpec, Message, Sampling, Stopping
from tests.app.protocols.strategies import json_values

OWN = Sampling(temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1)
SPEC = GenerationSpec(max_context_tokens=512, vocabulary_size=100, sampling=OWN)
SAMPLING_FIELDS = SamplingFields.model_fields.keys()
STOPPING_FIELDS = StoppingFields.model_fields.keys()


class Options(SamplingFields, StoppingFields):
    """The options of a request."""

    n: NumChoices = 1
    logprobs: Logprobs = None
    top_logprobs: TopLogprobs = None
    messages: Messages | None = None


def sampling(**fields: Any) -> Sampling:
    return to_sampling(read_body(Options, fields), SPEC)


def stopping(**fields: Any) -> Stopping:
    return to_stopping(read_body(Options, fields), SPEC, 256)


def conversation(messages: Any) -> Conversation:
    body = read_body(Options, {"messages": messages})
    assert body.messages is not None
    return to_conversation(body.messages)


def test_omitted_and_null_fields_have_defaults() -> None:
    assert sampling() == OWN == sampling(**dict.fromkeys(SAMPLING_FIELDS))
    assert stopping() == Stopping(256, may_be_fewer=True) == stopping(**dict.fromkeys(STOPPING_FIELDS))
    assert to_stopping(read_body(Options, {}), SPEC, None) == Stopping(None)


def test_sampling_has_every_field() -> None:
    expected = Sampling(2.0, -2.0, 0.5, {0: -100.0, 99: 1.5}, 1.0, 5, 1.0, 0.0, 2**63 - 1, bad_words=("a", "b"))
    read = sampling(
        temperature=1,
        top_p=1.0,
        top_k=5,
        min_p=0,
        repetition_penalty=2,
        frequency_penalty=-2,
        presence_penalty=0.5,
        logit_bias={"0": -100, "99": 1.5},
        seed=2**63 - 1,
        bad_words=["a", "b"],
    )
    assert read == expected
    assert read.logit_bias == expected.logit_bias
    assert to_sampling(read_body(Options, {}), SPEC, 3).top_logprobs == 3


def test_stopping_has_every_field() -> None:
    assert stopping(
        max_tokens=10, min_tokens=10, stop=["a", "\n\n"], stop_token_ids=[0, 99, 0], ignore_eos=True
    ) == Stopping(10, 10, ("a", "\n\n"), frozenset({0, 99}), True)
    assert stopping(stop="a").strings == ("a",)
    assert stopping(stop=[]).strings == ()


def test_second_limit_goes_before_max_tokens() -> None:
    assert to_stopping(read_body(Options, {"max_tokens": 5}), SPEC, None, 7, "max_completion_tokens") == Stopping(7)


def test_top_k_and_temperature_at_their_limits() -> None:
    assert sampling().top_k == 20
    assert [sampling(top_k=k).top_k for k in (-1, 0, 1)] == [None, None, 1]
    assert [sampling(temperature=t).temperature for t in (0, 1e-9, 1e-5)] == [0.0, 0.0, 1e-5]


def test_logprobs_as_boolean_or_number() -> None:
    read = [num_top_logprobs(read_body(Options, {"logprobs": value}).logprobs) for value in (None, False, True, 0, 20)]
    assert read == [None, None, 0, 0, 20]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature: expected a number from 0 to 100, got -0.1"),
        ("temperature", 101, "temperature: expected a number from 0 to 100, got 101"),
        ("temperature", True, "temperature: .* got a boolean"),
        ("temperature", "1", 'temperature: .* got "1"'),
        ("top_p", 0, 'top_p: expected a number above 0 and at most 1, got 0; .*send "temperature": 0'),
        ("top_p", 1.1, "top_p: .* got 1.1"),
        ("top_k", -2, "top_k: expected an integer from -1 to 2147483647, got -2"),
        ("top_k", 1.0, "top_k: .* got 1.0"),
        ("min_p", 2, "min_p: expected a number from 0 to 1, got 2"),
        ("repetition_penalty", 0, "repetition_penalty: expected a number from 0.01 to 100, got 0"),
        ("frequency_penalty", 3, "frequency_penalty: expected a number from -2 to 2, got 3"),
        ("presence_penalty", float("inf"), "presence_penalty: .* got inf"),
        ("seed", -1, "seed: expected an integer from 0 to 9223372036854775807, got -1"),
        ("seed", 2**63, "seed: .* got 9223372036854775808"),
        ("logit_bias", [], "logit_bias: expected an object of at most 1024 members, got an array"),
        ("logit_bias", {str(i): 0 for i in range(MAX_NAMED_TOKENS + 1)}, "logit_bias: .* got 1025 members"),
        ("logit_bias", {"100": 1}, 'logit_bias: expected token ids from 0 to 99 as keys, got "100"'),
        ("logit_bias", {"-1": 1}, 'logit_bias: expected keys that match .*, got "-1"'),
        ("logit_bias", {"٣": 1}, "logit_bias: expected keys that match"),
        ("logit_bias", {"9" * 5000: 1}, "logit_bias: expected keys that match .*, got a string"),
        ("logit_bias", {"1": 101}, "logit_bias.1: expected a number from -100 to 100, got 101"),
        ("max_tokens", 0, "max_tokens: expected an integer from 1 to 2147483647, got 0"),
        ("max_tokens", "5", 'max_tokens: .* got "5"'),
        ("min_tokens", -1, "min_tokens: expected an integer from 0 to 2147483647, got -1"),
        ("min_tokens", 257, "min_tokens: expected at most 256, the value of max_tokens, got 257"),
        ("stop", 1, "stop: expected a string of 1 to 1024 characters or a list of at most 16 strings"),
        ("stop", "", 'stop: expected a string of 1 to 1024 characters, got ""'),
        ("stop", "a" * (MAX_STOP_CHARACTERS + 1), "stop: .* got 1025 characters"),
        (
            "stop",
            ["a" * 1024, "b" * 1024, "c"],
            "stop: expected at most 2048 characters in all .*, got 2049; send",
        ),
        ("stop", ["a"] * 17, "stop: expected a list of at most 16 strings .*, got 17 items"),
        ("stop", ["a", None], r"stop\[1\]: expected a string of 1 to 1024 characters, got null"),
        ("stop_token_ids", 5, "stop_token_ids: expected a list of at most 1024 integers .*, got 5"),
        ("stop_token_ids", [1] * 1025, "stop_token_ids: .* got 1025 items"),
        ("stop_token_ids", [1, 100], r"stop_token_ids\[1\]: expected a token id from 0 to 99, got 100"),
        ("stop_token_ids", [None], r"stop_token_ids\[0\]: .* got null"),
        ("ignore_eos", 1, "ignore_eos: expected a boolean, got 1"),
        ("n", 129, "n: expected an integer from 1 to 128, got 129"),
        ("n", 0, "n: expected an integer from 1 to 128, got 0"),
        ("logprobs", 21, "logprobs: expected an integer from 0 to 20, got 21"),
        ("logprobs", "all", 'logprobs: expected a boolean or an integer from 0 to 20, got "all"'),
    ],
)
def test_value_out_of_bounds_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{message}"):
        (sampling if field in SAMPLING_FIELDS else stopping)(**{field: value})


def test_min_tokens_above_context_is_refused() -> None:
    body = read_body(Options, {"min_tokens": 600})
    with pytest.raises(InvalidInput, match=r"min_tokens: expected at most 512, the model's context, got 600"):
        to_stopping(body, SPEC, None)


def test_token_id_outside_vocabulary_is_named() -> None:
    check_token_ids((), "prompt", 100)
    check_token_ids((0, 99), "prompt", 100)
    with pytest.raises(InvalidInput, match=r"^prompt\[1\]: expected a token id from 0 to 99, got 100$"):
        check_token_ids((0, 100, 101), "prompt", 100)


def test_message_parts_are_joined() -> None:
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    assert conversation(messages) == Conversation((Message("system", ""), Message("user", "ab")))


@pytest.mark.parametrize(
    ("messages", "kind", "message"),
    [
        ("hello", InvalidInput, 'messages: expected a list of 1 to 10000 objects like .*, got "hello"'),
        ([], InvalidInput, "messages: .* got 0 items"),
        (["a"], InvalidInput, r'messages\[0\]: expected an object like .*, got "a"'),
        ([{"role": "user"}], InvalidInput, r"messages\[0\].content: expected a string or .*, got nothing"),
        ([{"content": "a"}], InvalidInput, r"messages\[0\].role: expected a string of 1 to 64 characters, got nothing"),
        ([{"role": "", "content": "a"}], InvalidInput, r"messages\[0\].role: .* got \"\""),
        ([{"role": "u", "content": "a", "nam": 1}], UnknownField, r"messages\[0\].nam: unknown field"),
        ([{"role": "u", "content": ["a"]}], InvalidInput, r"content\[0\]: expected an object like"),
        ([{"role": "u", "content": [{"type": "text", "text": 1}]}], InvalidInput, r"content\[0\].text: .* got 1"),
        ([{"role": "u", "content": [{"type": "image_url"}]}], InvalidInput, r"content\[0\].image_url: .* got nothing"),
        ([{"role": "u", "content": [{"type": "input_audio"}]}], InvalidInput, '"text" or "video_url", got'),
    ],
)
def test_invalid_messages_are_refused(messages: Any, kind: type[RequestError], message: str) -> None:
    with pytest.raises(kind, match=message):
        conversation(messages)


values = st.one_of(json_values, st.floats(-3, 3), st.integers(-2, 120), st.lists(st.integers(-1, 101), max_size=3))


@given(st.dictionaries(st.sampled_from(sorted(SAMPLING_FIELDS | STOPPING_FIELDS | {"n", "logprobs"})), values))
def test_any_value_is_within_bounds_or_refused(fields: dict[str, Any]) -> None:
    refusal = None
    try:
        body = read_body(Options, fields)
        check_bounds(to_sampling(body, SPEC), to_stopping(body, SPEC, 256), body.n or 1)
    except InvalidInput as error:
        refusal = error.message
    assert refusal is None or refusal.startswith(tuple(fields))


def check_bounds(read: Sampling, until: Stopping, num_choices: int) -> None:
    assert 0 <= read.temperature <= 100
    assert 0 < read.top_p <= 1
    assert read.top_k is None or read.top_k >= 1
    assert 0 <= read.min_p <= 1
    assert read.repetition_penalty > 0
    assert all(0 <= token_id < 100 and abs(bias) <= 100 for token_id, bias in read.logit_bias.items())
    assert until.max_tokens is not None
    assert 0 <= until.min_tokens <= until.max_tokens
    assert until.token_ids <= set(range(100))
    assert all(until.strings)
    assert 1 <= num_choices <= 128


@given(json_values)
def test_any_messages_are_read_or_refused(value: Any) -> None:
    read, refusal = None, ""
    try:
        body = read_body(Options, {"messages": value})
        read = body if body.messages is None else to_conversation(body.messages)
    except RequestError as error:
        refusal = error.message
    assert read is not None or refusal.startswith("messages")


def _messages(count: int, **last: Any) -> list[dict[str, Any]]:
    return [*({"role": "user", "content": str(i)} for i in range(count)), {"role": "user", "content": "a"} | last]


@pytest.mark.parametrize("count", [3, 63, 64, 500])
def test_long_conversations_are_read_as_short_ones(count: int) -> None:
    parts = [{"type": "text", "text": str(i)} for i in range(count)]
    body = read_body(_Conversation, {"messages": _messages(count, content=parts)})
    messages = to_conversation(body.messages).messages
    assert [message.content for message in messages] == [*map(str, range(count)), "".join(map(str, range(count)))]
    assert {message.role for message in messages} == {"user"}


@pytest.mark.parametrize("count", [3, 500])
@pytest.mark.parametrize(
    ("last", "field"),
    [
        ({"role": ""}, r"\.role"),
        ({"role": "a" * 65}, r"\.role"),
        ({"role": 5}, r"\.role"),
        ({"content": 5}, r"\.content"),
        ({"name": "x"}, r"\.name"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text"}]}, r"\.content\[1\]\.text"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image", "text": "a"}]}, r"\.content\[1\]\.type"),
        ({"content": [{"type": "text", "text": "a"}] * 99 + [{"type": "text", "text": 5}]}, r"\.content\[99\]\.text"),
    ],
)
def test_wrong_message_of_long_conversation_is_named(count: int, last: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError, match=rf"^messages\[{count}\]{field}: "):
        read_body(_Conversation, {"messages": _messages(count, **last)})


def test_too_many_messages_are_counted() -> None:
    with pytest.raises(InvalidInput, match=r"^messages: expected .* 10000 objects .*, got 10001 items"):
        read_body(_Conversation, {"messages": _messages(10_000)})


class _Conversation(Body):
    messages: Messages
