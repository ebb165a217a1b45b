"""Triton's generate extension: the options of a language model, by whatever name and wherever they stand."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.open_inference.generate_request import Options, WantedText, gather, read_wanted_text
from app.protocols.open_inference.generate_schemas import GenerateTextRequest
from frameworks.errors import InvalidInput, RequestError
from frameworks.generation.types import Constraint, GenerateRequest, Sampling, Stopping
from tests.app.protocols.native.specs import GENERATION
from tests.app.protocols.strategies import json_values

EVERYTHING: dict[str, Any] = {
    "max_tokens": 9, "min_tokens": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 3,
    "repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": -0.5, "logit_bias": {"5": -100}, "n": 2,
    "stop": ["x", "y"], "stop_token_ids": [4], "ignore_eos": True, "logprobs": 2, "regex": "[a-z]+",
}  # fmt: skip
EVERYTHING_ASKED = GenerateRequest(
    ("Once",),
    Sampling(1.1, 0.5, -0.5, {5: -100.0}, 0.5, 3, 0.5, 0.1, 3, 2),
    Stopping(9, 1, ("x", "y"), frozenset({4}), True),
    Constraint("regex", "[a-z]+"),
    2,
)
SCHEMA = {"type": "boolean"}


def wanted(**body: Any) -> WantedText:
    return read_wanted_text(gather({"text_input": "Once", **body}), GENERATION)


def request(**body: Any) -> GenerateRequest:
    return wanted(**body).request


def refusal(**body: Any) -> str:
    options = gather({"text_input": "Once", **body})
    with pytest.raises(InvalidInput) as refused:
        read_wanted_text(options, GENERATION)
    return options.renamed(refused.value).message


def test_a_text_alone() -> None:
    asked = wanted()
    assert asked.request == GenerateRequest(("Once",), GENERATION.sampling, Stopping(20, may_be_fewer=True))
    assert asked == WantedText(asked.request, None, False, False, False, False)


def test_options_stand_beside_the_text_or_in_parameters_or_in_a_string() -> None:
    assert request(**EVERYTHING) == EVERYTHING_ASKED
    assert request(parameters=EVERYTHING) == EVERYTHING_ASKED
    assert request(sampling_parameters=json.dumps(EVERYTHING)) == EVERYTHING_ASKED
    assert request(sampling_parameters=[json.dumps(EVERYTHING)]) == EVERYTHING_ASKED
    assert request(**{f"sampling_param_{name}": value for name, value in EVERYTHING.items()}) == EVERYTHING_ASKED
    here, there = dict(list(EVERYTHING.items())[::2]), dict(list(EVERYTHING.items())[1::2])
    assert request(**here, parameters=there) == EVERYTHING_ASKED


def test_numbers_may_be_strings_and_one_may_be_a_list() -> None:
    as_strings = {name: str(value) if type(value) in (int, float) else value for name, value in EVERYTHING.items()}
    assert request(parameters=as_strings) == EVERYTHING_ASKED
    as_lists = {name: [value] if type(value) in (int, float, bool) else value for name, value in EVERYTHING.items()}
    assert read_wanted_text(gather({"text_input": ["Once"], **as_lists}), GENERATION).request == EVERYTHING_ASKED
    assert request(temperature="1e-1").sampling.temperature == 0.1


def test_what_tensorrt_llm_calls_the_same() -> None:
    asked = wanted(
        min_length=2, random_seed=2**64 - 1, stop_words=["x"], num_return_sequences=3, end_id=7, pad_id=2,
        streaming=True, exclude_input_from_output=False, beam_width=1, bad_words="", return_log_probs=True,
    )  # fmt: skip
    assert asked.request.stopping == Stopping(20, 2, ("x",), frozenset({7}), may_be_fewer=True)
    assert (asked.request.sampling.seed, asked.request.sampling.top_logprobs) == (2**63 - 1, 0)
    assert (asked.request.num_choices, asked.stream, asked.with_input, asked.log_probs) == (3, True, True, True)
    assert request(stop_words="", bad_words=[""], end_id=-1).stopping == request().stopping
    assert request(stop_words=[""], stop="x").stopping.strings == ("x",)


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
def test_what_the_text_has_to_be(body: dict[str, Any], constraint: Constraint) -> None:
    assert request(**body).constraint == constraint


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_input": None}, "text_input: is missing; wants a string"),
        ({"text_input": ["a", "b"]}, "text_input: is an array; wants a string"),
        ({"parameters": {"temperature": -1}}, "parameters.temperature: is -1; wants a number"),
        ({"parameters": {"temperature": "warm"}}, "parameters.temperature: is a string; wants a number"),
        ({"parameters": {"temperature": "1_0"}}, "parameters.temperature: is a string; wants a number"),
        ({"random_seed": -1}, "random_seed: is -1; wants a whole number"),
        ({"stop_words": ["a", ""]}, "stop_words[1]: has 0 characters; wants a string of 1"),
        ({"end_id": 100}, "end_id: is 100; wants a whole number from -1 to 99"),
        ({"stream": "true"}, "stream: is a string; wants true or false"),
        ({"sampling_param_n": 0}, "sampling_param_n: is 0; wants a whole number from 1"),
        ({"structured_outputs": "{"}, "structured_outputs: is a string, but not of JSON"),
        ({"structured_outputs": {"regex": "a"}, "regex": "a"}, "structured_outputs: does not go with the other"),
        ({"guided_decoding_guide": "a"}, "guided_decoding_guide_type: is missing"),
        ({"guided_decoding_guide_type": "ebnf_grammar"}, "guided_decoding_guide_type: is a string; wants one of json"),
        ({"guided_decoding_guide_type": "regex"}, "guided_decoding_guide: is missing; wants a string"),
        (
            {"guided_decoding_guide_type": "regex", "guided_decoding_guide": ""},
            'guided_decoding_guide: is ""; wants a pattern',
        ),
    ],
)
def test_what_is_wrong_is_named_as_the_caller_names_it(body: dict[str, Any], message: str) -> None:
    assert refusal(**body).startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "body: is an array; wants a JSON object"),
        ({"parameters": []}, "parameters: is an array; wants an object"),
        ({"sampling_parameters": "["}, "sampling_parameters: is a string, but not of JSON"),
        ({"n": 1, "parameters": {"n": 2}}, "parameters.n: says otherwise than n; send one of them"),
        ({"stop_words": "a", "stop": "b"}, "stop: says otherwise than stop_words; send one of them"),
        ({"bad_words": ["a"]}, "bad_words: is not served; give their tokens a logit_bias"),
        ({"parameters": {"beam_width": 2}}, "parameters.beam_width: is not served; texts are sampled"),
        ({"skip_special_tokens": False}, "skip_special_tokens: is not served"),
        ({"beam_width": True}, "beam_width: is not served"),
        ({"image": ["AAAA"]}, "image: is not served; this server reads nothing but text"),
    ],
)
def test_what_cannot_be_is_refused_whatever_the_model(body: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        gather(body)
    assert refused.value.message.startswith(message)


def test_what_nobody_knows_changes_nothing_and_null_is_as_good_as_left_out() -> None:
    unknown = {"sequence_id": 7, "my_own": {"deep": [1]}, "triton_enable_empty_final_response": True, "stop": None}
    assert wanted(**unknown, parameters=unknown) == wanted() == wanted(parameters=None)


def test_what_is_said_twice() -> None:
    """vLLM's own client says everything in `parameters` and in `sampling_parameters`, which its backend reads."""
    assert request(n=2, parameters={"n": "2"}).num_choices == 2
    assert request(parameters={"n": 3, "seed": 1}, sampling_parameters='{"n": 2}').num_choices == 2


def test_the_description_names_what_is_read() -> None:
    described = set(GenerateTextRequest.model_fields) - {"id", "parameters", "text_input"}
    for name in described:
        assert name in gather({name: 1}).fields, name


@given(st.dictionaries(st.sampled_from([*GenerateTextRequest.model_fields, "stop_words", "other"]), json_values))
def test_anything_is_read_or_refused(body: dict[str, Any]) -> None:
    options = Options({}, {})
    try:
        options = gather(body)
        read_wanted_text(options, GENERATION)
    except InvalidInput as error:
        options.renamed(error)
    except RequestError:
        pass
