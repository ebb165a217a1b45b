"""The calls of Open WebUI, with the bodies and headers of its source, as a connection to Ollama and to OpenAI."""

import json
from datetime import datetime
from typing import Any

import pytest

from tests.e2e.server import RunningServer

MODEL = "tiny-llama"
HEADERS = {
    "authorization": "Bearer none",
    "x-openwebui-user-name": "Ann",
    "x-openwebui-user-id": "1",
    "x-openwebui-user-email": "ann@example.org",
    "x-openwebui-user-role": "admin",
    "x-openwebui-chat-id": "c",
}
USER = {"role": "user", "content": "How warm is it in Bern?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"}
OPTIONS = {"temperature": 0.0, "num_predict": 8, "num_ctx": 2048, "repeat_last_n": 64, "num_thread": 2, "seed": 1}


def get(server: RunningServer, path: str) -> Any:
    answer = server.client.get(path, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(server: RunningServer, path: str, body: dict[str, Any]) -> Any:
    answer = server.client.post(path, json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    return answer


class TestOllama:
    def test_connection_is_verified_and_listed(self, server: RunningServer) -> None:
        assert get(server, "/api/version")["version"]
        models = {each["model"]: each for each in get(server, "/api/tags")["models"]}
        assert models[MODEL]["name"] == MODEL
        assert "digits" not in models
        # The page shows when a model is unloaded, if a model has this member.
        for each in get(server, "/api/ps")["models"]:
            assert "expires_at" not in each or datetime.fromisoformat(each["expires_at"])

    def test_model_is_shown(self, server: RunningServer) -> None:
        shown = post(server, "/api/show", {"model": MODEL, "name": MODEL}).json()
        assert "completion" in shown["capabilities"]
        assert {"details", "model_info"} <= shown.keys()

    def test_chat_is_streamed(self, server: RunningServer) -> None:
        body = {"model": f"{MODEL}:latest", "messages": [USER], "options": OPTIONS, "stream": True, "keep_alive": "5m"}
        answer = post(server, "/api/chat", body)
        *pieces, last = map(json.loads, answer.text.splitlines())
        assert all(isinstance(each["message"]["content"], str) for each in pieces)
        assert last["done"]
        # The page shows tokens per second.
        assert last["eval_count"] == 8
        assert {"prompt_eval_count", "total_duration", "load_duration", "prompt_eval_duration"} <= last.keys()

    def test_results_of_tools_are_sent_back(self, server: RunningServer) -> None:
        call = {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
        talk = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, RESULT]
        body = {"model": MODEL, "messages": talk, "tools": [TOOL], "options": OPTIONS, "stream": False}
        assert post(server, "/api/chat", body).json()["done"]

    def test_documents_are_embedded(self, server: RunningServer) -> None:
        answer = post(server, "/api/embed", {"model": "minilm", "input": ["a", "b"], "truncate": True}).json()
        assert len(answer["embeddings"]) == 2
        assert post(server, "/api/embeddings", {"model": "minilm", "prompt": "a"}).json()["embedding"]

    def test_unload_is_refused_with_remedy(self, server: RunningServer) -> None:
        answer = server.client.post("/api/generate", json={"model": MODEL, "keep_alive": 0, "prompt": ""})
        assert (answer.status_code, "/models/{name}/unload" in answer.json()["error"]) == (400, True)


class TestOpenAi:
    def test_models_are_listed(self, server: RunningServer) -> None:
        models = {each["id"]: each for each in get(server, "/v1/models")["data"]}
        assert {"object", "owned_by"} <= models[MODEL].keys()
        assert "chat" in models[MODEL]["capabilities"]

    @pytest.mark.parametrize("content", [USER["content"], [{"type": "text", "text": USER["content"]}]])
    def test_chat_is_streamed(self, server: RunningServer, content: Any) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 8,
            "temperature": 0,
            "reasoning_effort": "low",
        }
        answer = post(server, "/v1/chat/completions", body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        assert json.loads(lines[-2])["usage"]["completion_tokens"] == 8

    def test_results_of_tools_are_sent_back(self, server: RunningServer) -> None:
        function = {"name": "weather", "arguments": '{"city": "Bern"}'}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        talk = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, RESULT]
        body = {"model": MODEL, "messages": talk, "tools": [TOOL], "max_completion_tokens": 8, "stream": False}
        assert post(server, "/v1/chat/completions", body).json()["choices"]

    def test_documents_are_embedded(self, server: RunningServer) -> None:
        answer = post(server, "/v1/embeddings", {"model": "minilm", "input": ["a", "b"]}).json()
        assert [each["index"] for each in answer["data"]] == [0, 1]
