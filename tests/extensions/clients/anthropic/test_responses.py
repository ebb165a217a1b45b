"""Responses of Anthropic's API, whole and streamed, and its errors."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.errors import Forbidden, QuotaExceeded, Unauthenticated
from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.errors import TooLarge, to_http
from extensions.clients.anthropic.messages import COUNT_TOKENS_CODEC, MESSAGES_CODEC
from frameworks.core.errors import (
    DeadlineExceeded,
    Draining,
    InvalidInput,
    ModelFailed,
    ModelNotFound,
    Overloaded,
    RoundhouseError,
)
from frameworks.generation.types import Choice, GenerateAnswer, TextDelta, Usage
from frameworks.text.tokens import TokenizeAnswer
from tests.app.protocols.openai.decoding import CONTEXT, events
from tests.extensions.clients.anthropic.messages import ask, collect, count, encode, error_of, tool

DAYS = [1, 23456789012345678901234]
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "Bern", "days": {DAYS}}}}}\n</tool_call>'
NEXT = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TEXT = f"<think>\nHm.\n</think>\n\nI look. {CALL}\n{NEXT}"
USAGE = Usage(5, 9, 3)


def caller(**fields: object) -> BodyRequest:
    return ask(tools=[tool(), tool("now")], **fields)


def whole(text: str, reason: Any = "stop", stop_string: str | None = None, request: BodyRequest | None = None) -> Any:
    choice = Choice(text, reason, stop_string=stop_string)
    return encode(request or caller(), GenerateAnswer([choice], USAGE))


def streamed(parts: list[str], reason: Any = "stop", stop_string: str | None = None) -> Any:
    writer = MESSAGES_CODEC.stream_writer(caller(stream=True), CONTEXT)
    pieces = [TextDelta(0, part) for part in parts] + [TextDelta(0, "", reason, (), stop_string)]
    payloads = [*writer.begin(Usage(5, 1, 0)), *itertools.chain(*map(writer.piece, pieces)), *writer.end(USAGE, 1.0)]
    return collect(payloads)


def without_ids(message: Any) -> Any:
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("call_")
    return message


class TestWhole:
    def test_blocks_are_in_order_of_text(self) -> None:
        message = without_ids(whole(TEXT))
        assert message == {
            "id": "msg_abc-1",
            "type": "message",
            "role": "assistant",
            "model": "llama",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "I look."},
                {
                    "type": "tool_use",
                    "name": "weather",
                    "input": {"city": "Bern", "days": DAYS},
                },
                {"type": "tool_use", "name": "now", "input": {}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 2,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 3,
                "output_tokens": 9,
            },
        }

    @pytest.mark.parametrize(
        ("reason", "stop_string", "expected"),
        [("stop", None, "end_turn"), ("length", None, "max_tokens"), ("stop", "\n", "stop_sequence")],
    )
    def test_stop_reason_is_anthropics(self, reason: Any, stop_string: str | None, expected: str) -> None:
        message = whole("Warm.", reason, stop_string, ask(model="llama"))
        assert message["content"] == [{"type": "text", "text": "Warm."}]
        assert (message["stop_reason"], message["stop_sequence"]) == (expected, stop_string)

    def test_cut_call_leaves_no_markup(self) -> None:
        text = 'I look. <tool_call>\n{"name"'
        for message in (whole(text, "length"), streamed([text], "length")):
            assert message["content"] == [{"type": "text", "text": "I look."}]
            assert message["stop_reason"] == "max_tokens"

    def test_empty_text_has_no_blocks(self) -> None:
        assert whole("", request=ask(model="llama"))["content"] == []

    def test_single_call_is_first_of_several(self) -> None:
        for choice in ({"type": "auto", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
            message = whole(CALL + NEXT, request=caller(tool_choice=choice))
            assert [block["name"] for block in message["content"]] == ["weather"]

    def test_invalid_input_is_empty(self) -> None:
        message = whole('<tool_call>{"name": "now", "arguments": {"a": "\\ud800"}}</tool_call>')
        assert message["content"][0]["input"] == {}

    def test_long_text_is_parsed_off_loop(self) -> None:
        long = GenerateAnswer([Choice("x" * 20_000, "stop")], USAGE)
        assert MESSAGES_CODEC.is_long_to_write(caller(), long)
        assert not MESSAGES_CODEC.is_long_to_write(ask(model="llama"), long)

    def test_count_is_number_of_tokens(self) -> None:
        answer = TokenizeAnswer([1, 2, 3], None, 64)
        assert encode(count(), answer, COUNT_TOKENS_CODEC) == {"input_tokens": 3}


class TestStream:
    @given(cuts=st.sets(st.integers(0, len(TEXT))), end=st.integers(0, len(TEXT)))
    def test_streamed_equals_whole(self, cuts: set[int], end: int) -> None:
        borders = sorted({0, end, *(cut for cut in cuts if cut < end)})
        parts = [TEXT[start:stop] for start, stop in itertools.pairwise(borders)]
        reason = "stop" if end == len(TEXT) else "length"
        assert without_ids(streamed(parts, reason)) == without_ids(whole(TEXT[:end], reason))

    def test_stop_sequence_is_in_last_delta(self) -> None:
        message = streamed(["Warm."], "stop", "\n")
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "\n")

    def test_first_events_are_start_and_ping(self) -> None:
        writer = MESSAGES_CODEC.stream_writer(caller(stream=True), CONTEXT)
        start, ping = events(writer.begin(Usage(5, 1, 3)))
        assert ping == {"type": "ping"}
        message = start["message"]
        assert (message["content"], message["stop_reason"], message["id"]) == ([], None, "msg_abc-1")
        assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (2, 1)

    def test_error_is_event_of_its_own(self) -> None:
        writer = MESSAGES_CODEC.stream_writer(caller(stream=True), CONTEXT)
        (event,) = events(writer.error(to_http(DeadlineExceeded("late"))))
        expected = {"type": "timeout_error", "message": "late"}
        assert event == {"type": "error", "error": expected, "request_id": "abc-1"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidInput("top_k", "expected 1"), "invalid_request_error"),
        (Unauthenticated("no key", "absent"), "authentication_error"),
        (Forbidden("no scope"), "permission_error"),
        (ModelNotFound("a", ["b"]), "not_found_error"),
        (TooLarge(5), "request_too_large"),
        (QuotaExceeded("too many", 1.0), "rate_limit_error"),
        (Overloaded("full", 1.0), "overloaded_error"),
        (Draining("ends"), "overloaded_error"),
        (ModelFailed("failed"), "api_error"),
        (DeadlineExceeded("late"), "timeout_error"),
    ],
)
def test_error_type_is_that_of_status(error: RoundhouseError, kind: str) -> None:
    assert error_of(error)["error"]["type"] == kind
