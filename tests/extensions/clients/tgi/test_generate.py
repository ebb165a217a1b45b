"""Routes of Text Generation Inference: what reaches the model, and responses whole and streamed."""

import itertools
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.codec import Target
from app.protocols.shared.errors import to_http
from app.protocols.shared.routes import RouteTable
from extensions.clients.tei.routes import root_routes
from extensions.clients.tgi.generate import GENERATE_CODEC, STREAM_CODEC, TgiCodec
from extensions.clients.tgi.root import ROOT_CODEC
from extensions.clients.tgi.routes import ROUTES
from frameworks.core.errors import Overloaded, RoundhouseError
from frameworks.generation.prompt_scores import PromptOptions
from frameworks.generation.types import (
    Choice,
    Constraint,
    GenerateAnswer,
    Sampling,
    Stopping,
    TextDelta,
    TokenText,
    Usage,
)
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.openai.decoding import CONTEXT, assert_refused, decode, decode_error, encode, find_spec

SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}}
PROMPT = [TokenText(1, "<s>", None, has_text=False), TokenText(5, "On", -0.5)]
TOKENS = [TokenText(7, "ce", -0.25, ((7, "ce", -0.25), (8, "ly", -3.0))), TokenText(2, "</s>", -0.125, has_text=False)]
USAGE = Usage(2, 2)


def ask(codec: Any = GENERATE_CODEC, **parameters: object) -> BodyRequest:
    return decode(codec, model="llama", inputs="On", parameters=parameters)


def refused(field: str, *words: str, **parameters: object) -> None:
    assert_refused(GENERATE_CODEC, field, *words, model="llama", inputs="On", parameters=parameters)


@pytest.mark.parametrize(("codec", "streams"), [(GENERATE_CODEC, False), (STREAM_CODEC, True)])
def test_path_decides_about_stream(codec: TgiCodec, streams: bool) -> None:
    ignored = [(b"x-roundhouse-ignored", b"stream")]
    for asked in (None, streams, not streams):
        decoded = decode(codec, model="llama", inputs="On", stream=asked)
        assert decoded.stream is streams
        assert codec.headers_of(decoded) == (ignored if asked is not None and asked is not streams else [])


class TestRequest:
    def test_default_is_greedy_without_tokens(self) -> None:
        request = decode(GENERATE_CODEC, inputs="On").request
        assert request.prompts == ("On",)
        assert request.sampling == Sampling(temperature=0.0)
        assert request.stopping == Stopping(max_tokens=100, may_be_fewer=True)
        assert request.prompt_options == PromptOptions()

    @pytest.mark.parametrize(
        ("parameters", "sampling"),
        [
            ({"do_sample": True}, Sampling()),
            ({"top_k": 3}, Sampling(top_k=3)),
            ({"top_p": 0.5, "seed": 4}, Sampling(top_p=0.5, seed=4)),
            ({"temperature": 0.5, "repetition_penalty": 1.5}, Sampling(temperature=0.5, repetition_penalty=1.5)),
            ({"do_sample": False, "frequency_penalty": 0.5}, Sampling(temperature=0.0, frequency_penalty=0.5)),
        ],
    )
    def test_defaults_are_not_those_of_model(self, parameters: dict[str, Any], sampling: Sampling) -> None:
        assert ask(**parameters).request.sampling == sampling

    def test_details_ask_for_tokens(self) -> None:
        request = ask(details=True, decoder_input_details=True, top_n_tokens=2).request
        assert request.sampling.top_logprobs == 2
        assert request.prompt_options == PromptOptions(is_echoed=True, top_logprobs=0)
        assert ask(STREAM_CODEC).request.sampling.top_logprobs == 0
        assert ask(decoder_input_details=True).request.prompt_options == PromptOptions()

    def test_stopping_is_read(self) -> None:
        assert ask(max_new_tokens=5, stop=["a", "b"]).request.stopping == Stopping(max_tokens=5, strings=("a", "b"))

    @pytest.mark.parametrize(
        "grammar",
        [
            {"type": "json", "value": SCHEMA},
            {"type": "json", "value": json.dumps(SCHEMA)},
            {"type": "json_schema", "value": {"name": "n", "schema": SCHEMA}},
        ],
    )
    def test_grammar_is_constraint(self, grammar: dict[str, Any]) -> None:
        assert ask(grammar=grammar).request.constraint == Constraint("json_schema", orjson.dumps(SCHEMA).decode())
        assert ask(grammar={"type": "regex", "value": "a+"}).request.constraint == Constraint("regex", "a+")

    def test_neutral_parameters_are_accepted(self) -> None:
        neutral = {"best_of": 1, "watermark": False, "typical_p": 1.0, "truncate": None, "adapter_id": None}
        assert ask(**neutral, details=None, stop=None).request == ask().request

    @pytest.mark.parametrize(
        ("field", "value"),
        [("best_of", 2), ("watermark", True), ("typical_p", 0.5), ("truncate", 9), ("adapter_id", "a")],
    )
    def test_refused_parameters_are_named(self, field: str, value: object) -> None:
        refused(f"parameters.{field}", "expected", **{field: value})

    def test_invalid_values_are_named(self) -> None:
        refused("parameters.max_new_tokens", "an integer from 1", max_new_tokens=0)
        refused("parameters.grammar.value", "expected a JSON schema", grammar={"type": "json", "value": "{"})
        refused("parameters.grammar.value", "no object", grammar={"type": "json", "value": "1"})
        refused("parameters.grammar.type", '"json"', grammar={"type": "xml", "value": "1"})
        assert "max_new_token" in decode_error(GENERATE_CODEC, inputs="a", parameters={"max_new_token": 1}).message
        assert_refused(GENERATE_CODEC, "inputs", "a string", inputs=["a"])
        assert_refused(GENERATE_CODEC, "model", "whose task is generate", model="embed", inputs="a")

    def test_fields_of_pipeline_are_renamed(self) -> None:
        renamed = {name: GENERATE_CODEC.rename(name) for name in ("prompt", "max_tokens", "constraint", "seed")}
        assert list(renamed.values()) == ["inputs", "parameters.max_new_tokens", "parameters.grammar.value", "seed"]


