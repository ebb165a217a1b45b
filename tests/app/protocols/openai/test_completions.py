"""/v1/completions: bodies decoded, and responses parsed by OpenAI's own client."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from app.protocols.openai.codec import OpenAiRequest
from app.protocols.openai.completions import COMPLETIONS_CODEC
from app.protocols.shared.errors import ErrorReply
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import (
    Choice,
    Constraint,
    GenerateAnswer,
    GenerateRequest,
    Sampling,
    Stopping,
    TextDelta,
    TokenText,
    Usage,
)
from tests.app.protocols.openai.decoding import (
    CONTEXT,
    SPECS,
    VOCABULARY_SIZE,
    assert_refused,
    check_is,
    decode,
    encode,
    events,
)

HEAD = {"id": "cmpl-abc-1", "object": "text_completion", "created": 1_700_000_000, "model": "llama"}
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 6},
}
USED = Usage(1, 1)
TOKENS = (
    TokenText(7, "an", -0.5, ((7, "an", -0.5), (8, "a", -1.5))),
    TokenText(9, " ox", -3.0, ((4, " a", -0.1), (5, " a", -0.2))),
)


def completion(**fields: object) -> OpenAiRequest:
    return decode(COMPLETIONS_CODEC, **{"model": "llama", "prompt": "Once", **fields})


def refused(field: str, *words: str, **fields: object) -> None:
    assert_refused(COMPLETIONS_CODEC, field, *words, **{"model": "llama", "prompt": "Once", **fields})


class TestRequest:
    def test_request_without_options_has_defaults(self) -> None:
        decoded = completion()
        assert decoded.request == GenerateRequest(
            ("Once",), Sampling(temperature=0.7, top_k=40), Stopping(max_tokens=16, may_be_fewer=True)
        )
        assert (decoded.spec, decoded.stream, decoded.priority, decoded.timeout_ms) == (
            SPECS["llama"], False, 5, None,
        )  # fmt: skip

    def test_every_option_reaches_request(self) -> None:
        decoded = completion(
            prompt=["a", "b"], n=2, max_tokens=9, min_tokens=1, temperature=0, top_p=0.5, top_k=0, min_p=0.1, seed=3,
            repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=-0.5, logit_bias={"5": -100}, logprobs=5,
            stop=["x", "y"], stop_token_ids=[4], ignore_eos=True, stream=True, stream_options={"include_usage": True},
            regex="[a-z]+", priority=1, timeout_ms=500, user="me", bad_words=["x"],
        )  # fmt: skip
        assert decoded.request == GenerateRequest(
            ("a", "b"),
            Sampling(1.1, 0.5, -0.5, {5: -100.0}, 0.0, None, 0.5, 0.1, 3, 5, ("x",)),
            Stopping(9, 1, ("x", "y"), frozenset({4}), True),
            Constraint("regex", "[a-z]+"),
            2,
        )
        assert (decoded.stream, decoded.body.user, decoded.priority, decoded.timeout_ms) == (True, "me", 1, 500)

    def test_null_counts_as_omitted(self) -> None:
        names = ("temperature", "stop", "logprobs", "n", "stream", "stream_options", "suffix", "best_of", "user")
        assert completion(**dict.fromkeys(names)).request == completion().request

    @given(st.text(max_size=20) | st.lists(st.text(max_size=20), min_size=1, max_size=5))
    def test_prompt_of_texts_is_read(self, prompt: str | list[str]) -> None:
        assert completion(prompt=prompt).request.prompts == ((prompt,) if isinstance(prompt, str) else tuple(prompt))

    @given(st.lists(st.lists(st.integers(0, VOCABULARY_SIZE - 1), min_size=1, max_size=8), min_size=1, max_size=4))
    def test_prompt_of_token_ids_is_read(self, ids: list[list[int]]) -> None:
        assert completion(prompt=ids).request.prompts == tuple(map(tuple, ids))
        assert completion(prompt=ids[0]).request.prompts == (tuple(ids[0]),)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=8,
        )
    )
    def test_any_prompt_is_read_or_refused(self, prompt: Any) -> None:
        def is_ids(value: Any) -> bool:
            return bool(value) and all(type(i) is int and 0 <= i < VOCABULARY_SIZE for i in value)

        as_list = isinstance(prompt, list) and prompt != []
        is_right = (
            isinstance(prompt, str)
            or (as_list and (all(isinstance(p, str) for p in prompt) or is_ids(prompt)))
            or (as_list and all(isinstance(p, list) and is_ids(p) for p in prompt))
        )
        if is_right:
            assert completion(prompt=prompt).request.prompts
        else:
            with pytest.raises(InvalidInput, match=r"^prompt"):
                completion(prompt=prompt)

    @pytest.mark.parametrize(
        ("prompt", "field", "word"),
        [
            (None, "prompt", "got nothing"),
            ([], "prompt", "got 0 items"),
            (["a", 1], "prompt[1]", "1"),
            ([1, True], "prompt[1]", "got a boolean"),
            ([[1], []], "prompt[1]", "got 0 items"),
            ([1, VOCABULARY_SIZE], "prompt[1]", "expected a token id from 0 to 99, got 100"),
            ([[1], [-1]], "prompt[1][0]", "-1"),
            ({"text": "a"}, "prompt", "got an object"),
            (["a"] * 129, "prompt", "128"),
        ],
    )
    def test_invalid_prompt_is_refused(self, prompt: object, field: str, word: str) -> None:
        refused(field, word, prompt=prompt)

    def test_too_many_texts_are_refused(self) -> None:
        refused("n", "128", prompt=["a"] * 2, n=65)

    @pytest.mark.parametrize("logprobs", [6, -1, True, "all", 1.5])
    def test_logprobs(self, logprobs: object) -> None:
        refused("logprobs", "expected an integer from 0 to 5", logprobs=logprobs)

    @pytest.mark.parametrize(
        "neutral", [{"echo": False}, {"suffix": ""}, {"best_of": 1}, {"skip_special_tokens": True}]
    )
    def test_neutral_value_of_refused_field_is_accepted(self, neutral: dict[str, object]) -> None:
        assert completion(**neutral).request == completion().request

    @pytest.mark.parametrize(
        ("field", "value", "word"),
        [
            ("return_token_ids", True, "return_tokens_as_token_ids"),
            ("suffix", "end", "fill-in-the-middle tokens"),
            ("best_of", 3, "by n"),
            ("use_beam_search", True, "temperature 0"),
        ],
    )
    def test_refused_field_is_named_with_remedy(self, field: str, value: object, word: str) -> None:
        refused(field, "expected ", word, **{field: value})


class TestConstraints:
    @pytest.mark.parametrize(
        ("fields", "constraint"),
        [
            ({"response_format": {"type": "text"}}, None),
            ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
            ({"structured_outputs": {"json_object": True}}, Constraint("json_object")),
            ({"structured_outputs": {"json_object": False}}, None),
            ({"structured_outputs": {"regex": "a+"}}, Constraint("regex", "a+")),
            ({"structured_outputs": {"choice": ["a", "b"]}}, Constraint("choice", '["a","b"]')),
            ({"structured_outputs": {"json": {"type": "null"}}}, Constraint("json_schema", '{"type":"null"}')),
            ({"choice": ["a"]}, Constraint("choice", '["a"]')),
        ],
    )
    def test_constraint_is_read_from_each_field(self, fields: dict[str, object], constraint: Constraint | None) -> None:
        assert completion(**fields).request.constraint == constraint

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"structured_outputs": []}, "structured_outputs"),
            ({"structured_outputs": {"json": "{}"}}, "structured_outputs.json"),
            ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
            ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.json_object"),
            ({"structured_outputs": {"regex": "a"}, "choice": ["a"]}, "structured_outputs"),
            ({"regex": "a", "choice": ["a"]}, "choice"),
        ],
    )
    def test_invalid_constraint_is_refused(self, fields: dict[str, object], field: str) -> None:
        refused(field, **fields)


class TestStreamOptions:
    def test_stream_options_need_stream_and_booleans(self) -> None:
        refused("stream_options", '"stream": true', stream_options={"include_usage": True})
        refused("stream_options", "an array", stream=True, stream_options=[])
        refused(
            "stream_options.include_usage",
            "expected a boolean, got 1",
            stream=True,
            stream_options={"include_usage": 1},
        )

    @pytest.mark.parametrize("is_asked", [False, True])
    def test_obfuscation_is_named_as_ignored(self, is_asked: bool) -> None:
        decoded = completion(stream=True, stream_options={"include_obfuscation": is_asked})
        named = [(b"x-roundhouse-ignored", b"stream_options.include_obfuscation")]
        assert COMPLETIONS_CODEC.headers_of(decoded) == (named if is_asked else [])


class TestResponse:
    def test_response_has_each_choice(self) -> None:
        given = GenerateAnswer([Choice(" upon", "length"), Choice(" a", "stop")], Usage(5, 3, 4, 1, 2, 6))
        body = encode(COMPLETIONS_CODEC, completion(n=2), given)
        assert body == {
            **HEAD,
            "choices": [
                {"index": 0, "text": " upon", "logprobs": None, "finish_reason": "length"},
                {"index": 1, "text": " a", "logprobs": None, "finish_reason": "stop"},
            ],
            "usage": USAGE,
        }
        check_is(Completion, body)

    def test_logprobs(self) -> None:
        given = GenerateAnswer([Choice("an ox", "stop", [*TOKENS])], Usage(5, 3, 4))
        body = encode(COMPLETIONS_CODEC, completion(logprobs=2), given)
        assert body["choices"][0]["logprobs"] == {
            "tokens": ["an", " ox"],
            "token_logprobs": [-0.5, -3.0],
            # Of two tokens with one text the more likely; always the chosen token.
            "top_logprobs": [{"an": -0.5, "a": -1.5}, {" a": -0.1, " ox": -3.0}],
            "text_offset": [0, 2],
        }
        check_is(Completion, body)

    def test_infinite_logprob_is_written_as_number(self) -> None:
        token = TokenText(1, "x", -math.inf, ((1, "x", -math.inf), (2, "y", -math.inf)))
        body = encode(COMPLETIONS_CODEC, completion(logprobs=2), GenerateAnswer([Choice("x", "stop", [token])], USED))
        logprobs = body["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"] == [-9999.0]
        assert logprobs["top_logprobs"] == [{"x": -9999.0, "y": -9999.0}]
        check_is(Completion, body)


class TestStream:
    def test_stream_sends_each_piece(self) -> None:
        writer = COMPLETIONS_CODEC.stream_writer(completion(stream=True, n=2), CONTEXT)
        assert writer.begin(Usage(5, 0)) == []
        (first,) = events(writer.piece(TextDelta(1, " upon")))
        assert first == {
            **HEAD, "choices": [{"index": 1, "text": " upon", "logprobs": None, "finish_reason": None}]
        }  # fmt: skip
        (last,) = events(writer.piece(TextDelta(0, "", "stop")))
        assert last["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]
        assert events(writer.end(Usage(5, 3, 4), 1.0)) == [b"[DONE]"]

    def test_stream_usage_is_last_without_choices(self) -> None:
        decoded = completion(stream=True, stream_options={"include_usage": True})
        writer = COMPLETIONS_CODEC.stream_writer(decoded, CONTEXT)
        (piece,) = events(writer.piece(TextDelta(0, "a")))
        assert piece["usage"] is None
        usage, done = events(writer.end(Usage(5, 3, 4, 1, 2, 6), 1.0))
        assert usage == {**HEAD, "choices": [], "usage": USAGE}
        assert done == b"[DONE]"
        check_is(Completion, usage)

    def test_stream_text_offsets_continue_across_pieces(self) -> None:
        writer = COMPLETIONS_CODEC.stream_writer(completion(stream=True, logprobs=1, n=2), CONTEXT)
        offsets = []
        for piece in (
            TextDelta(0, "an", tokens=TOKENS[:1]),
            TextDelta(1, "a", tokens=TOKENS[:1]),
            TextDelta(0, "", tokens=TOKENS),
        ):
            (event,) = events(writer.piece(piece))
            check_is(Completion, {**event, "choices": [{**event["choices"][0], "finish_reason": "stop"}]})
            offsets.append(event["choices"][0]["logprobs"]["text_offset"])
        assert offsets == [[0], [0], [2, 4]]

    @pytest.mark.parametrize("is_asked", [True, False, None])
    def test_stop_string_is_part_on_request(self, is_asked: bool | None) -> None:
        decoded = completion(stop="END", include_stop_str_in_output=is_asked)
        text = "a END" if is_asked else "a "
        whole = GenerateAnswer([Choice("a ", "stop", stop_string="END")], Usage(5, 3))
        assert encode(COMPLETIONS_CODEC, decoded, whole)["choices"][0]["text"] == text
        writer = COMPLETIONS_CODEC.stream_writer(decoded, CONTEXT)
        pieces = [*writer.piece(TextDelta(0, "a")), *writer.piece(TextDelta(0, " ", "stop", stop_string="END"))]
        assert "".join(event["choices"][0]["text"] for event in events(pieces)) == text

    def test_stream_error_has_openai_body(self) -> None:
        writer = COMPLETIONS_CODEC.stream_writer(completion(stream=True), CONTEXT)
        (error,) = events(writer.error(ErrorReply(504, "deadline_exceeded", "too late")))
        assert error == {
            "error": {"message": "too late", "type": "server_error", "param": None, "code": "deadline_exceeded"}
        }


def test_token_ids_beyond_context_are_refused_unread() -> None:
    """Ids that are no ids show that no id was validated."""
    assert_refused(
        COMPLETIONS_CODEC, "prompt", "fewer than", "got 100000", model="llama", prompt=[1] * 99_999 + ["no id"]
    )
    assert_refused(
        COMPLETIONS_CODEC, "prompt[1]", "fewer than", "got 9000", model="llama", prompt=[[1], ["no id"] * 9000]
    )
