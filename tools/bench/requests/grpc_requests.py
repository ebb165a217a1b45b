"""Measure server CPU per gRPC call of a small model: ModelInfer and Predict, 32 in flight and 1, on one core."""

import asyncio
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import grpc.aio
import numpy as np

from app.grpc.messages import ModelInferRequest, ModelInferResponse, PredictRequest, PredictResponse
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.models import vector_weights
from tools.bench.shared.rounds import in_turn
from tools.bench.shared.servers import RunningServer, free_port, roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 7
_IN_FLIGHT = 32
CALLS = 6_000
_X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
_Y = _X @ vector_weights()
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_PREDICT = "/inference.InferenceService/Predict"


def measure_grpc(vector: Path) -> list[Row]:
    """Return medians of alternating rounds; the load is on the last core, the server on the first."""
    port = free_port()
    variables = {"ROUNDHOUSE_SERVER__GRPC_PORT": str(port)}
    with (
        on_cores(LOAD_CORES),
        roundhouse([str(vector)], environment=variables) as server,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        _check(channel)
        ways = {
            name: partial(call_cpu_us, server, channel, path, request)
            for name, (path, request) in grpc_requests().items()
        }
        for warm_up in ways.values():
            warm_up()
        for callers in (1, _IN_FLIGHT):
            ways[f"aio {callers}"] = partial(_aio_rate, port, callers)
        figures = in_turn(ways, _ROUNDS)
    figure = {name: median(values) for name, values in figures.items()}
    what = f"16 floats by gRPC, {_IN_FLIGHT} in flight"
    return [
        Row(f"{what}, ModelInfer, raw contents: server CPU a call", f"{figure['ModelInfer, raw']:.0f} µs", "≤ 50 µs"),
        Row("the same with typed contents", f"{figure['ModelInfer, typed']:.0f} µs", "-"),
        Row("the same by Predict", f"{figure['Predict']:.0f} µs", "-"),
        Row("16 floats by gRPC, grpc.aio client, 1 caller", f"{figure['aio 1']:,.0f} calls/s", "-"),
        Row(f"the same, {_IN_FLIGHT} callers", f"{figure[f'aio {_IN_FLIGHT}']:,.0f} calls/s", "-"),
    ]


def grpc_requests() -> dict[str, tuple[str, bytes]]:
    """Return the path and the message of each kind of call."""
    return {
        "ModelInfer, raw": (_INFER, _raw_request()),
        "ModelInfer, typed": (_INFER, _typed_request()),
        "Predict": (_PREDICT, _predict_request()),
    }


def call_cpu_us(server: RunningServer, channel: grpc.Channel, path: str, request: bytes) -> float:
    """Return the server's CPU microseconds per call, of CALLS calls. Raises if a call fails."""
    before_s = server.cpu_s()
    _Load(channel.unary_unary(path), request).run()
    return (server.cpu_s() - before_s) / CALLS * 1e6


def _aio_rate(port: int, callers: int) -> float:
    """Return the calls per second of a grpc.aio client. Raises if a call fails."""

    calls_each = CALLS // max(callers, 4)

    async def run() -> float:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary(_INFER)
            request = _raw_request()

            async def caller() -> None:
                for _ in range(calls_each):
                    await call(request)

            await call(request)
            begun_s = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(callers)))
            return callers * calls_each / (time.perf_counter() - begun_s)

    return asyncio.run(run())


class _Load:
    """Send CALLS calls, always _IN_FLIGHT of them at once."""

    def __init__(self, call: Any, request: bytes) -> None:
        self._call = call
        self._request = request
        self._lock = threading.Lock()
        self._left = CALLS
        self._running = 0
        self._failure: Exception | None = None
        self._over = threading.Event()

    def run(self) -> None:
        for _ in range(_IN_FLIGHT):
            self._begin()
        self._over.wait()
        if self._failure is not None:
            raise self._failure

    def _begin(self) -> None:
        with self._lock:
            if not self._left:
                if not self._running:
                    self._over.set()
                return
            self._left -= 1
            self._running += 1
        self._call.future(self._request).add_done_callback(self._end)

    def _end(self, done: Any) -> None:
        error = done.exception()
        with self._lock:
            self._running -= 1
            if error is not None:
                self._failure, self._left = error, 0
        self._begin()


def _raw_request() -> bytes:
    message = ModelInferRequest(model_name="vector")
    message.inputs.add(name="x", datatype="FP32", shape=_X.shape)
    message.raw_input_contents.append(_X.tobytes())
    serialized: bytes = message.SerializeToString()
    return serialized


def _typed_request() -> bytes:
    message = ModelInferRequest(model_name="vector")
    given = message.inputs.add(name="x", datatype="FP32", shape=_X.shape)
    given.contents.fp32_contents.extend(_X.reshape(-1).tolist())
    serialized: bytes = message.SerializeToString()
    return serialized


def _predict_request() -> bytes:
    serialized: bytes = PredictRequest(model_name="vector", data=_X.reshape(-1).tolist()).SerializeToString()
    return serialized


def _check(channel: grpc.Channel) -> None:
    """Raises if an answer is wrong."""
    infer: Any = channel.unary_unary(_INFER, response_deserializer=ModelInferResponse.FromString)
    predict: Any = channel.unary_unary(_PREDICT, response_deserializer=PredictResponse.FromString)
    raw = infer(_raw_request()).raw_output_contents[0]
    typed = infer(_typed_request()).outputs[0].contents.fp32_contents
    predicted = predict(_predict_request()).predictions
    for numbers in (np.frombuffer(raw, np.float32), np.array(typed), np.array(predicted)):
        np.testing.assert_allclose(numbers.reshape(1, 16), _Y, rtol=1e-5)