class TestWhole:
    ANSWER = GenerateAnswer([Choice("ce", "stop", TOKENS, None, "On", PROMPT)], USAGE)

    def test_text_alone_is_the_default(self) -> None:
        assert encode(GENERATE_CODEC, ask(), self.ANSWER) == {"generated_text": "ce"}
        assert encode(GENERATE_CODEC, ask(return_full_text=True), self.ANSWER) == {"generated_text": "Once"}
        assert encode(ROOT_CODEC, ask(ROOT_CODEC), self.ANSWER) == [{"generated_text": "ce"}]

    def test_details_have_tokens(self) -> None:
        details = encode(GENERATE_CODEC, ask(details=True, top_n_tokens=2, seed=3), self.ANSWER)["details"]
        assert details == {
            "finish_reason": "eos_token",
            "generated_tokens": 2,
            "seed": 3,
            "prefill": [
                {"id": 1, "text": "<s>", "logprob": None, "special": True},
                {"id": 5, "text": "On", "logprob": -0.5, "special": False},
            ],
            "tokens": [
                {"id": 7, "text": "ce", "logprob": -0.25, "special": False},
                {"id": 2, "text": "</s>", "logprob": -0.125, "special": True},
            ],
            "top_tokens": [
                [
                    {"id": 7, "text": "ce", "logprob": -0.25, "special": False},
                    {"id": 8, "text": "ly", "logprob": -3.0, "special": False},
                ],
                [],
            ],
        }

    @pytest.mark.parametrize(
        ("choice", "reason", "text"),
        [
            (Choice("a", "length"), "length", "a"),
            (Choice("a", "stop", stop_string="END"), "stop_sequence", "aEND"),
        ],
    )
    def test_finish_reason_is_tgis(self, choice: Choice, reason: str, text: str) -> None:
        body = encode(GENERATE_CODEC, ask(details=True), GenerateAnswer([choice], USAGE))
        assert (body["generated_text"], body["details"]["finish_reason"]) == (text, reason)


def events_of(pieces: list[TextDelta], **parameters: object) -> list[Any]:
    writer = STREAM_CODEC.stream_writer(ask(STREAM_CODEC, **parameters), CONTEXT)
    payloads = [*writer.begin(USAGE), *itertools.chain(*map(writer.piece, pieces)), *writer.end(USAGE, 1)]
    return [orjson.loads(each) for each in payloads]  # type: ignore[arg-type]


