"""Triton's generate extension: decode requests, and encode whole and streamed responses."""

import math
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from app.inference.unnamed_model import UnnamedModel
from app.protocols.open_inference.generate_codec import DecodedGenerate, GenerateCodec
from app.protocols.open_inference.generate_response import GenerateTextResponse
from app.protocols.shared.codec import AnswerContext, NamedEvent, Target
from app.protocols.shared.errors import ErrorReply, InvalidJson, UnsupportedMediaType, to_http
from frameworks.core.errors import InvalidInput, ModelLoading, ModelNotFound
from frameworks.generation.types import (
    Choice,
    Conversation,
    FinishReason,
    GenerateAnswer,
    Message,
    TextDelta,
    TokenText,
    Usage,
)
from frameworks.types import ModelSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS, find_spec

WHOLE, STREAM = GenerateCodec(False), GenerateCodec(True)
CONTEXT = AnswerContext("generate", "3", "abc", 1.5, 1_700_000_000)
HEAD = {"model_name": "generate", "model_version": "3"}
USAGE = Usage(prompt_tokens=5, tokens_generated=4)
COUNTS = {"num_input_tokens": 5, "num_output_tokens": 4}
TOKENS = (
    TokenText(7, "an", -0.5, ((7, "an", -0.5), (8, "a", -1.5))),
    TokenText(9, " ox", None, ((4, " a", -0.1), (5, " b", -math.inf))),
)
FORM = b"application/x-www-form-urlencoded"


def ask(codec: GenerateCodec = WHOLE, model: str = "generate", **body: Any) -> DecodedGenerate:
    content = orjson.dumps({"text_input": "Once", **body})
    decoded: DecodedGenerate = decode_body(codec, content, Target(model), find_spec)
    return decoded


