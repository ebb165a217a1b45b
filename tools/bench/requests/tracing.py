"""Measure the CPU that traces cost a request: off, on and sampled out, and sampled. Without a server."""

import time
from collections.abc import Callable
from math import inf
from typing import Any, cast

from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from app.observability.metrics import Observer
from app.observability.traces.export import decider
from app.observability.traces.traces import EndedRequest, Exporter, QueueBounds, TraceQueue, Tracer
from frameworks.core.timings import Timings
from tests.app.http.requests import http_request
from tools.bench.shared.table import Row

_BATCH = 1000
_ROUNDS = 100
_TIMINGS = Timings(1e-5, 1e-5, 1e-5, 1e-5)
_SCOPE: dict[str, Any] = {
    "method": "POST",
    "path": "/models/vector/infer",
    "headers": [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", b"100"),
        (b"accept", b"*/*"),
        (b"user-agent", b"bench"),
        (b"accept-encoding", b"gzip"),
    ],
}


class _Ended(TraceQueue):
    """The queue without its thread."""

    def __init__(self) -> None:
        super().__init__(cast("Exporter", None), QueueBounds())
        self.requests: list[EndedRequest] = []

    def add(self, request: EndedRequest) -> None:
        self.requests.append(request)


def measure_tracing() -> list[Row]:
    """Return the least time of a batch beside that without traces, in alternating rounds."""
    is_sampled = decider(ParentBasedTraceIdRatio(1.0))
    ended = _Ended()
    tracer = Tracer(is_sampled, ended)
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"
    ways: dict[str, Callable[[], None]] = {
        "off": lambda: _requests(None, b""),
        "unsampled root": lambda: _requests(Tracer(decider(ParentBasedTraceIdRatio(0.0)), ended), b""),
        "unsampled parent": lambda: _requests(tracer, parent + b"0"),
        "sampled": lambda: _requests(tracer, parent + b"1"),
    }
    least_s = dict.fromkeys(ways, inf)
    for _ in range(_ROUNDS):
        for name, run in ways.items():
            started_s = time.process_time()
            run()
            least_s[name] = min(least_s[name], time.process_time() - started_s)
            ended.requests.clear()
    cost_us = {name: (each - least_s["off"]) / _BATCH * 1e6 for name, each in least_s.items()}
    return [
        Row("traces on, no traceparent, sampled out: CPU a request", f"{cost_us['unsampled root']:.1f} µs", "≤ 15 µs"),
        Row("traces on, traceparent, sampled out", f"{cost_us['unsampled parent']:.1f} µs", "≤ 15 µs"),
        Row("traces on, sampled, in the event loop", f"{cost_us['sampled']:.1f} µs"),
    ]


def _requests(tracer: Tracer | None, traceparent: bytes) -> None:
    observer = Observer("none", 1000, tracer)
    scope = {**_SCOPE, "headers": [*_SCOPE["headers"], (b"traceparent", traceparent)]} if traceparent else _SCOPE
    for _ in range(_BATCH):
        record = http_request(*scope["headers"], path=scope["path"])
        if tracer is not None:
            record.trace = tracer.begin(scope["headers"])
        record.status, record.model, record.version, record.timings = 200, "vector", "1", _TIMINGS
        observer.record_inference(record, 1e-4)
