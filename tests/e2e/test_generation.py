"""Text generation over a real socket: concurrent requests, each with the same text as alone."""

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from app.cli.commands import main
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.support.models.causal_folders import byte_tokenizer, causal_model, save_causal_model

CONTEXT = 4096
PROMPTS = [f"{'engines wait ' * (1 + 3 * (i % 4))}{i}" for i in range(16)]
NEW_TOKENS = 12
MOST_ROUNDS = 100
LONG_TEXT = 120
"""Tokens of a text that is generated while the test does something else."""


def _entries(folder: Path) -> str:
    """Save a model; the entries of `lm`, and of `narrow` with little memory for its KV cache."""
    path = save_causal_model(folder / "lm", max_position_embeddings=CONTEXT)
    return f"""
[[models.torch_models]]
name = "lm"
path = "{path}"
kv_cache_bytes = "8MiB"

[[models.torch_models]]
name = "narrow"
path = "{path}"
kv_cache_bytes = "96KiB"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("generation")
    with serving(folder, _entries(folder)) as running:
        yield running.wait_ready()


def _ask_all(server: RunningServer, bodies: list[dict[str, Any]]) -> list[Any]:
    """Send all requests at once."""

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            answers = await asyncio.gather(*(client.post("/infer", json=body) for body in bodies))
        assert [answer.status_code for answer in answers] == [200] * len(bodies), answers[0].text
        return [answer.json() for answer in answers]

    return asyncio.run(ask())


def _events(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def _running(server: RunningServer) -> float:
    return server.sample("roundhouse_sequences")


def test_concurrent_greedy_texts_equal_transformers(server: RunningServer) -> None:
    model, tokenizer = causal_model(max_position_embeddings=CONTEXT), byte_tokenizer()
    asked = [{"model_name": "lm", "prompt": p, "max_tokens": NEW_TOKENS, "temperature": 0} for p in PROMPTS]
    for prompt, answer in zip(PROMPTS, _ask_all(server, asked), strict=True):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        alone = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)[0, ids.shape[1] :]
        assert answer["text"] == tokenizer.decode(alone, skip_special_tokens=True)
        assert (answer["tokens_generated"], answer["prompt_tokens"]) == (len(alone), ids.shape[1])


def test_seeded_text_unchanged_by_batch_and_preemption(server: RunningServer) -> None:
    """The KV cache of `narrow` holds two of these texts, and fewer at their ends."""
    bodies: list[dict[str, Any]] = [
        {"model_name": "narrow", "prompt": prompt[-30:], "max_tokens": 40, "seed": seed, "ignore_eos": True}
        for seed, prompt in enumerate(PROMPTS[1:5])
    ]
    alone = [_ask_all(server, [body])[0]["text"] for body in bodies]
    before = server.sample("roundhouse_preemptions_total", model="narrow")
    for _ in range(MOST_ROUNDS):  # on a busy machine one text may end before the next one arrives
        assert [answer["text"] for answer in _ask_all(server, bodies)] == alone
        if server.sample("roundhouse_preemptions_total", model="narrow") > before:
            break
    else:
        pytest.fail("no text was preempted")
    assert server.sample("roundhouse_kv_cache_bytes", model="narrow", kind="used") == 0


def test_only_generating_model_is_default(server: RunningServer) -> None:
    body = {"prompt": "a", "max_tokens": 1, "temperature": 0}
    message = assert_refused(server.client.post("/infer", json=body), 400, "invalid_input", "lm, narrow generate text")
    assert message.startswith("model_name: expected a model name, got none")
    server.client.post("/models/narrow/unload")
    answer = server.client.post("/inference", json=body).json()
    assert (answer["model_name"], answer["tokens_generated"]) == ("lm", 1)
    server.client.post("/models/narrow/load")


def test_stream_concatenates_to_whole_text(server: RunningServer) -> None:
    body = {"model_name": "lm", "prompt": "a shed", "max_tokens": 30, "n": 3, "seed": 5}
    whole = server.infer("lm", **body)
    texts = ["", "", ""]
    with server.client.stream("POST", "/inference", json=body | {"stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = list(_events(answer.iter_lines()))
    for piece in pieces:
        texts[piece["index"]] += piece["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert pieces[-1]["tokens_generated"] == whole["tokens_generated"]
    assert sum("finish_reason" in piece for piece in pieces) == 3


def test_common_prefix_computed_once(server: RunningServer) -> None:
    before = server.sample("roundhouse_prefix_cache_hit_tokens_total", model="lm")
    common = "the same beginning of a long prompt, which is more than two blocks of thirty-two bytes. "
    asked = [{"model_name": "lm", "prompt": common + str(i), "max_tokens": 2, "temperature": 0} for i in range(4)]
    _ask_all(server, asked)
    assert server.sample("roundhouse_prefix_cache_hit_tokens_total", model="lm") - before >= 3 * 64


@pytest.mark.parametrize("is_stream", [True, False])
def test_disconnect_frees_sequence(server: RunningServer, is_stream: bool) -> None:
    # Repeated if the text was complete before the client disconnected.
    wait_until(lambda: _disconnect(server, is_stream))


def _disconnect(server: RunningServer, is_stream: bool) -> bool:
    """Disconnect while a text is generated; return whether the server counted that and generated no more of it."""
    max_tokens = CONTEXT - 100
    body = {"prompt": "for ever", "max_tokens": max_tokens, "ignore_eos": True, "stream": is_stream}

    def counts() -> list[float]:
        """All requests, those disconnected, and tokens."""
        requests = (server.sample("roundhouse_requests_total", model="lm", **code) for code in ({}, {"code": "499"}))
        return [*requests, server.sample("roundhouse_tokens_generated_total", model="lm")]

    before = counts()
    with httpx.Client(base_url=server.url, trust_env=False, verify=False) as client, suppress(httpx.ReadTimeout):
        wait_s = None if is_stream else 0.5
        with client.stream("POST", "/models/lm/infer", json=body, timeout=httpx.Timeout(WAIT_S, read=wait_s)) as answer:
            next(answer.iter_lines())
    wait_until(lambda: counts()[0] > before[0] and _running(server) == 0)
    _, disconnected, tokens = (after - at_start for after, at_start in zip(counts(), before, strict=True))
    return disconnected == 1 and tokens < max_tokens


def test_deadline_ends_generation(server: RunningServer) -> None:
    body = {"prompt": "for ever", "max_tokens": CONTEXT - 100, "ignore_eos": True, "timeout_ms": 300}
    assert_refused(server.client.post("/models/lm/infer", json=body), 504, "deadline_exceeded", "fewer tokens")
    pieces: list[Any] = []
    # A slow machine needs more time for the first token.
    for timeout_ms in (300, 1000, 3000, 10_000):
        late = body | {"stream": True, "timeout_ms": timeout_ms}
        with server.client.stream("POST", "/models/lm/infer", json=late) as answer:
            *pieces, last = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if "{" in line]
        if pieces:
            break
    assert answer.status_code == 200
    assert pieces
    assert last["error"]["code"] == "deadline_exceeded"
    wait_until(lambda: _running(server) == 0)


def test_generating_model_described_and_counted(server: RunningServer) -> None:
    model = server.client.get("/models/lm").json()
    assert (model["task"], model["state"], model["dtype"]) == ("generate", "ready", "float32")
    assert model["memory_bytes"] >= 8 * 2**20
    assert model["version_details"]["1"]["max_tokens"] == CONTEXT
    narrow = server.client.get("/models/narrow").json()["version_details"]["1"]["max_tokens"]
    too_long = server.client.post("/models/narrow/infer", json={"prompt": "x" * narrow, "max_tokens": 1})
    assert_refused(too_long, 400, "invalid_input", str(narrow))


def test_command_line_generates_text(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    for question in ("--prompt", "--message"):
        assert main(["infer", "lm", question, "hello", "--max-tokens", "3", "--url", server.url]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["tokens_generated"] <= 3
        assert answer["prompt_tokens"] == len("hello" if question == "--prompt" else "user: hello\nassistant:")


@pytest.mark.extended
def test_stop_and_unload_wait_for_running_texts(server: RunningServer) -> None:
    """The last test of this file: it stops the server that the others share."""
    texts: list[list[Any]] = [[], []]
    begun = [threading.Event(), threading.Event()]

    def read(number: int, model: str) -> None:
        body = {"prompt": "on and on", "max_tokens": LONG_TEXT, "ignore_eos": True, "stream": True, "seed": 1}
        with httpx.stream("POST", f"{server.url}/models/{model}/infer", json=body, timeout=WAIT_S) as answer:
            for event in _events(answer.iter_lines()):
                texts[number].append(event)
                begun[number].set()

    readers = [threading.Thread(target=read, args=(0, "lm"))]
    readers[0].start()
    assert begun[0].wait(WAIT_S)
    assert server.client.post("/models/lm/unload").status_code == 200
    readers[0].join(WAIT_S)
    assert texts[0][-1]["tokens_generated"] == LONG_TEXT
    assert_refused(server.client.post("/models/lm/infer", json={"prompt": "a"}), 503, "unloaded")
    assert server.client.post("/models/lm/load").status_code == 200
    readers.append(threading.Thread(target=read, args=(1, "lm")))
    readers[1].start()
    assert begun[1].wait(WAIT_S)
    server.process.send_signal(signal.SIGTERM)
    readers[1].join(WAIT_S)
    assert texts[1][-1]["tokens_generated"] == LONG_TEXT
    server.wait_stopped(0)
