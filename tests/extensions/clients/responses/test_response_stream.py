"""The events of /v1/responses: their order, and that they build the whole response however the text is cut."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from app.protocols.openai.codec import OpenAiRequest
from app.protocols.shared.codec import Payload
from app.protocols.shared.errors import ErrorReply
from extensions.clients.responses.codec import RESPONSES_CODEC as CODEC
from frameworks.generation.types import Choice, GenerateAnswer, TextDelta, TokenText, Usage
from tests.app.protocols.openai.decoding import CONTEXT, check_is, decode, encode, events

USAGE = Usage(9, 4, 2, 1)
TOOLS = [{"type": "function", "name": "weather"}, {"type": "function", "name": "now"}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
OTHER = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
TEXTS = [
    "",
    "Hello, world.",
    "<think>Hm.\n</think>\n\nHello. ",
    f"I look. {CALL}\n{OTHER}",
    f"{CALL} And <tool_cal",
    "<think>",
]
_KINDS = get_args(get_args(ResponseStreamEvent)[0])
EVENT_TYPES = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in _KINDS}
LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


def ask(model: str = "caller", **fields: Any) -> OpenAiRequest:
    return decode(CODEC, **{"model": model, "input": "Hi", "stream": True, "tools": TOOLS, **fields})


def stream(request: OpenAiRequest, pieces: Iterable[TextDelta]) -> list[Any]:
    writer = CODEC.stream_writer(request, CONTEXT)
    payloads: list[Payload] = [*writer.begin(USAGE)]
    for piece in pieces:
        payloads += writer.piece(piece)
    return events([*payloads, *writer.end(USAGE, CONTEXT.latency_ms)])


def whole(request: OpenAiRequest, text: str, reason: Any = "stop", tokens: list[TokenText] | None = None) -> Any:
    return encode(CODEC, request, GenerateAnswer([Choice(text, reason, tokens or [])], USAGE))


def without_ids(response: Any) -> Any:
    """Return a response without the random ids of its items."""
    random = {"id", "call_id"}
    return {**response, "output": [{k: v for k, v in each.items() if k not in random} for each in response["output"]]}


def kinds_of(sent: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in sent]


@st.composite
def cut(draw: st.DrawFn) -> list[str]:
    """Return the pieces of a text."""
    text = draw(st.sampled_from(TEXTS))
    at = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    return [text[start:end] for start, end in pairwise(at)]


@given(texts=cut(), reason=st.sampled_from(["stop", "length"]), has_logprobs=st.booleans())
def test_events_build_whole_response(texts: list[str], reason: Any, has_logprobs: bool) -> None:
    request = ask(**(LOGPROBS if has_logprobs else {}))
    tokens = [TokenText(number, text, -0.5, ((1, "x", -1.0),)) for number, text in enumerate(texts)]
    pieces = [TextDelta(0, token.text, None, (token,) if has_logprobs else ()) for token in tokens]
    sent = stream(request, [*pieces, TextDelta(0, "", reason)])
    last = sent[-1]["response"]
    assert without_ids(last) == without_ids(whole(request, "".join(texts), reason, tokens if has_logprobs else None))
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert built(sent) == last["output"]


def built(sent: list[Any]) -> list[Any]:
    """Build the output from the events, by the client's own state too."""
    items: list[Any] = []
    state = ResponseStreamState[None](text_format=omit, input_tools=omit)
    for event in sent:
        check_event(event)
        if event["type"] != "response.incomplete":
            state.handle_event(construct_type(type_=ResponseStreamEvent, value=event))
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif "output_index" in event:
            item = items[-1]
            assert event.get("item_id", item["id"]) == item["id"]
            apply_to(item, event)
    return items


def apply_to(item: Any, event: Any) -> None:
    """Add an event to its item; an event of an end has what the events before it have."""
    match event["type"].removeprefix("response."):
        case "content_part.added":
            item["content"].append(event["part"])
        case "output_text.delta":
            item["content"][0]["text"] += event["delta"]
            item["content"][0]["logprobs"] += event["logprobs"]
        case "reasoning_text.delta":
            item["content"][0]["text"] += event["delta"]
        case "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        case "function_call_arguments.done":
            assert item["arguments"] == event["arguments"]
        case "output_text.done" | "reasoning_text.done":
            assert item["content"][0]["text"] == event["text"]
        case "content_part.done":
            assert item["content"] == [event["part"]]
        case "output_item.done":
            item["status"] = event["item"]["status"]
            assert item == event["item"]


def check_event(event: Any) -> None:
    """Check that OpenAI's client knows the event and all of its members."""
    known = {name: value for name, value in event.items() if name != "logprobs"}
    if "response" in known:
        known["response"] = {name: value for name, value in event["response"].items() if name != "store"}
    if "logprobs" in event:
        known["logprobs"] = []
    check_is(EVENT_TYPES[event["type"]], known)


def test_cut_call_leaves_no_markup() -> None:
    response = whole(ask(), 'I look. <tool_call>\n{"name"', "length")
    (message,) = response["output"]
    assert (message["content"][0]["text"], message["status"], response["status"]) == (
        "I look.",
        "incomplete",
        "incomplete",
    )


def test_events_of_text_in_order() -> None:
    sent = stream(ask("llama", tools=None), [TextDelta(0, "Hel"), TextDelta(0, "lo", "stop")])
    assert kinds_of(sent) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    begun = sent[0]["response"]
    assert (begun["status"], begun["output"], begun["usage"], begun["id"]) == ("in_progress", [], None, "resp_abc-1")
    assert [each["delta"] for each in sent if "delta" in each] == ["Hel", "lo"]


def test_events_of_parts_in_order() -> None:
    text = f"<think>Hm.</think>I look.{CALL}"
    kinds = kinds_of(stream(ask(), [TextDelta(0, text, "stop")]))
    reasoning = ["reasoning_text.delta", "reasoning_text.done"]
    message = ["output_text.delta", "output_text.done"]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "content_part.added", *reasoning, "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", *message, "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip


def test_arguments_arrive_in_pieces() -> None:
    sent = stream(ask(), [*(TextDelta(0, letter) for letter in CALL), TextDelta(0, "", "stop")])
    deltas = [each["delta"] for each in sent if each["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == '{"city": "Köln"}'
    assert len(deltas) > 5


def test_cut_text_ends_with_incomplete() -> None:
    sent = stream(ask("llama", tools=None), [TextDelta(0, "Hel", "length")])
    assert sent[-1]["type"] == "response.incomplete"
    assert sent[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("pieces", [[], [TextDelta(0, "Hel")], [TextDelta(0, "<think>Hm")], [TextDelta(0, CALL)]])
def test_error_ends_with_failed_response(pieces: list[TextDelta]) -> None:
    writer = CODEC.stream_writer(ask(), CONTEXT)
    sent = events([*writer.begin(USAGE), *(payload for piece in pieces for payload in writer.piece(piece))])
    ends = events(writer.error(ErrorReply(503, "draining", "going down")))
    error, failed = ends
    for event in ends:
        check_event(event)
    assert (error["type"], error["code"], error["message"]) == ("error", "draining", "going down")
    response = failed["response"]
    assert (failed["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"] == {"code": "server_error", "message": "going down"}
    assert [event["sequence_number"] for event in [*sent, *ends]] == list(range(len(sent) + 2))
    assert all(item["status"] == "incomplete" for item in response["output"])
    assert len(response["output"]) == len([each for each in sent if each["type"].endswith("item.added")])
