"""Anthropic's Messages API over a real server with keys, whole and streamed. The models have random weights."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from app.auth.principal import Scope
from app.protocols.shared.codec import NamedEvent
from frameworks.core.settings.entries import ToolFormat
from tests.e2e.server import RunningServer, serving
from tests.extensions.clients.anthropic.messages import collect
from tests.support.keyring import make_key, write_keys
from tests.support.models.causal_folders import save_tool_model
from tests.support.models.tool_templates import ALWAYS_THINKING, TEMPLATES

KEY = make_key("search")
READER = make_key("search", Scope.READ)
USER = {"role": "user", "content": "How warm is it?"}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", 'the "old" town']},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"name": "weather", "description": "Tell the weather.", "input_schema": WEATHER},
    {"name": "now", "input_schema": {"type": "object", "maxProperties": 0}},
]
CHOSEN = {"type": "tool", "name": "weather"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("messages")
    config = '[[auth.tenants]]\nname = "search"\noperator = true\n'
    models: list[tuple[str, ToolFormat, str]] = [
        ("hermes", "hermes", TEMPLATES["hermes"]),
        ("mistral", "mistral", TEMPLATES["mistral"]),
        ("thinker", "hermes", ALWAYS_THINKING),
    ]
    for name, tools, template in models:
        path = save_tool_model(folder / name, tools, template, max_position_embeddings=4096)
        config += f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\nkv_cache_bytes = "8MiB"\n'
    write_keys(folder / "keys.toml", KEY, READER)
    with serving(folder, config) as running:
        running.client.headers.update({"x-api-key": KEY.text, "anthropic-version": "2023-06-01"})
        yield running.wait_ready()
        running.check_log()


def post(server: RunningServer, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    return server.client.post(path, json=fields)


def ask(server: RunningServer, model: str = "hermes", **fields: Any) -> Any:
    answer = post(server, **{"model": model, "max_tokens": 900, "messages": [USER], "seed": 1, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    return answer.json()


def stream(server: RunningServer, model: str = "hermes", **fields: Any) -> Any:
    """Return the message that the events of a stream make."""
    body = {"model": model, "max_tokens": 900, "messages": [USER], "seed": 1, "stream": True, **fields}
    answer = server.client.post("/v1/messages", json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    events = answer.text.removesuffix("\n\n").split("\n\n")
    found = [each.split("\n") for each in events if not each.startswith(":")]
    return collect(
        NamedEvent(name.removeprefix("event: ").encode(), data.removeprefix("data: ").encode()) for name, data in found
    )


def refused(answer: httpx.Response, status: int, kind: str) -> str:
    """Check that the response is an error of this type, and return its message."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body["request_id"] == answer.headers["request-id"]
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    return str(body["error"]["message"])


def without_ids(message: Any) -> Any:
    """Remove what differs between two responses of one text: ids, and how much of the prompt was cached."""
    del message["id"]
    usage = message["usage"]
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    for block in message["content"]:
        block.pop("id", None)
    return message


class TestTools:
    @pytest.mark.parametrize("model", ["hermes", "mistral", "thinker"])
    def test_streamed_call_equals_whole(self, server: RunningServer, model: str) -> None:
        fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        whole = ask(server, model, **fields)
        assert whole["stop_reason"] == "tool_use"
        (call,) = [each for each in whole["content"] if each["type"] == "tool_use"]
        jsonschema.validate(call["input"], {each["name"]: each["input_schema"] for each in TOOLS}[call["name"]])
        assert without_ids(stream(server, model, **fields)) == without_ids(whole)

    def test_cut_off_call_equals_whole(self, server: RunningServer) -> None:
        fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": CHOSEN, "max_tokens": 45}
        whole = ask(server, **fields)
        assert whole["stop_reason"] == "max_tokens"
        assert without_ids(stream(server, **fields)) == without_ids(whole)

    def test_result_is_sent_back(self, server: RunningServer) -> None:
        first = ask(server, tools=TOOLS, tool_choice=CHOSEN)
        call = first["content"][-1]
        counts = []
        for content in ("12 degrees", "12 degrees, and rain"):
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": content}
            talk = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
            fields: dict[str, Any] = {"messages": talk, "tools": TOOLS, "tool_choice": CHOSEN, "system": "Be short."}
            usage = ask(server, **fields)["usage"]
            counted: Any = post(server, "/v1/messages/count_tokens", model="hermes", **fields).json()
            counts.append(usage["input_tokens"] + usage["cache_read_input_tokens"])
            assert counted == {"input_tokens": counts[-1]}
        assert counts[1] - counts[0] == len(", and rain")

    def test_schema_that_cannot_be_held_is_named(self, server: RunningServer) -> None:
        bad = {"name": "bad", "input_schema": {"type": "object", "not": {}}}
        fields: dict[str, Any] = {"tools": [*TOOLS, bad], "tool_choice": {"type": "any"}}
        answer = post(server, model="hermes", max_tokens=9, messages=[USER], **fields)
        assert refused(answer, 400, "invalid_request_error").startswith("tools[2].input_schema: ")


