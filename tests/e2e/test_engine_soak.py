"""Kills of engine processes at random moments under load; then the server is at rest and has lost nothing."""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.engines import ISOLATED, Load, Question, engines, loaded, restarts, state, wait_at_rest
from tests.e2e.server import RunningServer, serving, wait_until
from tests.support.models import onnx_graphs
from tests.support.models.causal_folders import save_causal_model
from tests.support.models.torch_folders import save_embedder

TENSORS = ("small", "large", "strings")
TEXT = {"prompt": "on and on", "temperature": 0, "ignore_eos": True, "max_tokens": 12}
SIGNALS = (signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGBUS)
PERMITTED = {"right", "model_failed", "unloaded", "loading", "draining"}
"""Outcomes of a request while processes are killed and models are unloaded and loaded."""

PAUSE_S = 0.1
"""Of each caller between two requests: loads of models need the cores too."""

MAX_CRASHES = 2
"""Crashes in a row of a model, after which an order loads it: later restarts would take most of the time."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    graphs = {"small": onnx_graphs.identity(), "large": onnx_graphs.identity(), "strings": onnx_graphs.concat()}
    save_causal_model(tmp_path / "lm", max_position_embeddings=256)
    save_embedder(tmp_path / "texts")
    entries = onnx_entries(tmp_path, graphs)
    for name in ("lm", "texts"):
        entries += f'[[models.torch_models]]\nname = "{name}"\npath = "{tmp_path / name}"\n'
    with serving(tmp_path, entries + ISOLATED) as running:
        yield running.wait_ready()


def questions(server: RunningServer) -> dict[Question, int]:
    """Return requests to each model with the answers of a server that nothing disturbs, and their callers."""
    bodies: dict[str, dict[str, Any]] = {
        "small": {"input_data": [1.0, 2.0, 3.0]},
        "large": {"input_data": [float(i) for i in range(20_000)]},
        "strings": {"inputs": {"a": ["ž"], "b": ["x" * 20_000], "c": [[1, 2]]}},
        "lm": TEXT,
        "texts": {"text": ["engines wait", "in a shed"]},
    }
    return {reference(server, model, body): 2 for model, body in bodies.items()}


def reference(server: RunningServer, model: str, body: dict[str, Any]) -> Question:
    expected = content(server.infer(model, **body))
    return Question(model, body, lambda answer: is_close(content(answer), expected))


def content(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("latency_ms", "request_id")}


def is_close(ours: Any, theirs: Any) -> bool:
    """Compare answers; floats may differ by what the rows of other requests in a batch change."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(is_close(ours[key], value) for key, value in theirs.items())
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(is_close, ours, theirs))
    return abs(ours - theirs) < 1e-5 if isinstance(theirs, float) else bool(ours == theirs)


def soak(server: RunningServer, seconds: float, seed: int) -> None:
    """Kill random processes for so long, at random intervals; then check the server at rest."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    asked = questions(server)
    models = [question.model for question in asked]
    at_start = measured(server, len(models))
    kills = 0
    crashes = dict.fromkeys(models, 0)
    until_s = time.monotonic() + seconds
    with loaded(server, asked, PAUSE_S) as load:
        while time.monotonic() < until_s:
            load.stop.wait(chance.uniform(0.0, 1.0))
            name, process = chance.choice(engines(server) or [("", None)])
            if process is None:
                continue
            with suppress(psutil.NoSuchProcess):
                process.send_signal(chance.choice(SIGNALS))
                kills += 1
                crashes[name] += 1
            if crashes[name] >= MAX_CRASHES:
                crashes[name] = 0
                replace(server, name)
        for model in models:
            if state(server, model) != "ready":
                replace(server, model)
        load.wait_for_more(*models, count=5)
    check(load, models)
    assert kills >= len(models)
    assert 0 < sum(restarts(server, model) for model in models) <= kills
    at_end = measured(server, len(models))
    assert at_end == at_start
    server.check_log()


def replace(server: RunningServer, model: str) -> None:
    """Unload a model, in whatever state it is, and load it again."""
    assert server.client.post(f"/models/{model}/unload").status_code == 200
    # Its new process may have been killed by a signal that was meant for the last one.
    wait_until(lambda: server.client.post(f"/models/{model}/load").status_code == 200)
    wait_until(lambda: state(server, model) == "ready")


def check(load: Load, models: list[str]) -> None:
    assert {outcome for _, outcome in load.outcomes} <= PERMITTED, (load.outcomes, load.problems[-3:])
    assert all(load.right(model) for model in models)


def measured(server: RunningServer, processes: int) -> int:
    """Wait until the server is at rest; return the number of its descriptors, without those of connections."""
    wait_at_rest(server, processes)
    process = psutil.Process(server.process.pid)
    # The one connection of the test itself.
    wait_until(lambda: len([c for c in process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]) <= 1)
    count: int = process.num_fds()
    return count


@pytest.mark.parametrize("seed", [random.SystemRandom().randrange(10**6)], ids=["random"])
def test_kills_under_load_lose_nothing(server: RunningServer, seed: int) -> None:
    soak(server, 30.0, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [random.SystemRandom().randrange(10**6)], ids=["random"])
def test_kills_for_long_lose_nothing(server: RunningServer, seed: int) -> None:
    soak(server, 600.0, seed)
