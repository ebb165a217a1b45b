"""Anthropic's client, as its documentation shows it. The model has random weights, and tools in its chat template."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

URL = os.environ["ROUNDHOUSE_URL"]
MODEL = "caller"
USER = {"role": "user", "content": "How warm is it in Bern?"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Oslo"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"name": "weather", "description": "Tell the weather.", "input_schema": SCHEMA}]
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 600, "messages": [USER], "extra_body": {"seed": 1}}
CALLING: dict[str, Any] = {**ASKED, "tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}}


@pytest.fixture(scope="module")
def client() -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0) as client:
        yield client


def comparable(message: Any) -> Any:
    """Return the parts in which two responses of one text agree."""
    blocks = [block.model_dump(exclude={"id", "parsed_output"}, exclude_none=True) for block in message.content]
    usage = message.usage
    prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    return blocks, message.stop_reason, message.stop_sequence, prompt, usage.output_tokens


class TestCreate:
    def test_text(self, client: anthropic.Anthropic) -> None:
        message = client.messages.create(**{**ASKED, "max_tokens": 20}, system="Be short.", metadata={"user_id": "a"})
        assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 20)
        assert message._request_id

    def test_tools(self, client: anthropic.Anthropic) -> None:
        first = client.messages.create(**CALLING)
        call = first.content[-1]
        assert (first.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
        assert call.input["city"] in ("Bern", "Oslo")
        assert 0 <= call.input["days"] <= 9
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        talk = [USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = client.messages.create(**{**CALLING, "messages": talk, "tool_choice": {"type": "any"}})
        assert second.stop_reason == "tool_use"

    def test_stop_sequence(self, client: anthropic.Anthropic) -> None:
        text = "".join(block.text for block in client.messages.create(**ASKED).content if block.type == "text")
        message = client.messages.create(**ASKED, stop_sequences=[text[5]])
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[5])

    def test_count_tokens(self, client: anthropic.Anthropic) -> None:
        asked = {"model": MODEL, "messages": [USER], "system": "Be short.", "tools": TOOLS}
        usage = client.messages.create(**asked, max_tokens=1).usage
        counted = client.messages.count_tokens(**asked)
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


class TestStream:
    def test_text_equals_whole(self, client: anthropic.Anthropic) -> None:
        asked = {**ASKED, "max_tokens": 40}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            last = stream.get_final_message()
        assert comparable(last) == comparable(whole)
        assert text == "".join(block.text for block in last.content if block.type == "text")

    def test_calls_equal_whole(self, client: anthropic.Anthropic) -> None:
        whole = client.messages.create(**CALLING)
        with client.messages.stream(**CALLING) as stream:
            kinds = {event.type for event in stream}
            last = stream.get_final_message()
        assert comparable(last) == comparable(whole)
        assert {"message_start", "content_block_start", "input_json", "content_block_stop", "message_stop"} <= kinds

    def test_cut_off_call_equals_whole(self, client: anthropic.Anthropic) -> None:
        asked = {**CALLING, "max_tokens": 50}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            assert comparable(stream.get_final_message()) == comparable(whole)
        assert whole.stop_reason == "max_tokens"

    def test_asynchronous_client(self) -> None:
        async def ask() -> None:
            async with anthropic.AsyncAnthropic(base_url=URL, auth_token="none", max_retries=0) as client:
                whole = await client.messages.create(**CALLING)
                async with client.messages.stream(**CALLING) as stream:
                    assert comparable(await stream.get_final_message()) == comparable(whole)

        asyncio.run(ask())


class TestErrors:
    def test_unknown_model(self, client: anthropic.Anthropic) -> None:
        with pytest.raises(anthropic.NotFoundError, match="absent") as refused:
            client.messages.create(**{**ASKED, "model": "absent"})
        assert refused.value.body["error"]["type"] == "not_found_error"
        assert refused.value.request_id == refused.value.body["request_id"]

    def test_image(self, client: anthropic.Anthropic) -> None:
        image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type.*reads only text"):
            client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": [image]}]})

    def test_tool_of_server(self, client: anthropic.Anthropic) -> None:
        search = {"type": "web_search_20250305", "name": "web_search"}
        with pytest.raises(anthropic.BadRequestError, match="the server itself runs no tools"):
            client.messages.create(**ASKED, tools=[search])