class TestText:
    def test_streamed_text_equals_whole(self, server: RunningServer) -> None:
        whole = ask(server, max_tokens=20)
        assert [each["type"] for each in whole["content"]] == ["text"]
        assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("max_tokens", 20)
        assert without_ids(stream(server, max_tokens=20)) == without_ids(whole)

    def test_thinking_is_a_block(self, server: RunningServer) -> None:
        (block,) = ask(server, "thinker", max_tokens=12)["content"]
        assert block["type"] == "thinking"
        assert block["thinking"]
        assert stream(server, "thinker", max_tokens=12)["content"] == [block]

    def test_stop_sequence_is_reported(self, server: RunningServer) -> None:
        text = ask(server, max_tokens=20)["content"][0]["text"]
        last = text[-1]
        for message in (
            ask(server, max_tokens=20, stop_sequences=["~~~", last]),
            stream(server, max_tokens=20, stop_sequences=["~~~", last]),
        ):
            assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", last)
            shown = "".join(block["text"] for block in message["content"])
            assert shown == text[: text.index(last)]

    def test_format_of_output_is_held(self, server: RunningServer) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"enum": ["b"]}},
            "required": ["a"],
            "additionalProperties": False,
        }
        wanted = {"format": {"type": "json_schema", "schema": schema}}
        message = ask(server, "thinker", output_config=wanted, max_tokens=2000)
        thinking, text = message["content"]
        assert (thinking["type"], json.loads(text["text"])) == ("thinking", {"a": "b"})

    def test_disabled_thinking_reaches_template(self, server: RunningServer) -> None:
        counts = [
            post(server, "/v1/messages/count_tokens", model="hermes", messages=[USER], **fields).json()["input_tokens"]
            for fields in ({}, {"thinking": {"type": "disabled"}})
        ]
        assert counts[1] > counts[0]


class TestErrors:
    def test_refusals_have_anthropics_form(self, server: RunningServer) -> None:
        image = [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "a"}}]}]
        message = refused(post(server, model="hermes", max_tokens=9, messages=image), 400, "invalid_request_error")
        expected = 'messages[0].content[0].type: expected "text" or "image" or "tool_result", got "document"'
        assert message.startswith(expected)
        refused(post(server, model="absent", max_tokens=9, messages=[USER]), 404, "not_found_error")
        refused(server.post("/v1/messages", b"{"), 400, "invalid_request_error")
        refused(server.client.get("/v1/messages"), 405, "invalid_request_error")
        late = post(server, model="hermes", max_tokens=3000, messages=[USER], timeout_ms=1)
        refused(late, 504, "timeout_error")

    def test_key_is_needed(self, server: RunningServer) -> None:
        body = {"model": "hermes", "max_tokens": 1, "messages": [USER]}
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            with httpx.Client(base_url=server.url) as client:
                refused(client.post(path, json=body), 401, "authentication_error")
                refused(client.post(path, json=body, headers={"x-api-key": READER.text}), 403, "permission_error")
                if path == "/v1/messages":
                    assert client.post(path, json=body, headers=KEY.headers).status_code == 200
