"""Send three times the capacity of a model: measure refusals, their latency, and that of accepted requests."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import onnxruntime as ort
import orjson

from tools.bench.shared.cores import LOAD_CORES, SERVER_CORES, on_cores
from tools.bench.shared.load import Answered, closed_loop, open_loop, request_of
from tools.bench.shared.models import write_slow_model
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row, percent

_ROUNDS = 3
_SERVICE_MS = 5.0
_QUEUE = 32
_OVERLOAD = 3
_SECONDS = 4
_CAPACITY_REQUESTS = 300
_ANSWERS = frozenset({200, 503, 504})
_CONFIG = """
[[models.onnx_models]]
name = "slow"
path = {path}
max_queue_size = {queue}
"""


@dataclass(frozen=True, slots=True)
class _Round:
    """The capacity of the model, and the answers at three times that load."""

    service_ms: float
    statuses: Counter[int]
    refused_ms: float
    """Median."""
    accepted_ms: float
    """99th percentile."""

    @property
    def bound_ms(self) -> float:
        """Return the time of a full queue, and a fifth more for the refusals on the same core."""
        return _QUEUE * self.service_ms * 1.2


def measure_overload(folder: Path) -> list[Row]:
    """Raises if an answer is not 200, 503 or 504, is missing, or if the server is unhealthy afterwards."""
    model, config, body = folder / "slow.onnx", folder / "slow.toml", orjson.dumps({"input_data": [0.5]})
    _write_calibrated(model)
    config.write_text(_CONFIG.format(path=orjson.dumps(str(model)).decode(), queue=_QUEUE), encoding="utf-8")
    request = request_of("/models/slow/infer", body)
    with roundhouse(config=config) as server, on_cores(LOAD_CORES):
        asyncio.run(_service_s(server, request))
        before_mb = server.resident_bytes() / 1e6
        rounds = [asyncio.run(_round(server, request)) for _ in range(_ROUNDS)]
        after_mb = server.resident_bytes() / 1e6
        server.post("/models/slow/infer", body)
    return _rows(rounds, f"{before_mb:.0f} MB before, {after_mb:.0f} MB after")


def _write_calibrated(model: Path) -> None:
    """Return the number of loop iterations that take 5 ms on the server's core."""
    turns = 20
    with on_cores(SERVER_CORES):
        for _ in range(3):
            write_slow_model(model, turns)
            turns = max(1, round(turns * _SERVICE_MS / _run_ms(model)))
    write_slow_model(model, turns)


def _run_ms(model: Path) -> float:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    took_ms = []
    for _ in range(30):
        started_s = time.perf_counter()
        session.run(None, {"x": np.full((1, 1), 0.5, dtype=np.float32)})
        took_ms.append((time.perf_counter() - started_s) * 1e3)
    return median(took_ms)


async def _round(server: RunningServer, request: bytes) -> _Round:
    service_s = await _service_s(server, request)
    per_second = _OVERLOAD / service_s
    answers = await open_loop(server.port, request, per_second, lambda sent: sent < per_second * _SECONDS)
    statuses = Counter(answer.status for answer in answers)
    if unexpected := statuses.keys() - _ANSWERS:
        raise RuntimeError(f"a model under too much load answered {sorted(unexpected)}")
    refused_ms, accepted_ms = _took_ms(answers, _ANSWERS - {200}), _took_ms(answers, {200})
    if not refused_ms or len(accepted_ms) < 2:
        raise RuntimeError(f"{_OVERLOAD} times the capacity of a model was answered {dict(statuses)}")
    return _Round(service_s * 1e3, statuses, median(refused_ms), quantiles(accepted_ms, n=100)[98])


async def _service_s(server: RunningServer, request: bytes) -> float:
    """Return the seconds per request with a queue that is never empty: the inverse of the capacity."""
    return await closed_loop(server.port, [request], 4, _CAPACITY_REQUESTS, warm=8) / _CAPACITY_REQUESTS


def _took_ms(answers: Sequence[Answered], statuses: frozenset[int] | set[int]) -> list[float]:
    return [answer.took_s * 1e3 for answer in answers if answer.status in statuses]


def _rows(rounds: Sequence[_Round], memory: str) -> list[Row]:
    statuses = sum((round_.statuses for round_ in rounds), Counter[int]())
    shares = ", ".join(f"{percent(count / statuses.total())} {status}" for status, count in sorted(statuses.items()))
    service_ms, bound_ms = (median(getattr(round_, field) for round_ in rounds) for field in ("service_ms", "bound_ms"))
    return [
        Row(
            f"{_OVERLOAD} times the capacity of a model of {service_ms:.1f} ms, max_queue_size {_QUEUE}: answers",
            f"{statuses.total():,}: {shares}",
            "all 200, 503 or 504",
            memory,
        ),
        Row("the refused: median time", f"{median(round_.refused_ms for round_ in rounds):.1f} ms", "< 5 ms"),
        Row(
            "the accepted: p99",
            f"{median(round_.accepted_ms for round_ in rounds):.0f} ms",
            f"≤ {bound_ms:.0f} ms",
            "queue bound times service time, and a fifth",
        ),
    ]
