"""A model on two ranks in a running server: equal texts, its memory, the end of a rank, and no process left."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import Start
from tests.e2e.engines import engines, state
from tests.e2e.server import RunningServer, assert_refused, wait_until
from tests.support.models.causal_folders import save_causal_model

CONFIG = """
[[models.torch_models]]
name = "one"
path = "{folder}"
dtype = "f32"
kernels = "plain"
[[models.torch_models]]
name = "two"
path = "{folder}"
dtype = "f32"
device = "cpu"
kernels = "plain"
tensor_parallel = 2
"""
BODIES: list[dict[str, Any]] = [
    {"prompt": "a" * (1 + 17 * i), "max_tokens": 12, "temperature": i % 2, "seed": i} for i in range(4)
]


def texts(server: RunningServer, model: str) -> list[str]:
    with ThreadPoolExecutor(len(BODIES)) as pool:
        return [answer["text"] for answer in pool.map(lambda body: server.infer(model, **body), BODIES)]


def followers(server: RunningServer) -> list[psutil.Process]:
    """Return the ranks beside that of the engine; none while it restarts."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for name, process in engines(server):
            children = process.children() if name == "two" else []
            found += [each for each in children if any("tensor_parallel.follower" in word for word in each.cmdline())]
    return found


def wait_for_ranks(server: RunningServer) -> psutil.Process:
    """Wait until the model is ready again; return its second rank."""
    wait_until(lambda: len(followers(server)) == 1 and state(server, "two") == "ready")
    [rank] = followers(server)
    return rank


def described(server: RunningServer, model: str) -> dict[str, Any]:
    answer: dict[str, Any] = server.client.get(f"/models/{model}").json()
    return answer


@pytest.mark.extended
def test_killed_rank_fails_and_restarts_model(start: Start, tmp_path: Path) -> None:
    folder = save_causal_model(tmp_path / "model")
    server = start(CONFIG.format(folder=folder)).wait_ready()
    expected = texts(server, "one")
    assert texts(server, "two") == expected
    two = described(server, "two")
    assert two["device"] == "cpu,cpu"
    # Each rank's process is counted.
    [rank] = followers(server)
    assert two["memory_bytes"] > rank.memory_full_info().pss
    os.kill(rank.pid, signal.SIGKILL)
    answer = server.client.post("/models/two/infer", json=BODIES[0])
    assert_refused(answer, 503, "model_failed", "tensor_parallel: rank 1 of 2 ended (signal SIGKILL)")
    assert server.infer("one", **BODIES[0])["text"] == expected[0]
    wait_until(lambda: state(server, "two") == "failed")
    rank = wait_for_ranks(server)
    assert texts(server, "two") == expected
    assert server.client.post("/models/two/unload").status_code == 200
    wait_until(lambda: not engines(server) and not rank.is_running())


def test_registration_without_divisor_is_refused(start: Start, tmp_path: Path) -> None:
    folder = save_causal_model(tmp_path / "model")
    server = start(f'[models]\nroots = ["{tmp_path}"]\n').wait_ready()
    body = {"framework": "pytorch", "name": "new", "path": str(folder), "tensor_parallel": 4}
    answer = server.client.post("/models", json=body)
    assert answer.status_code == 400, answer.text
    assert "tensor_parallel: expected a divisor of num_key_value_heads, 2, got 4" in answer.text
    answer = server.client.post("/models", json=body | {"isolation": "none"})
    assert_refused(answer, 400, "invalid_input", 'tensor_parallel: expected no isolation = "none" beside it')
