"""Ollama's routes on a server with a model of each kind."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import MODELS, RunningServer, serving

NAMES = ("minilm", "tiny-llama")
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
DIGITS_ENTRY = f'[[models.onnx_models]]\nname = "digits"\npath = "{MODELS / "digits"}"\n'
TEXT = {"model": "tiny-llama:latest", "prompt": "A list is", "raw": True, "stream": False}
GREEDY = {"temperature": 0, "num_predict": 8, "repeat_penalty": 1.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    entries = (f'[[models.torch_models]]\nname = "{name}"\npath = "{MODELS / name}"\n' for name in NAMES)
    with serving(tmp_path_factory.mktemp("ollama"), "".join(entries) + DIGITS_ENTRY) as running:
        yield running.wait_ready()
        running.check_log()


def ask(server: RunningServer, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = server.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_text_is_that_of_completions(server: RunningServer) -> None:
    body = {"model": "tiny-llama", "prompt": "A list is", "max_tokens": 8, "temperature": 0, "repetition_penalty": 1.0}
    text = server.client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    answer = ask(server, "/api/generate", {**TEXT, "options": GREEDY})
    assert (answer["response"], answer["done"], answer["done_reason"]) == (text, True, "length")
    assert answer["eval_count"] == 8
    assert answer["model"] == "tiny-llama"


def test_stream_is_lines_by_default(server: RunningServer) -> None:
    whole = ask(server, "/api/generate", {**TEXT, "options": GREEDY})["response"]
    body = {name: value for name, value in TEXT.items() if name != "stream"}
    answer = server.client.post("/api/generate", json={**body, "options": GREEDY})
    assert answer.headers["content-type"] == "application/x-ndjson"
    *pieces, last = map(json.loads, answer.text.splitlines())
    assert "".join(piece["response"] for piece in pieces) == whole
    assert [piece["done"] for piece in pieces] == [False] * len(pieces)
    assert last["done"] is True
    assert last["total_duration"] >= last["eval_duration"]


def test_vectors_are_those_of_embeddings(server: RunningServer) -> None:
    answer = ask(server, "/api/embed", {"model": "minilm", "input": ["Bread rises."], "keep_alive": "5m"})
    body = {"model": "minilm", "input": "Bread rises.", "normalize": True}
    expected = server.client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert answer["embeddings"][0] == pytest.approx(expected, abs=1e-5)


def test_older_route_returns_same_vector(server: RunningServer) -> None:
    (vector,) = ask(server, "/api/embed", {"model": "minilm", "input": "Bread rises."})["embeddings"]
    answer = ask(server, "/api/embeddings", {"model": "minilm", "prompt": "Bread rises.", "options": {}})
    assert answer == {"embedding": pytest.approx(vector, abs=1e-5)}


def test_runtime_options_are_named_as_ignored(server: RunningServer) -> None:
    body = {**TEXT, "options": {**GREEDY, "num_ctx": 512}, "keep_alive": -1}
    answer = server.client.post("/api/generate", json=body)
    assert answer.headers["x-roundhouse-ignored"] == "options.num_ctx, keep_alive"


def test_format_makes_json(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    answer = ask(server, "/api/generate", {**TEXT, "format": schema, "options": {"num_predict": 60, "seed": 1}})
    assert type(json.loads(answer["response"])["a"]) is bool


def test_unknown_model_is_404(server: RunningServer) -> None:
    answer = ask(server, "/api/chat", {"model": "none", "messages": [{"role": "user", "content": "a"}]}, 404)
    assert list(answer) == ["error"]


def test_images_are_refused_by_name(server: RunningServer) -> None:
    message = {"role": "user", "content": "a", "images": ["aGk="]}
    answer = ask(server, "/api/chat", {"model": "tiny-llama", "messages": [message]}, 400)
    assert answer["error"].startswith("messages[0].images[0]: expected only texts, as the model reads no images")


@pytest.mark.parametrize("stream", [False, True])
def test_tool_is_called(server: RunningServer, stream: bool) -> None:
    body = {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "How warm is it in Bern?"}],
        "tools": [WEATHER],
        "options": {"temperature": 0},
        "stream": stream,
    }
    answer = server.client.post("/api/chat", json=body)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    [call] = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert call == {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    assert lines[-1]["done_reason"] == "stop"


def test_tags_are_models_of_these_routes(server: RunningServer) -> None:
    tags = server.client.get("/api/tags").json()["models"]
    assert {each["name"] for each in tags} == set(NAMES)
    listed = server.client.get("/v1/models").json()["data"]
    assert {each["id"] for each in listed} == {*NAMES, "digits"}
    assert server.client.get("/api/version").json() == {"version": "0.12.6"}
    assert {each["name"] for each in server.client.get("/api/ps").json()["models"]} == set(NAMES)


def test_show_describes_capabilities(server: RunningServer) -> None:
    assert "completion" in ask(server, "/api/show", {"model": "tiny-llama:latest"})["capabilities"]
    assert ask(server, "/api/show", {"name": "minilm"})["capabilities"] == ["embedding"]
    assert list(ask(server, "/api/show", {"model": "none"}, 404)) == ["error"]
