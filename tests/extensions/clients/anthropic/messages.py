"""Requests of Anthropic's API, and what its client collects from a stream."""

import json
from collections.abc import Iterable
from typing import Any

import orjson
from jiter import from_json

from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.codec import Payload
from app.protocols.shared.errors import to_http
from extensions.clients.anthropic.messages import COUNT_TOKENS_CODEC, MESSAGES_CODEC
from frameworks.core.errors import RoundhouseError
from tests.app.protocols.openai.decoding import CONTEXT, decode, decode_error, events

USER: list[dict[str, Any]] = [{"role": "user", "content": "How warm?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def tool(name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": SCHEMA, **fields}


def ask(**fields: object) -> BodyRequest:
    return decode(MESSAGES_CODEC, **{"model": "caller", "max_tokens": 20, "messages": USER, **fields})


def count(**fields: object) -> BodyRequest:
    return decode(COUNT_TOKENS_CODEC, **{"model": "caller", "messages": USER, **fields})


def refusal(**fields: object) -> dict[str, Any]:
    """Return the body of the error that a request gets."""
    whole = {"model": "caller", "max_tokens": 20, "messages": USER, **fields}
    body = json.dumps({name: value for name, value in whole.items() if value != "absent"})
    return error_of(decode_error(MESSAGES_CODEC, body.encode()))


def error_of(error: RoundhouseError) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(MESSAGES_CODEC.error_body(to_http(error), "abc-1"))
    return body


def encode(request: BodyRequest, given: object, codec: Any = MESSAGES_CODEC) -> Any:
    encoded = codec.encode(request, given, CONTEXT)
    assert encoded.content_type == b"application/json"
    assert encoded.headers == [(b"request-id", b"abc-1")]
    return json.loads(encoded.body)


def collect(payloads: Iterable[Payload]) -> dict[str, Any]:
    """Return the message that Anthropic's client collects from a stream. Fails for events in a wrong order."""
    first, *others, last = [each for each in events(payloads) if each["type"] != "ping"]
    assert (first["type"], last) == ("message_start", {"type": "message_stop"})
    message: dict[str, Any] = first["message"]
    texts: list[str] = []
    is_open = False
    for event in others:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(message["content"])
            is_open = True
            message["content"].append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(texts) - 1
            texts[-1] += event["delta"][_TEXTS[event["delta"]["type"]]]
        elif event["type"] == "content_block_stop":
            assert is_open
            assert event["index"] == len(texts) - 1
            is_open = False
        else:
            assert event["type"] == "message_delta"
            assert not is_open
            message |= event["delta"]
            message["usage"] |= event["usage"]
    for block, text in zip(message["content"], texts, strict=True):
        if block["type"] != "tool_use":
            block[block["type"]] = text
        elif text:
            block["input"] = from_json(text.encode(), partial_mode=True)
    return message
