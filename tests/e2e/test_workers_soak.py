"""Kills of workers and engines at random moments under load; then the server is at rest and has lost nothing."""

import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.engines import engines, is_alive
from tests.e2e.server import WAIT_S, RunningServer, serving, wait_until
from tests.support.models import onnx_graphs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes by their names")

COUNT = 2
CALLERS = 4
NUMBERS = {"small": [1.0, 2.0, 3.0], "large": [float(i) for i in range(20_000)]}
PERMITTED = {"right", "lost", "model_failed", "loading", "unloaded"}
"""Outcomes of a request while processes are killed. `lost`: its connection was."""
_ENGINE_SHARE = 0.15
GAUGES = ("inflight", "queue_depth", "buffered_bytes")


def ask_on(server: RunningServer, model: str, outcomes: Counter[str], stop: threading.Event) -> None:
    """Send requests over one connection, and over the next one when it is lost."""
    numbers = NUMBERS[model]
    while not stop.is_set():
        with httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            try:
                while not stop.wait(0.02):
                    answer = client.post(f"/models/{model}/infer", json={"input_data": numbers})
                    if answer.status_code == 200:
                        outcomes["right" if answer.json()["output_data"] == numbers else "wrong"] += 1
                    else:
                        outcomes[answer.json()["error"]["code"]] += 1
            except httpx.TransportError:
                outcomes["lost"] += 1


def workers(server: RunningServer) -> list[psutil.Process]:
    found = psutil.Process(server.process.pid).children(recursive=True)
    return [each for each in found if is_alive(each) and each.name().startswith("rh:worker")]


def sample(server: RunningServer, name: str, **labels: str) -> float:
    """As RunningServer.sample, over a new connection: an old one may be lost."""
    while True:
        try:
            return server.sample(name, **labels)
        except httpx.TransportError:
            continue


def soak(server: RunningServer, seconds: float, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    stop = threading.Event()
    callers = [
        threading.Thread(target=ask_on, args=(server, model, outcomes, stop))
        for model in NUMBERS
        for _ in range(CALLERS)
    ]
    for each in callers:
        each.start()
    kills = 0
    until_s = time.monotonic() + seconds
    try:
        while time.monotonic() < until_s:
            stop.wait(chance.uniform(0.0, 1.5))
            # An engine that crashes often is restarted late, and the requests to it then test nothing.
            is_engine = chance.random() < _ENGINE_SHARE
            victims = [process for _, process in engines(server)] if is_engine else workers(server)
            if victims:
                with suppress(psutil.NoSuchProcess):
                    chance.choice(victims).send_signal(chance.choice((signal.SIGKILL, signal.SIGSEGV)))
                    kills += 1
        right = outcomes["right"]
        wait_until(lambda: outcomes["right"] >= right + 50)
    finally:
        stop.set()
        for each in callers:
            each.join()
    print(outcomes, kills)
    assert set(outcomes) <= PERMITTED, outcomes
    assert kills
    wait_at_rest(server)


def wait_at_rest(server: RunningServer) -> None:
    wait_until(lambda: sample(server, "roundhouse_workers") == COUNT == len(workers(server)))
    wait_until(lambda: all(server.client.get(f"/models/{name}").json()["state"] == "ready" for name in NUMBERS))
    wait_until(lambda: not any(sample(server, f"roundhouse_{name}") for name in GAUGES))
    wait_until(lambda: not sample(server, "roundhouse_engine_shared_memory_bytes", kind="leased"))
    # Workers, engines and the fork server.
    wait_until(lambda: len(psutil.Process(server.process.pid).children(recursive=True)) == COUNT + len(NUMBERS) + 1)
    assert sample(server, "roundhouse_integrity_failures_total") == 0
    server.check_log()


@pytest.mark.parametrize("seconds", [30.0, pytest.param(600.0, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("seed", [random.SystemRandom().randrange(10**6)], ids=["random"])
def test_kills_of_workers_lose_only_connections(tmp_path: Path, seed: int, seconds: float) -> None:
    graphs = {name: onnx_graphs.identity() for name in NUMBERS}
    config = f'[server]\nworkers = {COUNT}\n[performance]\nisolation = "process"\n' + onnx_entries(tmp_path, graphs)
    with serving(tmp_path, config) as server:
        server.wait_ready()
        soak(server, seconds, seed)
