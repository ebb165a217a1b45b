"""Send requests that cost a server the most for their size: the loop's longest hold, memory, a neighbour's request."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles

import grpc
import orjson

from tests.support.held_loop import FILE_VARIABLE, INTERVAL_S, HeldLoop
from tests.support.hostile_grpc import HOSTILE_TO_FLOAT_MODEL, INFER
from tests.support.hostile_http import HOSTILE_HTTP, post
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.servers import ROOT, RunningServer, free_port, started
from tools.bench.shared.table import Row

_MODELS = ROOT / "models"
_COPIES = 4
_ALONE_REQUESTS = 400
MAX_HOLD_S = 0.010
MAX_GROWTH_BYTES = 64 * 1024 * 1024
_TARGET = "≤ 10 ms, ≤ 64 MiB, ≤ 2 times alone + 10 ms"
_CONFIG = """
[[models.onnx_models]]
name = "digits"
path = "{models}/digits"
[[models.onnx_models]]
name = "neighbour"
path = "{models}/digits"
[[models.onnx_models]]
name = "minilm-onnx"
path = "{models}/minilm-onnx"
[[models.torch_models]]
name = "tiny-llama"
path = "{models}/tiny-llama"
"""


@dataclass(frozen=True, slots=True)
class _Server:
    """A server, its gRPC port, and the measure of its loop."""

    running: RunningServer
    grpc_port: int
    held: HeldLoop


Attack = Callable[[], object]
"""Send one hostile request and wait for its response."""


def measure_hostile(folder: Path, size: int = 4 * 1024 * 1024) -> list[Row]:
    """Send each request of `size` bytes once, and then four copies of it at once.

    The targets are those of one request. A valid one may take as long as its model needs: the neighbour asks another.

    Raises RuntimeError if the server is not healthy afterwards.
    """
    rows = []
    with _serving(folder) as server, on_cores(LOAD_CORES):
        neighbour = _Neighbour(server.running.port)
        alone_s = _p99(neighbour.times(lambda: len(neighbour.answered_s) >= _ALONE_REQUESTS))
        for name, attack in _attacks(server, size):
            attack()  # first use of what it needs
            rows.append(_row(name, server, attack, alone_s))
            if _status(server.running.port, "/health/live") != 200:
                raise RuntimeError(f"the server is not healthy after {name}")
    return rows


@contextmanager
def _serving(folder: Path) -> Iterator[_Server]:
    config, file, grpc_port = folder / "hostile.toml", folder / "held", free_port()
    config.write_text(_CONFIG.format(models=_MODELS), encoding="utf-8")
    held = HeldLoop(file)
    command = [sys.executable, "-m", "tests.support.held_loop", "serve", "--config", str(config), "--port", "{port}"]
    environment = {FILE_VARIABLE: str(file), "ROUNDHOUSE_SERVER__GRPC_PORT": str(grpc_port)}
    with started(command, "/health/ready", environment=environment) as running:
        yield _Server(running, grpc_port, held)


def _attacks(server: _Server, size: int) -> Iterator[tuple[str, Attack]]:
    """Build each request when it is its turn: all together are hundreds of megabytes."""
    for name, build in HOSTILE_HTTP.items():
        yield name, partial(post, server.running.port, build(size))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary(INFER, lambda message: message, lambda answer: answer)
        for name, build_message in HOSTILE_TO_FLOAT_MODEL.items():
            yield f"gRPC: {name}", partial(called, call, build_message("digits", size))


def called(call: Callable[..., object], message: bytes) -> str:
    """Return the name of the call's status."""
    try:
        call(message, timeout=300)
    except grpc.RpcError as error:
        name: str = error.code().name
        return name
    return "OK"


@dataclass(frozen=True, slots=True)
class _Effect:
    """The effect of requests on the server. `neighbour_s`: the longest request of another client meanwhile."""

    hold_s: float
    grown_bytes: int
    neighbour_s: float
    results: list[str]

    def __str__(self) -> str:
        return f"{self.hold_s * 1e3:.1f} ms, {self.grown_bytes / 2**20:.0f} MiB, {self.neighbour_s * 1e3:.1f} ms"


def _effect(server: _Server, attack: Attack, copies: int) -> _Effect:
    process = Path(f"/proc/{server.running.process.pid}")
    (process / "clear_refs").write_text("5")  # this resets the peak of resident memory
    before_bytes = server.running.resident_bytes()
    neighbour = _Neighbour(server.running.port)
    server.held.reset()
    with ThreadPoolExecutor(copies) as pool:
        sent = [pool.submit(attack) for _ in range(copies)]
        times_s = neighbour.times(lambda: all(each.done() for each in sent))
    peak = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
    assert peak is not None
    grown_bytes = max(0, int(peak[1]) * 1024 - before_bytes)
    return _Effect(server.held.longest_s, grown_bytes, max(times_s), sorted({str(each.result()) for each in sent}))


def _row(name: str, server: _Server, attack: Attack, alone_s: float) -> Row:
    one, several = _effect(server, attack, 1), _effect(server, attack, _COPIES)
    misses = [
        part
        for part, is_missed in (
            ("hold", one.hold_s > MAX_HOLD_S),
            ("memory", one.grown_bytes > MAX_GROWTH_BYTES),
            ("neighbour", one.neighbour_s > 2 * alone_s + 0.010),
        )
        if is_missed
    ]
    missed = f"; missed: {', '.join(misses)}" if misses else ""
    compared = f"alone {alone_s * 1e3:.1f} ms; {_COPIES} at once: {several}"
    return Row(f"{name} (answered {', '.join(one.results)})", f"{one}{missed}", _TARGET, compared)


class _Neighbour:
    """A client that asks a small model of its own every few milliseconds."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=300)
        self.answered_s: list[float] = []

    def times(self, is_done: Callable[[], bool]) -> Sequence[float]:
        """Ask until `is_done`, at least once; return the seconds of each request."""
        body = orjson.dumps({"input_data": [0.0] * 64})
        while not self.answered_s or not is_done():
            started_s = time.perf_counter()
            self._connection.request("POST", "/models/neighbour/infer", body, {"content-type": "application/json"})
            answer = self._connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the neighbour was answered {answer.status}")
            self.answered_s.append(time.perf_counter() - started_s)
            time.sleep(INTERVAL_S)
        self._connection.close()
        return self.answered_s


def _p99(times_s: Sequence[float]) -> float:
    return quantiles(times_s, n=100)[98]


def _status(port: int, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status
