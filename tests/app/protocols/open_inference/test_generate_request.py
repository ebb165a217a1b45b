"""Options of Triton's generate extension, under all their names and in all places."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.open_inference.generate_fields import GenerateTextRequest
from app.protocols.open_inference.generate_options import collect_options
from app.protocols.open_inference.generate_request import ParsedGenerate, parse_generate
from frameworks.core.errors import InvalidInput, RequestError
from frameworks.generation.types import (
    Constraint,
    Conversation,
    GenerateRequest,
    Message,
    MessageImage,
    Sampling,
    Stopping,
)
from tests.app.protocols.native.specs import GENERATION
from tests.app.protocols.strategies import json_values

EVERYTHING: dict[str, Any] = {
    "max_tokens": 9, "min_tokens": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 3,
    "repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": -0.5, "logit_bias": {"5": -100}, "n": 2,
    "stop": ["x", "y"], "stop_token_ids": [4], "ignore_eos": True, "logprobs": 2, "regex": "[a-z]+",
}  # fmt: skip
EVERYTHING_PARSED = GenerateRequest(
    ("Once",),
    Sampling(1.1, 0.5, -0.5, {5: -100.0}, 0.5, 3, 0.5, 0.1, 3, 2),
    Stopping(9, 1, ("x", "y"), frozenset({4}), True),
    Constraint("regex", "[a-z]+"),
    2,
)
SCHEMA = {"type": "boolean"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1n"}}
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "ab"}, IMAGE]}]
CONVERSATION = Conversation(
    (Message("user", "ab", images=(MessageImage(b"img", 2, "messages[0].content[1].image_url.url"),)),)
)
ELSEWHERE = "expected none here, got some; send messages as a member of the body of /v2/models/{name}/generate"


def parsed(**body: Any) -> ParsedGenerate:
    return parse_generate(collect_options({"text_input": "Once"} | body), GENERATION)


def request(**body: Any) -> GenerateRequest:
    return parsed(**body).request


def refusal(**body: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        parsed(**body)
    return refused.value.message


def test_parse_text_alone() -> None:
    alone = parsed()
    assert alone.request == GenerateRequest(("Once",), GENERATION.sampling, Stopping(20, may_be_fewer=True))
    assert alone == ParsedGenerate(alone.request, "", 5, None, None, False, False, False, False)


def test_messages_take_place_of_text() -> None:
    for more in (EVERYTHING, {"parameters": EVERYTHING, "text_input": None, "exclude_input_in_output": True}):
        options = collect_options({"messages": MESSAGES, **more})
        assert parse_generate(options, GENERATION).request == replace(EVERYTHING_PARSED, prompts=(CONVERSATION,))
    (single,) = parse_generate(
        collect_options({"messages": [{"role": "user", "content": "a"}]}), GENERATION
    ).request.prompts
    assert single == Conversation((Message("user", "a"),))


def test_image_of_listed_host_keeps_url() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://a.org/a.png"}}
    options = collect_options({"messages": [{"role": "user", "content": [part]}]})
    (prompt,) = parse_generate(options, GENERATION).request.prompts
    assert isinstance(prompt, Conversation)
    assert [each.url for each in prompt.images] == ["https://a.org/a.png"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "text_input: expected a string, got nothing; send the text to continue, or messages"),
        ({"messages": None}, "text_input: expected a string, got nothing"),
        (
            {"text_input": "a", "messages": MESSAGES},
            "messages: expected either text_input or messages, got both; send one of them",
        ),
        (
            {"messages": MESSAGES, "parameters": {"exclude_input_from_output": False}},
            "parameters.exclude_input_from_output: expected true with messages, got false; leave it out",
        ),
        ({"messages": "a"}, "messages: expected a list of 1 to 10000 objects"),
        ({"messages": []}, "messages: expected a list of 1 to 10000 objects"),
        ({"messages": [{"role": "user", "content": [{**IMAGE, "type": "image"}]}]}, "messages[0].content[0].type: "),
        (
            {"messages": [{"role": "user", "content": [{**IMAGE, "image_url": {"url": "ftp://a"}}]}]},
            "messages[0].content[0].image_url.url: expected base64 or a data URL",
        ),
    ],
)
def test_wrong_prompt_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_generate(collect_options(body), GENERATION)
    assert refused.value.message.startswith(message)


def test_model_without_template_refuses_messages() -> None:
    with pytest.raises(InvalidInput, match=r"^messages: expected a model with a chat template, .* send text_input"):
        parse_generate(collect_options({"messages": MESSAGES}), replace(GENERATION, has_chat_template=False))


def test_options_are_collected_from_all_places() -> None:
    assert request(**EVERYTHING) == EVERYTHING_PARSED
    assert request(parameters=EVERYTHING) == EVERYTHING_PARSED
    assert request(sampling_parameters=json.dumps(EVERYTHING)) == EVERYTHING_PARSED
    assert request(sampling_parameters=[json.dumps(EVERYTHING)]) == EVERYTHING_PARSED
    assert request(**{f"sampling_param_{name}": value for name, value in EVERYTHING.items()}) == EVERYTHING_PARSED
    here, there = dict(list(EVERYTHING.items())[::2]), dict(list(EVERYTHING.items())[1::2])
    assert request(**here, parameters=there) == EVERYTHING_PARSED


def test_numbers_may_be_strings_or_lists() -> None:
    as_strings = {name: str(value) if type(value) in (int, float) else value for name, value in EVERYTHING.items()}
    assert request(parameters=as_strings) == EVERYTHING_PARSED
    as_lists = {name: [value] if type(value) in (int, float, bool) else value for name, value in EVERYTHING.items()}
    assert (
        parse_generate(collect_options({"text_input": ["Once"], **as_lists}), GENERATION).request == EVERYTHING_PARSED
    )
    assert request(temperature="1e-1").sampling.temperature == 0.1
    assert request(logit_bias='{"5": 1}').sampling.logit_bias == {5: 1.0}
    assert request(runtime_top_k=[3], runtime_top_p=[0.5]) == request(top_k=3, top_p=0.5)


def test_names_of_tensorrt_llm_are_accepted() -> None:
    result = parsed(
        min_length=2, random_seed=2**64 - 1, stop_words=["x"], num_return_sequences=3, end_id=7, pad_id=2,
        streaming=True, exclude_input_from_output=False, beam_width=1, bad_words="", return_log_probs=True,
    )  # fmt: skip
    assert result.request.stopping == Stopping(20, 2, ("x",), frozenset({7}), may_be_fewer=True)
    assert (result.request.sampling.seed, result.request.sampling.top_logprobs) == (2**63 - 1, 0)
    assert (result.request.num_choices, result.stream, result.include_input, result.log_probs) == (3, True, True, True)
    assert request(stop_words="", bad_words=[""], end_id=-1).stopping == request().stopping
    assert request(stop_words=[""], stop="x").stopping.strings == ("x",)
    assert request(bad_words="").sampling.bad_words == ()
    assert request(bad_words=["x", "y z"]).sampling.bad_words == ("x", "y z")
    with pytest.raises(
        InvalidInput, match=r"parameters\.bad_words: expected at most 2048 characters in all strings, got"
    ):
        request(parameters={"bad_words": ["a" * 1024] * 3})


@pytest.mark.parametrize(
    ("body", "constraint"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, Constraint("json_schema", '{"type":"boolean"}')),
        ({"structured_outputs": '{"regex": "a"}'}, Constraint("regex", "a")),
        ({"guided_decoding": {"choice": ["a"], "backend": "xgrammar"}}, Constraint("choice", '["a"]')),
        ({"guided_decoding_guide_type": "json"}, Constraint("json_schema", "true")),
        (
            {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(SCHEMA)},
            Constraint("json_schema", '{"type":"boolean"}'),
        ),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a"}, Constraint("regex", "a")),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
    ],
)
def test_constraints_of_all_backends_are_read(body: dict[str, Any], constraint: Constraint) -> None:
    assert request(**body).constraint == constraint


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_input": None}, "text_input: expected a string, got nothing"),
        ({"text_input": ["a", "b"]}, "text_input: expected a string, got an array"),
        ({"parameters": {"temperature": -1}}, "parameters.temperature: expected a number from 0 to 100, got -1"),
        ({"parameters": {"temperature": "warm"}}, 'parameters.temperature: expected a number from 0 to 100, got "'),
        ({"parameters": {"temperature": "1_0"}}, 'parameters.temperature: expected a number from 0 to 100, got "'),
        ({"random_seed": -1}, "random_seed: expected an integer from 0 to 9223372036854775807, got -1"),
        ({"stop_words": ["a", ""]}, 'stop_words[1]: expected a string of 1 to 1024 characters, got ""'),
        ({"end_id": 100}, "end_id: expected an integer from -1 to 99, got 100"),
        ({"stream": "true"}, 'stream: expected a boolean, got "true"'),
        ({"sampling_param_n": 0}, "sampling_param_n: expected an integer from 1 to 128, got 0"),
        ({"structured_outputs": "{"}, "structured_outputs: expected JSON in the string, got an error"),
        (
            {"structured_outputs": {"regex": "a"}, "regex": "a"},
            "structured_outputs: expected one constraint, got several",
        ),
        (
            {"guided_decoding_guide": "a"},
            "guided_decoding_guide_type: expected json, json_schema or regex, got nothing",
        ),
        (
            {"guided_decoding_guide_type": "ebnf_grammar"},
            'guided_decoding_guide_type: expected "json" or "json_schema" or "regex", got "ebnf_grammar"',
        ),
        (
            {"guided_decoding_guide_type": "regex"},
            "guided_decoding_guide: expected a string, the schema or the pattern, got nothing",
        ),
        (
            {"guided_decoding_guide_type": "regex", "guided_decoding_guide": ""},
            'guided_decoding_guide: expected a string of 1 to 65536 characters, got ""',
        ),
    ],
)
def test_error_has_the_name_of_the_caller(body: dict[str, Any], message: str) -> None:
    assert refusal(**body).startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "body: expected a JSON object, got an array"),
        ({"parameters": []}, 'parameters: expected an object like {"temperature": 0}, got an array'),
        ({"sampling_parameters": "["}, "sampling_parameters: expected JSON in the string, got an error"),
        ({"n": 1, "parameters": {"n": 2}}, "parameters.n: expected the value of n, got another; send one of them"),
        ({"stop_words": "a", "stop": "b"}, "stop: expected the value of stop_words, got another; send one of them"),
        ({"parameters": {"beam_width": 2}}, "parameters.beam_width: not supported; texts are sampled"),
        ({"skip_special_tokens": False}, "skip_special_tokens: not supported"),
        ({"beam_width": True}, "beam_width: not supported"),
        ({"image": ["AAAA"]}, "image: not supported; send messages with image_url parts to /v2/models/{name}/generate"),
        ({"parameters": {"image_url": "a"}}, "parameters.image_url: not supported; send messages with image_url parts"),
        ({"prompt_vocab_size": 7}, "prompt_vocab_size: not supported; prompts have no embeddings of their own"),
        ({"parameters": {"messages": MESSAGES}}, f"parameters.messages: {ELSEWHERE}"),
        ({"sampling_parameters": '{"messages": []}'}, f"sampling_parameters.messages: {ELSEWHERE}"),
        ({"lora_name": "red"}, "lora_name: not supported; name the adapter in the name of the model"),
        ({"logit_bias": "{"}, "logit_bias: expected JSON in the string, got an error"),
    ],
)
def test_invalid_or_unsupported_options_are_refused(body: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        collect_options(body)
    assert refused.value.message.startswith(message)


def test_unknown_options_and_null_have_no_effect() -> None:
    unknown = {"sequence_id": 7, "my_own": {"deep": [1]}, "triton_enable_empty_final_response": True, "stop": None}
    assert parsed(**unknown, parameters=unknown) == parsed() == parsed(parameters=None)


def test_repeated_options_have_to_agree() -> None:
    """vLLM's own client sends options in `parameters` and in `sampling_parameters`; its backend reads the latter."""
    assert request(n=2, parameters={"n": "2"}).num_choices == 2
    assert request(parameters={"n": 3, "seed": 1}, sampling_parameters='{"n": 2}').num_choices == 2


def test_every_described_option_is_collected() -> None:
    described = set(GenerateTextRequest.model_fields) - {"id", "parameters", "text_input"}
    for name in described:
        assert name in collect_options({name: 1}).fields, name


@given(st.dictionaries(st.sampled_from([*GenerateTextRequest.model_fields, "stop_words", "other"]), json_values))
def test_any_options_are_parsed_or_refused(body: dict[str, Any]) -> None:
    with suppress(RequestError):
        parse_generate(collect_options(body), GENERATION)
