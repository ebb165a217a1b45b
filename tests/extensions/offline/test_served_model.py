"""Runs by HTTP: retries, refusals and the values of responses."""

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import pytest

from extensions.offline import served_model
from extensions.offline.contract import Generated, RequestRefused, RunFailed, WrongCommand
from extensions.offline.served_model import ServerModel
from frameworks.types import ClassifyAnswer, EmbedAnswer

MODEL = {
    "name": "m",
    "task": "embed",
    "state": "ready",
    "active_version": "3",
    "dtype": "float32",
    "inputs": [{"name": "x", "dtype": "float32", "shape": [-1, 2]}],
    "outputs": None,
}
Answers = list[tuple[int, dict[str, str], Any]]


@pytest.fixture
def answers() -> Answers:
    """Status, headers and body of the next responses to POST. The last one is repeated."""
    return [(200, {}, {"embeddings": [[0.5, 1]], "tokens": 4})]


@pytest.fixture
def server(answers: Answers) -> Iterator[ThreadingHTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.respond(*((200, {}, MODEL) if self.path == "/models/m" else (404, {}, {"error": {"message": "no m"}})))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.respond(*(answers.pop(0) if len(answers) > 1 else answers[0]))

        def respond(self, status: int, headers: dict[str, str], content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        thread = Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def model(server: ThreadingHTTPServer) -> Iterator[ServerModel]:
    remote = ServerModel(f"http://127.0.0.1:{server.server_port}/", "m", {}, patience_s=5.0)
    yield remote
    remote.close()


def ask(model: ServerModel) -> Any:
    return asyncio.run(model.answer(b"{}"))


def test_description_is_that_of_server(model: ServerModel) -> None:
    description = model.description
    assert (description.task, description.inputs, description.outputs) == ("embed", {"x": (-1, 2)}, {})
    assert description.identity == {"name": "m", "version": "3", "dtype": "float32"}


def test_busy_server_is_asked_again(model: ServerModel, answers: Answers) -> None:
    busy = {"error": {"message": "busy"}}
    answers[:0] = [(503, {"retry-after": "0"}, busy), (429, {"retry-after": "0"}, busy)]
    answer = ask(model)
    assert isinstance(answer, EmbedAnswer)
    assert answer.embeddings.tolist() == [[0.5, 1.0]]
    assert len(answers) == 1


def test_server_that_stays_busy_fails_run(model: ServerModel, answers: Answers) -> None:
    answers[:] = [(503, {"retry-after": "60"}, {"error": {"message": "the queue is full"}})]
    with pytest.raises(RunFailed, match="the queue is full"):
        ask(model)


@pytest.mark.parametrize("status", [400, 413, 507])
def test_refused_rows_have_reason(model: ServerModel, answers: Answers, status: int) -> None:
    answers[:] = [(status, {}, {"error": {"message": "text: too long"}})]
    with pytest.raises(RequestRefused, match="text: too long"):
        ask(model)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "^--api-key: expected a key, by --api-key or ROUNDHOUSE_API_KEY$"),
        (403, "answered 403: key: expected a key"),
        (404, "answered 404: key: expected a key"),
    ],
)
def test_refused_key_is_wrong_command(model: ServerModel, answers: Answers, status: int, message: str) -> None:
    answers[:] = [(status, {}, {"error": {"message": "key: expected a key"}})]
    with pytest.raises(WrongCommand, match=message):
        ask(model)


def test_responses_become_arrays(model: ServerModel, answers: Answers) -> None:
    outputs = {
        "x": {"dtype": "float32", "shape": [1, 2], "data": [[None, 1.5]]},
        "names": {"dtype": "string", "shape": [1], "data": ["a"]},
        "maps": {"dtype": "sequence(map(string, float32))", "shape": [1], "data": [{"a": 1}]},
    }
    answers[:] = [(200, {}, {"outputs": outputs})]
    answer = ask(model)
    assert np.array_equal(answer["x"], np.array([[np.nan, 1.5]], np.float32), equal_nan=True)
    assert (answer["names"].tolist(), answer["maps"]) == (["a"], [{"a": 1}])
    answers[:] = [(200, {}, {"predictions": [[{"label": "a", "score": 1.0}]]})]
    assert ask(model) == ClassifyAnswer([[("a", 1.0)]])
    answers[:] = [(200, {}, {"text": "so", "finish_reason": "stop", "tokens_generated": 2})]
    assert ask(model) == Generated("so", "stop", 2)


def test_endless_answer_fails_run(model: ServerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "_MAX_ANSWER_BYTES", 16)
    with pytest.raises(RunFailed, match="at most 16 bytes"):
        ask(model)


def test_absent_server_fails_run() -> None:
    with pytest.raises(RunFailed, match="expected an answer"):
        ServerModel("http://127.0.0.1:9", "m", {}, patience_s=0.1)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1", "http://"])
def test_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(WrongCommand, match="--url"):
        ServerModel(url, "m", {})
