"""Stream generated text in the native format."""

import json
from typing import Any

from app.protocols.native.generation import NativeStream
from app.protocols.shared.errors import ErrorReply
from frameworks.generation.types import TextDelta, TokenText, Usage


def read(payloads: list[bytes]) -> list[Any]:
    return [payload.decode() if payload == b"[DONE]" else json.loads(payload) for payload in payloads]


def test_stream_of_one_text() -> None:
    writer = NativeStream(1, "id")
    assert writer.begin(Usage(5, 0)) == []
    assert read(writer.piece(TextDelta(0, "Hä"))) == [{"text": "Hä", "index": 0}]
    assert writer.piece(TextDelta(0, "!", "stop")) == []
    assert read(writer.end(Usage(3, 2), 1.23456)) == [
        {
            "text": "!",
            "index": 0,
            "finish_reason": "stop",
            "tokens_generated": 2,
            "prompt_tokens": 3,
            "latency_ms": 1.235,
        },
        "[DONE]",
    ]


def test_stream_ends_with_prediction_tokens() -> None:
    writer = NativeStream(1, "id")
    writer.piece(TextDelta(0, "a", "stop"))
    last, _ = read(writer.end(Usage(3, 9, accepted_tokens=4, rejected_tokens=0), 1))
    assert (last["accepted_prediction_tokens"], last["rejected_prediction_tokens"]) == (4, 0)


def test_stream_of_several_texts() -> None:
    writer = NativeStream(2, "id")
    assert read(writer.piece(TextDelta(1, "a", "length"))) == [{"text": "a", "index": 1, "finish_reason": "length"}]
    assert read(writer.piece(TextDelta(0, "b"))) == [{"text": "b", "index": 0}]
    assert writer.piece(TextDelta(0, "", "stop")) == []
    last, done = read(writer.end(Usage(3, 2), 1))
    assert (last["index"], last["text"], last["finish_reason"], last["tokens_generated"]) == (0, "", "stop", 2)
    assert done == "[DONE]"


def test_stream_with_log_probabilities() -> None:
    token = TokenText(7, " a", -0.5, ((7, " a", -0.5), (8, " b", float("-inf"))))
    assert read(NativeStream(1, "id").piece(TextDelta(0, " a", tokens=(token,)))) == [
        {
            "text": " a",
            "index": 0,
            "logprobs": [
                {
                    "token": " a",
                    "token_id": 7,
                    "logprob": -0.5,
                    "top": [
                        {"token": " a", "token_id": 7, "logprob": -0.5},
                        {"token": " b", "token_id": 8, "logprob": None},
                    ],
                }
            ],
        }
    ]


def test_error_is_the_last_event() -> None:
    error = {"error": {"code": "model_failed", "message": "m", "request_id": "id"}}
    writer = NativeStream(2, "id")
    writer.piece(TextDelta(0, "a", "stop"))
    reply = ErrorReply(503, "model_failed", "m")
    assert read(writer.error(reply)) == [error]
    writer.piece(TextDelta(1, "b", "stop"))
    assert read(writer.error(reply)) == [{"text": "b", "index": 1, "finish_reason": "stop"}, error]
