"""Requests at the same time, and a model whose runs a test holds."""

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.configs import onnx_entries
from tests.e2e.gates import RunGate
from tests.e2e.server import WAIT_S, RunningServer, wait_until
from tests.support.models import onnx_costly_graphs

ROW = [1.0, 2.0, 3.0, 4.0]
QUESTION = {"input_data": ROW}


@contextmanager
def callers(server: RunningServer, count: int) -> Iterator["Callers"]:
    """Clients that send `count` requests at the same time, each over its own connection."""
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    with (
        httpx.Client(base_url=server.url, timeout=WAIT_S, limits=limits, verify=False) as client,
        ThreadPoolExecutor(count) as pool,
    ):
        yield Callers(pool, client)


class Callers:
    def __init__(self, pool: ThreadPoolExecutor, client: httpx.Client) -> None:
        self._pool = pool
        self._client = client

    def ask(self, model: str, **body: object) -> "Future[httpx.Response]":
        """Send a request in a thread."""
        return self._pool.submit(self._client.post, f"/models/{model}/infer", json=body)


def batches(server: RunningServer, model: str) -> tuple[float, float]:
    """Return the number of the model's batches, and of their rows in all."""
    count, rows = (server.sample(f"roundhouse_batch_size_{part}", model=model) for part in ("count", "sum"))
    return count, rows


def batches_since(before: tuple[float, float], server: RunningServer, model: str) -> tuple[float, float]:
    """Return the number of batches and rows since `before`."""
    count, rows = batches(server, model)
    return count - before[0], rows - before[1]


def slow_model(folder: Path, rows: int | str = 1) -> tuple[str, RunGate]:
    """Save a graph that runs on a worker thread; its config entry, and the gate that holds its runs."""
    return onnx_entries(folder, {"slow": onnx_costly_graphs.slow(1, rows=rows)}), RunGate(folder / "slow")


def wait_for_drain(server: RunningServer) -> None:
    """Wait until the server accepts no connections."""

    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S).close()
        except ConnectionError:
            return True
        return False

    wait_until(is_refused)


def wait_for_inflight(server: RunningServer, count: int, model: str = "slow") -> None:
    wait_until(lambda: server.inflight(model) == count)


def occupy_worker(server: RunningServer, ask: Callable[[], Future[Any]]) -> list[Future[Any]]:
    """Send two requests to `slow` while its gate is closed: one runs, one is next. Later ones stay in the queue."""
    asked = []
    for count in (1, 2):
        asked.append(ask())
        wait_for_inflight(server, count)
        wait_until(lambda: server.sample("roundhouse_queue_depth", model="slow") == 0)
    return asked


def wait_for_done(asked: "Sequence[Future[Any]]", count: int) -> None:
    wait_until(lambda: sum(each.done() for each in asked) == count)
