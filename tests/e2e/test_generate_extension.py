"""Triton's generate extension over a real socket: the texts of /infer, whole and streamed."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.server import RunningServer, wait_until

MODEL = "tiny-llama"
PROMPT = "The function returns"
GREEDY = {"temperature": 0, "max_tokens": 24}
CONTEXT = 512
ENDLESS = {"text_input": "on and on", "ignore_eos": True, "n": 64, "max_tokens": CONTEXT - 100}
"""A text that takes many seconds."""


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/v2/models/{MODEL}/", timeout=30, trust_env=False, verify=False) as client:
        yield client


def events_of(answer: httpx.Response) -> Iterator[Any]:
    """Yield the server-sent events as they arrive."""
    for line in answer.iter_lines():
        if line and not line.startswith(":"):
            assert line.startswith("data: ")
            yield json.loads(line.removeprefix("data: "))


def refused(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"error"}
    for word in words:
        assert word in body["error"]


def test_generate_equals_infer(client: httpx.Client, server: RunningServer) -> None:
    infer = server.infer(MODEL, prompt=PROMPT, **GREEDY)
    body = {"text_input": PROMPT, "stream": False, "parameters": GREEDY, "id": "7"}
    for path in ("generate", "versions/1/generate"):
        assert client.post(path, json=body).json() == {
            "id": "7",
            "model_name": MODEL,
            "model_version": "1",
            "text_output": infer["text"],
            "finish_reason": infer["finish_reason"],
            "num_input_tokens": infer["prompt_tokens"],
            "num_output_tokens": infer["tokens_generated"],
        }


def test_stream_concatenates_to_whole_text(client: httpx.Client) -> None:
    body = {"text_input": PROMPT, "max_tokens": 30, "random_seed": 4, "ignore_eos": True}
    whole = client.post("generate", json=body).json()
    for path in ("generate_stream", "versions/1/generate_stream"):
        with client.stream("POST", path, json=body | {"stream": True}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-request-id"]
            events = list(events_of(answer))
        assert len(events) > 10
        assert "".join(event["text_output"] for event in events) == whole["text_output"]
        assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]
        assert {event["model_name"] for event in events} == {MODEL}
        assert events[-1]["num_output_tokens"] == whole["num_output_tokens"] == 30


def test_curl_calls_of_triton_manual(server: RunningServer) -> None:
    """curl sends JSON with the content type of a form."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("generate", {"text_input": PROMPT, "max_tokens": 20, "bad_words": "", "stop_words": ""}),
        ("generate", {"text_input": PROMPT, "parameters": {"stream": False, "temperature": 0}}),
        ("generate_stream", {"text_input": PROMPT, "stream": True, "sampling_param_max_tokens": 5}),
    ]
    # A sampled text may be empty: its end may be the first token.
    for path, body in calls:
        url = f"{server.url}/v2/models/{MODEL}/{path}"
        curl = ["curl", "-sfN", "--noproxy", "*", "-X", "POST", url, "-d", json.dumps(body | {"ignore_eos": True})]
        said = subprocess.run(curl, capture_output=True, check=True, timeout=300).stdout.decode()
        *events, _ = f"{said.strip()}\n\n".split("\n\n")
        assert "".join(json.loads(event.removeprefix("data: "))["text_output"] for event in events)


def test_constraint_is_followed(client: httpx.Client) -> None:
    body = {"text_input": PROMPT, "parameters": {"structured_outputs": '{"choice": ["yes", "no"]}', "temperature": 0}}
    assert client.post("generate", json=body).json()["text_output"] in ("yes", "no")


def test_disconnect_frees_sequence(client: httpx.Client, server: RunningServer) -> None:
    gone = server.sample("roundhouse_requests_total", model=MODEL, code="499")
    with client.stream("POST", "generate_stream", json=ENDLESS) as answer:
        assert not next(events_of(answer))["done"]
    wait_until(lambda: server.sample("roundhouse_requests_total", model=MODEL, code="499") == gone + 1)
    wait_until(lambda: server.sample("roundhouse_sequences", model=MODEL) == 0)


def test_deadline_ends_generation(client: httpx.Client, server: RunningServer) -> None:
    # A slow machine may need longer until the first piece.
    for timeout in (1_000_000, 5_000_000, 25_000_000):
        body = ENDLESS | {"parameters": {"timeout": timeout}}
        with client.stream("POST", "generate_stream", json=body) as answer:
            if answer.status_code == 200:
                *pieces, last = list(events_of(answer))
                break
    assert answer.status_code == 200
    assert pieces
    assert last.keys() == {"error"}
    assert "fewer tokens" in last["error"]
    refused(client.post("generate", json=body | {"parameters": {"timeout": 1000}}), 504, "timeout")
    wait_until(lambda: server.sample("roundhouse_sequences", model=MODEL) == 0)


def test_errors_before_first_chunk_have_status(client: httpx.Client) -> None:
    for path in ("generate", "generate_stream"):
        refused(client.post(path, json={}), 400, "text_input: expected a string, got nothing")
        refused(client.post(path, json={"text_input": "a", "max_tokens": 10_000}), 400, "max_tokens", str(CONTEXT))
        refused(client.post(path, content=b"{"), 400, "not valid JSON")
        refused(client.post(path, content=b""), 400, "empty")
        refused(client.post(path, json={"text_input": "a"}, headers={"content-type": "text/plain"}), 415)
        refused(client.get(path), 405, "POST")
        refused(client.post(f"../digits/{path}", json={"text_input": "a"}), 400, "/v2/models/digits/infer")
        refused(client.post(f"../tiny-lama/{path}", json={"text_input": "a"}), 404, MODEL)
        refused(client.post(f"versions/9/{path}", json={"text_input": "a"}), 404, "9")
    refused(client.post("generate", json={"text_input": "a", "stream": True}), 400, "generate_stream")
