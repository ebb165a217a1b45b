"""What a body says of the text that it asks for is read within its bounds, or the field that is wrong is named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.generation_fields import (
    MAX_NAMED_TOKENS,
    MAX_STOP_CHARACTERS,
    SAMPLING_FIELDS,
    STOPPING_FIELDS,
    read_messages,
    read_num_choices,
    read_sampling,
    read_stopping,
    read_top_logprobs,
)
from frameworks.errors import InvalidInput, RequestError, UnknownField
from frameworks.generation.types import Conversation, GenerationSpec, Message, Sampling, Stopping
from tests.app.protocols.strategies import json_values

OWN = Sampling(temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1)
SPEC = GenerationSpec(max_context_tokens=512, vocabulary_size=100, sampling=OWN)


def sampling(**fields: Any) -> Sampling:
    return read_sampling(fields, SPEC)


def stopping(**fields: Any) -> Stopping:
    return read_stopping(fields, SPEC, 256)


def test_what_is_left_out_is_as_the_model_says() -> None:
    assert sampling() == OWN
    assert sampling(**dict.fromkeys(SAMPLING_FIELDS)) == OWN
    assert stopping() == Stopping(256, may_be_fewer=True) == stopping(**dict.fromkeys(STOPPING_FIELDS))
    assert read_stopping({}, SPEC, None) == Stopping(None)
    assert (read_num_choices({}), read_top_logprobs({})) == (1, None)


def test_every_field_is_read() -> None:
    asked = sampling(
        temperature=1,
        top_p=1.0,
        top_k=5,
        min_p=0,
        repetition_penalty=2,
        frequency_penalty=-2,
        presence_penalty=0.5,
        logit_bias={"0": -100, "99": 1.5},
        seed=2**63 - 1,
    )
    assert asked == Sampling(2.0, -2.0, 0.5, {0: -100.0, 99: 1.5}, 1.0, 5, 1.0, 0.0, 2**63 - 1)
    assert asked.logit_bias == {0: -100.0, 99: 1.5}
    assert read_sampling({}, SPEC, 3).top_logprobs == 3
    assert stopping(
        max_tokens=10, min_tokens=10, stop=["a", "\n\n"], stop_token_ids=[0, 99, 0], ignore_eos=True
    ) == Stopping(10, 10, ("a", "\n\n"), frozenset({0, 99}), True)
    assert stopping(stop="a").strings == ("a",)
    assert stopping(stop=[]).strings == ()


def test_what_other_protocols_call_otherwise() -> None:
    assert read_stopping({"max_completion_tokens": 7}, SPEC, None, "max_completion_tokens").max_tokens == 7
    assert read_top_logprobs({"top_logprobs": 2}, "top_logprobs") == 2
    assert read_num_choices({"best_of": 2}, "best_of") == 2


def test_all_tokens_and_the_likeliest_alone() -> None:
    assert sampling().top_k == 20
    assert [sampling(top_k=k).top_k for k in (-1, 0, 1)] == [None, None, 1]
    assert [sampling(temperature=t).temperature for t in (0, 1e-9, 1e-5)] == [0.0, 0.0, 1e-5]


def test_log_probabilities() -> None:
    given = [read_top_logprobs({"logprobs": value}) for value in (None, False, True, 0, 20)]
    assert given == [None, None, 0, 0, 20]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature: is -0.1; wants a number from 0 to 100"),
        ("temperature", 101, "temperature: is 101; wants"),
        ("temperature", True, "temperature: is a boolean; wants"),
        ("temperature", "1", "temperature: is a string; wants"),
        ("top_p", 0, 'top_p: is 0; wants a number above 0 and at most 1 .*send "temperature": 0'),
        ("top_p", 1.1, "top_p: is 1.1; wants a number from 0 to 1"),
        ("top_k", -2, r"top_k: is -2; wants a whole number from -1 to 2147483647 \(0 or -1: all\)"),
        ("top_k", 1.0, "top_k: is 1.0; wants a whole number"),
        ("min_p", 2, "min_p: is 2; wants"),
        ("repetition_penalty", 0, "repetition_penalty: is 0; wants a number from 0.01 to 100"),
        ("frequency_penalty", 3, "frequency_penalty: is 3; wants a number from -2 to 2"),
        ("presence_penalty", float("inf"), "presence_penalty: is inf; wants"),
        ("seed", -1, "seed: is -1; wants a whole number from 0 to"),
        ("seed", 2**63, "seed: is 9223372036854775808"),
        ("logit_bias", [], "logit_bias: is an array; wants an object"),
        ("logit_bias", {str(i): 0 for i in range(MAX_NAMED_TOKENS + 1)}, "logit_bias: has 1025 members"),
        ("logit_bias", {"100": 1}, 'logit_bias: has the key "100"; wants token ids from 0 to 99'),
        ("logit_bias", {"-1": 1}, 'has the key "-1"'),
        ("logit_bias", {"٣": 1}, "wants token ids"),
        ("logit_bias", {"9" * 5000: 1}, "wants token ids"),
        ("logit_bias", {"1": 101}, "logit_bias.1: is 101; wants a number from -100 to 100"),
        ("max_tokens", 0, "max_tokens: is 0; wants a whole number from 1 to"),
        ("max_tokens", "5", "max_tokens: is a string"),
        ("min_tokens", -1, "min_tokens: is -1; wants"),
        ("min_tokens", 257, "min_tokens: is 257, and max_tokens is 256; send no more than it"),
        ("stop", 1, "stop: is 1; wants a string or a list of at most 16 strings"),
        ("stop", "", "stop: has 0 characters; wants a string of 1 to 1024 characters"),
        ("stop", "a" * (MAX_STOP_CHARACTERS + 1), "stop: has 1025 characters"),
        ("stop", ["a"] * 17, "stop: has 17; wants"),
        ("stop", ["a", None], r"stop\[1\]: is null; wants a string of"),
        ("stop_token_ids", 5, "stop_token_ids: is 5; wants a list of at most 1024 token ids"),
        ("stop_token_ids", [1] * 1025, "stop_token_ids: has 1025; wants"),
        ("stop_token_ids", [1, 100], r"stop_token_ids\[1\]: is 100; wants a whole number from 0 to 99"),
        ("stop_token_ids", [None], r"stop_token_ids\[0\]: is null"),
        ("ignore_eos", 1, "ignore_eos: is 1; wants true or false"),
    ],
)
def test_what_is_out_of_its_bounds(field: str, value: Any, message: str) -> None:
    read = sampling if field in SAMPLING_FIELDS else stopping
    with pytest.raises(InvalidInput, match=f"^.*{message}"):
        read(**{field: value})


def test_choices_and_log_probabilities_out_of_their_bounds() -> None:
    with pytest.raises(InvalidInput, match="n: is 129; wants a whole number from 1 to 128"):
        read_num_choices({"n": 129})
    with pytest.raises(InvalidInput, match="logprobs: is 21; wants a whole number from 0 to 20, or true"):
        read_top_logprobs({"logprobs": 21})
    with pytest.raises(InvalidInput, match="min_tokens: is 600, and max_completion_tokens is 512"):
        read_stopping({"min_tokens": 600}, SPEC, None, "max_completion_tokens")


def test_messages() -> None:
    said = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    assert read_messages(said) == Conversation((Message("system", ""), Message("user", "ab")))


@pytest.mark.parametrize(
    ("messages", "kind", "message"),
    [
        ("hello", InvalidInput, "messages: is a string; wants a list of 1 to"),
        ([], InvalidInput, "messages: has 0; wants a list"),
        (["a"], InvalidInput, r"messages\[0\]: is a string; wants an object"),
        ([{"role": "user"}], InvalidInput, r"messages\[0\].content: is null; wants a string"),
        ([{"content": "a"}], InvalidInput, r"messages\[0\].role: wants a string like"),
        ([{"role": "", "content": "a"}], InvalidInput, r"messages\[0\].role"),
        ([{"role": "u", "content": "a", "nam": 1}], UnknownField, r"messages\[0\].nam: unknown field"),
        ([{"role": "u", "content": ["a"]}], InvalidInput, r"content\[0\]: wants .*nothing but text"),
        ([{"role": "u", "content": [{"type": "text", "text": 1}]}], InvalidInput, "nothing but text"),
        ([{"role": "u", "content": [{"type": "image_url", "image_url": {}}]}], InvalidInput, "nothing but text"),
    ],
)
def test_messages_that_are_none(messages: Any, kind: type[RequestError], message: str) -> None:
    with pytest.raises(kind, match=message):
        read_messages(messages)


values = st.one_of(json_values, st.floats(-3, 3), st.integers(-2, 120), st.lists(st.integers(-1, 101), max_size=3))


@given(st.dictionaries(st.sampled_from(sorted(SAMPLING_FIELDS | STOPPING_FIELDS | {"n", "logprobs"})), values))
def test_whatever_comes_is_read_within_its_bounds_or_refused(fields: dict[str, Any]) -> None:
    refusal = None
    try:
        check_bounds(
            read_sampling(fields, SPEC, read_top_logprobs(fields)),
            read_stopping(fields, SPEC, 256),
            read_num_choices(fields),
        )
    except InvalidInput as error:
        refusal = error.message
    assert refusal is None or refusal.startswith(tuple(fields))


def check_bounds(asked: Sampling, until: Stopping, choices: int) -> None:
    assert 0 <= asked.temperature <= 100
    assert 0 < asked.top_p <= 1
    assert asked.top_k is None or asked.top_k >= 1
    assert 0 <= asked.min_p <= 1
    assert asked.repetition_penalty > 0
    assert all(0 <= token_id < 100 and abs(bias) <= 100 for token_id, bias in asked.logit_bias.items())
    assert until.max_tokens is not None
    assert 0 <= until.min_tokens <= until.max_tokens
    assert until.token_ids <= set(range(100))
    assert all(until.strings)
    assert 1 <= choices <= 128


@given(json_values)
def test_whatever_comes_as_messages(value: Any) -> None:
    said, refusal = None, ""
    try:
        said = read_messages(value)
    except RequestError as error:
        refusal = error.message
    assert said is not None or refusal.startswith("messages")