def refusal(codec: GenerateCodec = WHOLE, model: str = "generate", **body: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        ask(codec, model, **body)
    return refused.value.message


def answer(*texts: str, **body: Any) -> Any:
    decoded = ask(**body)
    choices = [Choice(text, "stop", [*TOKENS]) for text in texts]
    content = orjson.loads(WHOLE.encode(decoded, GenerateAnswer(choices, USAGE), CONTEXT))
    GenerateTextResponse.model_validate(content, strict=True)
    return content


def events(pieces: list[TextDelta], error: bool = False, **body: Any) -> list[Any]:
    """Return the events of a generate_stream response."""
    writer = STREAM.stream_writer(ask(STREAM, **body), CONTEXT)
    payloads = [*writer.begin(Usage(5, 0)), *(payload for piece in pieces for payload in writer.piece(piece))]
    payloads += writer.error(ErrorReply(504, "deadline_exceeded", "too late")) if error else writer.end(USAGE, 1.0)
    assert not any(isinstance(payload, NamedEvent) for payload in payloads)
    return [orjson.loads(payload) for payload in payloads if isinstance(payload, bytes)]


def event(text: Any, reason: Any = None, done: bool = False, **more: Any) -> dict[str, Any]:
    return {**HEAD, "text_output": text, "finish_reason": reason, "done": done, **more}


def split(reason: FinishReason | None = "stop") -> list[TextDelta]:
    return [TextDelta(0, "Ha", None, TOKENS[:1]), TextDelta(0, "llo", reason, TOKENS[1:])]


class TestDecode:
    def test_text_alone_has_defaults(self) -> None:
        decoded = ask()
        assert decoded.request.prompts == ("Once",)
        assert (decoded.spec, decoded.parsed.id, decoded.priority, decoded.timeout_ms, decoded.stream) == (
            SPECS["generate"], "", 5, None, False,
        )  # fmt: skip
        assert (ask(STREAM).stream, ask(STREAM).in_parts, ask(STREAM, stream=False).in_parts) == (True, True, False)

    def test_id_priority_and_timeout(self) -> None:
        decoded = ask(id="mine", parameters={"priority": 9, "timeout": 1500})
        assert (decoded.parsed.id, decoded.priority, decoded.timeout_ms) == ("mine", 9, 1.5)
        decoded = ask(priority="0", timeout=["2500"])
        assert (decoded.priority, decoded.timeout_ms) == (5, 2.5)
        assert refusal(id=7) == "id: expected a string, got 7"
        assert refusal(parameters={"priority": 10}).startswith(
            "parameters.priority: expected an integer from 0 to 9, got 10"
        )

    def test_stream_needs_its_own_path(self) -> None:
        assert "generate_stream" in refusal(stream=True)
        assert not ask(stream=False).stream

    def test_only_whole_texts_include_the_input(self) -> None:
        assert ask(STREAM, exclude_input_in_output=False, stream=False).parsed.include_input
        texts = [each["text_output"] for each in events(split(), exclude_input_in_output=False)]
        assert texts == ["Ha", "llo"]

    @pytest.mark.parametrize(("model", "task"), [("matrix", "tensor"), ("embed", "embed"), ("classify", "classify")])
    def test_model_of_another_task_is_refused(self, model: str, task: str) -> None:
        message = refusal(model=model)
        assert message.startswith(
            f'text_input: expected a model of task generate, got "{model}" of task {task}; post its inputs to'
        )
        assert f"/v2/models/{model}/infer" in message

    def test_messages_for_other_task_are_named(self) -> None:
        body = orjson.dumps({"messages": [{"role": "user", "content": "a"}]})
        with pytest.raises(InvalidInput, match=r"^messages: expected a model of task generate"):
            decode_body(WHOLE, body, Target("matrix"), find_spec)

    def test_conversation_is_decoded_for_both_forms(self) -> None:
        body = orjson.dumps({"messages": [{"role": "user", "content": "a"}], "parameters": {"max_tokens": 3}})
        for codec in (WHOLE, STREAM):
            decoded = decode_body(codec, body, Target("generate"), find_spec)
            assert decoded.request.prompts == (Conversation((Message("user", "a"),)),)
            assert (decoded.request.stopping.max_tokens, decoded.stream) == (3, codec is STREAM)

    def test_unknown_model_is_reported_first(self) -> None:
        with pytest.raises(ModelNotFound):
            ask(model="unknown", temperature=-1)

    def test_timeout_bounds_the_wait_for_a_load(self) -> None:
        read: list[float | None] = []

        def absent(
            name: str | UnnamedModel, version: str | None, read_timeout_ms: Callable[[], float | None]
        ) -> ModelSpec:
            assert (name, version) == ("generate", "2")
            read.append(read_timeout_ms())
            raise ModelLoading("not loaded")

        for body in ({}, {"parameters": {"timeout": 1500}}):
            with pytest.raises(ModelLoading):
                decode_body(WHOLE, orjson.dumps(body), Target("generate", "2"), absent)
        assert read == [None, 2]

    def test_invalid_json_is_refused(self) -> None:
        with pytest.raises(InvalidJson):
            decode_body(WHOLE, b"{", Target("generate"), find_spec)


class TestHeaders:
    def test_form_of_curl_is_accepted(self) -> None:
        for headers in ([], [(b"content-type", FORM)], [(b"content-type", b"application/json")]):
            assert WHOLE.for_head(headers, b"") is WHOLE

    @pytest.mark.parametrize(
        "headers",
        [
            [(b"origin", b"http://a.example"), (b"content-type", FORM)],
            [(b"content-type", FORM), (b"origin", b"null")],
            [(b"content-type", b"text/plain")],
        ],
    )
    def test_form_of_a_web_page_is_refused(self, headers: Any) -> None:
        with pytest.raises(UnsupportedMediaType):
            WHOLE.for_head(headers, b"")


class TestEncode:
    def test_response_has_the_new_text(self) -> None:
        assert answer("Hallo") == {**HEAD, "text_output": "Hallo", "finish_reason": "stop", **COUNTS}
        assert answer("Hallo", id="7")["id"] == "7"

    def test_response_may_include_the_input(self) -> None:
        assert answer(" a", exclude_input_in_output=False)["text_output"] == "Once a"
        assert answer(" a", exclude_input_in_output=True)["text_output"] == " a"

    def test_several_texts_are_lists(self) -> None:
        content = answer("a", "b", n=2, return_cumulative_logprob=True)
        assert (content["text_output"], content["finish_reason"]) == (["a", "b"], ["stop", "stop"])
        assert content["cumulative_logprob"] == [-0.5, -0.5]

    def test_log_probabilities_follow_each_backend(self) -> None:
        content = answer("an ox", return_log_probs=True)
        assert (content["output_log_probs"], content["cum_log_probs"]) == ([-0.5, None], -0.5)
        content = answer("an ox", logprobs=2, return_logprobs=True)
        assert orjson.loads(content["logprobs"]) == [
            {
                "7": {"logprob": -0.5, "rank": 1, "decoded_token": "an"},
                "8": {"logprob": -1.5, "rank": 2, "decoded_token": "a"},
            },
            {
                "4": {"logprob": -0.1, "rank": 1, "decoded_token": " a"},
                "5": {"logprob": None, "rank": 2, "decoded_token": " b"},
                "9": {"logprob": None, "rank": None, "decoded_token": " ox"},
            },
        ]
        assert answer("an ox", return_logprobs=True).keys() == answer("an ox").keys()


class TestStreamWriter:
    def test_last_event_has_the_counts(self) -> None:
        assert events(split()) == [event("Ha"), event("llo", "stop", True, **COUNTS)]
        assert [each["id"] for each in events(split(), id="7")] == ["7", "7"]

    def test_error_is_an_event_of_its_own(self) -> None:
        assert events(split(None), error=True) == [event("Ha"), event("llo"), {"error": "too late"}]
        assert events(split(), error=True) == [event("Ha"), event("llo", "stop"), {"error": "too late"}]
        assert events(split(), error=True, stream=False) == [{"error": "too late"}]

    def test_event_has_an_element_for_each_text(self) -> None:
        pieces = [TextDelta(1, "b"), TextDelta(0, "a", "stop"), TextDelta(1, "c", "length")]
        assert events(pieces, n=2) == [
            event(["", "b"], [None, None]),
            event(["a", ""], ["stop", None]),
            event(["", "c"], [None, "length"], True, **COUNTS),
        ]

    def test_event_has_its_log_probabilities(self) -> None:
        first, last = events(split(), return_log_probs=True)
        assert (first["output_log_probs"], first["cum_log_probs"]) == ([-0.5], -0.5)
        assert (last["output_log_probs"], last["cum_log_probs"]) == ([None], -0.5)

    def test_whole_text_may_be_one_event(self) -> None:
        assert events(split(), stream=False) == [event("Hallo", "stop", True, **COUNTS)]
        (only,) = events([TextDelta(1, "b", "stop"), TextDelta(0, "a", "stop")], stream=False, n=2)
        assert only["text_output"] == ["a", "b"]

    def test_every_event_meets_the_schema(self) -> None:
        for each in events(split(), return_log_probs=True, return_cumulative_logprob=True, id="7"):
            GenerateTextResponse.model_validate(each, strict=True)


def test_error_body_names_text_input() -> None:
    assert orjson.loads(WHOLE.error_body(to_http(InvalidInput("prompt", "is empty")), "abc")) == {
        "error": "text_input: is empty"
    }