class TestStream:
    def test_each_token_is_an_event(self) -> None:
        pieces = [
            TextDelta(0, "On", is_prompt=True),
            TextDelta(0, "ce", None, (TOKENS[0],)),
            TextDelta(0, "", "stop", (TOKENS[1],)),
        ]
        first, last = events_of(pieces, return_full_text=True)
        assert first == {
            "index": 1,
            "token": {"id": 7, "text": "ce", "logprob": -0.25, "special": False},
            "generated_text": None,
            "details": None,
        }
        assert last == {
            "index": 2,
            "token": {"id": 2, "text": "", "logprob": -0.125, "special": True},
            "generated_text": "Once",
            "details": {"finish_reason": "eos_token", "seed": None, "generated_tokens": 2, "input_length": 2},
        }

    @given(st.lists(st.lists(st.sampled_from(["a", "\ufffd", " b"]), max_size=3), max_size=5), st.booleans())
    def test_joined_tokens_are_the_text(self, tokens: list[list[str]], has_stop: bool) -> None:
        """Characters of several tokens are whole in the text of a piece."""
        pieces = [
            TextDelta(
                0, "".join(texts).replace("\ufffd", "é"), None, tuple(TokenText(9, text, -1.0) for text in texts[1:])
            )
            for texts in tokens
        ]
        last = (
            TextDelta(0, "", "stop", (), "END") if has_stop else TextDelta(0, "z", "length", (TokenText(3, "z", -1.0),))
        )
        events = events_of([*pieces, last], **({"stop": ["END"]} if has_stop else {}))
        text = "".join(piece.text for piece in pieces) + ("END" if has_stop else "z")
        assert "".join(event["token"]["text"] for event in events) == text
        assert [event["generated_text"] for event in events] == [None] * (len(events) - 1) + [text]
        assert events[-1]["details"]["finish_reason"] == ("stop_sequence" if has_stop else "length")

    def test_error_follows_held_token(self) -> None:
        writer = STREAM_CODEC.stream_writer(ask(STREAM_CODEC, stop=["END"]), CONTEXT)
        assert writer.piece(TextDelta(0, "ce", None, (TOKENS[0],))) == []
        held, error = writer.error(to_http(Overloaded("full", 1.0)))
        assert orjson.loads(held)["token"]["text"] == "ce"  # type: ignore[arg-type]
        assert orjson.loads(error) == {"error": "full", "error_type": "overloaded"}  # type: ignore[arg-type]


class TestRoot:
    """POST / is for the task of the model, or for the member that only one of the routes has."""

    CODEC: Any = RouteTable([*root_routes(ROOT_CODEC), *ROUTES]).find("/")

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"model": "llama", "inputs": "a"}, "generate"),
            ({"model": "llama", "inputs": "a", "parameters": {"details": True}}, "generate"),
            ({"inputs": "a", "stream": False}, "generate"),
            ({"inputs": "a", "parameters": {"max_new_tokens": 3}}, "generate"),
            ({"inputs": "a"}, "embed"),
            ({"model": "classify", "inputs": "a", "parameters": {"top_k": 1}}, "classify"),
            ({"inputs": "a", "parameters": {"top_k": 1}}, "classify"),
        ],
    )
    def test_model_or_member_decides(self, body: dict[str, Any], path: str) -> None:
        content = orjson.dumps(body)
        codec = self.CODEC.codec.for_body(content)
        decoded = decode_body(codec, content, Target(), find_spec)
        assert decoded.spec.task == path
        if path == "generate":
            assert codec.encode(decoded, TestWhole.ANSWER, CONTEXT).startswith(b'[{"generated_text":"ce"')

    def test_fields_of_other_task_are_unknown(self) -> None:
        bodies: list[dict[str, Any]] = [
            {"model": "embed", "inputs": "a", "stream": True},
            {"model": "llama", "inputs": "a", "normalize": True},
        ]
        for body, message in zip(bodies, ("model: expected", "normalize: unknown field"), strict=True):
            content = orjson.dumps(body)
            with pytest.raises(RoundhouseError, match=message):
                decode_body(self.CODEC.codec.for_body(content), content, Target(), find_spec)
