"""The phases of a request in seconds, and the batches that a traced request ran in.

Where parts of a request are in a phase at the same time, the time counts once.
"""

import os
import random
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from msgspec import Meta

SPAN_BYTES = 24
MAX_LINKS = 32
"""Largest number of batches that a request notes, and of requests that a batch notes."""

SpanRef = Annotated[bytes, Meta(min_length=SPAN_BYTES, max_length=SPAN_BYTES)]
"""The ids of a trace and of a span in it, 16 and 8 bytes, big endian."""
# An engine process may send anything. OTLP has times of 64 bits.
_Number = Annotated[int, Meta(ge=0, le=2**62)]


class BatchRun(NamedTuple):
    """A batch in which sampled requests ran.

    `begun_ns`: Unix time. `instance`: number of the worker in its process. `requests`: spans of the sampled requests,
    for the one request that exports the batch; none for the others.
    """

    span: SpanRef
    begun_ns: _Number
    duration_ns: _Number
    rows: _Number
    device: Annotated[str, Meta(max_length=64)]
    pid: _Number
    instance: _Number
    requests: Annotated[tuple[SpanRef, ...], Meta(max_length=MAX_LINKS)] = ()


class RunTrace:
    """The span of a sampled request, and the batches in which it has run."""

    __slots__ = ("runs", "span")

    def __init__(self, span: bytes) -> None:
        """`span`: a SpanRef."""
        self.span = span
        self.runs: list[BatchRun] = []

    def add(self, runs: Sequence[BatchRun]) -> None:
        """Note further batches, up to MAX_LINKS."""
        self.runs += runs[: MAX_LINKS - len(self.runs)]


def unix_ns(counter_s: float) -> int:
    """Return the Unix time of a value of time.perf_counter.

    Both clocks are read three times: a thread may be suspended between the two reads, for milliseconds.
    """
    _, offset_ns = min(_clocks_apart() for _ in range(3))
    return offset_ns + round(counter_s * 1e9)


def _clocks_apart() -> tuple[int, int]:
    """Return the time that the reads took, and the difference of the clocks, in nanoseconds."""
    before_ns = time.perf_counter_ns()
    now_ns = time.time_ns()
    after_ns = time.perf_counter_ns()
    return after_ns - before_ns, now_ns - (before_ns + after_ns) // 2


def note_batch(
    traces: Sequence[RunTrace], begun_s: float, compute_s: float, rows: int, device: str, instance: int
) -> None:
    """Note a batch that ran at its sampled requests. `begun_s`: time.perf_counter. The first with room exports it."""
    begun_ns = unix_ns(begun_s)
    # Unique, not secret. Zero is invalid.
    span = (random.getrandbits(8 * SPAN_BYTES) | 1).to_bytes(SPAN_BYTES)
    run = BatchRun(span, begun_ns, round(compute_s * 1e9), rows, device, os.getpid(), instance)
    linked: list[RunTrace] = []
    for trace in traces:
        runs = trace.runs
        # A request may have several parts in the batch.
        if len(runs) < MAX_LINKS and (not runs or runs[-1] is not run):
            runs.append(run)
            linked.append(trace)
    if linked:
        linked[0].runs[-1] = run._replace(requests=tuple(trace.span for trace in linked[:MAX_LINKS]))


StepTiming = tuple[str, float, float]
"""A step of a pipeline that ran: its name, its begin (time.perf_counter), and its seconds with the wait for its model.
"""

_Spans = list[tuple[float, float]]
"""Times of time.perf_counter: begin and end, sorted, and apart from each other."""


@dataclass(slots=True)
class Timings:
    """The phases of a request, in seconds; used by headers, logs and metrics.

    Each is the union of the times in which a part of the request was in it: texts that share a batch, batches on
    several instances and concurrent steps of a pipeline count once, so no phase is longer than the request.

    `started_s`: arrival of the first byte (time.perf_counter). `batch_rows`: rows of the largest batch in which the
    request ran; 0 if it ran in none. `cache_hit`: whether the answer came from the response
    cache or from a concurrent equal request; None for a model without cache. `trace`: None for a request that is not
    sampled. `steps`: those that ran of a pipeline; None for a model.
    """

    decode_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    started_s: float = field(default_factory=time.perf_counter)
    cache_hit: bool | None = None
    batch_rows: int = 0
    trace: RunTrace | None = None
    steps: list[StepTiming] | None = None
    _decoded: _Spans = field(default_factory=list, repr=False)
    _queued: _Spans = field(default_factory=list, repr=False)
    _computed: _Spans = field(default_factory=list, repr=False)

    def decoded(self, begun_s: float, ended_s: float) -> None:
        """Add a time in which a part was decoded, tokenized or prepared (time.perf_counter)."""
        if self._decoded:
            self.decode_s += _add(self._decoded, begun_s, ended_s)
        else:
            self._decoded.append((begun_s, ended_s))
            self.decode_s += ended_s - begun_s

    def ran(self, arrived_s: float, begun_s: float, ended_s: float) -> None:
        """Add the run of a part that waited from `arrived_s` on: `queued` and `computed` at once."""
        if self._queued or self._computed:
            self.queued(arrived_s, begun_s)
            self.computed(begun_s, ended_s)
            return
        self._queued.append((arrived_s, begun_s))
        self.queue_s += begun_s - arrived_s
        self._computed.append((begun_s, ended_s))
        self.compute_s += ended_s - begun_s

    def queued(self, begun_s: float, ended_s: float) -> None:
        """Add a time in which a part waited for its first batch (time.perf_counter)."""
        if self._queued:
            self.queue_s += _add(self._queued, begun_s, ended_s)
        else:
            self._queued.append((begun_s, ended_s))
            self.queue_s += ended_s - begun_s

    def computed(self, begun_s: float, ended_s: float) -> None:
        """Add a time in which a part ran (time.perf_counter)."""
        if self._computed:
            self.compute_s += _add(self._computed, begun_s, ended_s)
        else:
            self._computed.append((begun_s, ended_s))
            self.compute_s += ended_s - begun_s


def _add(spans: _Spans, begun_s: float, ended_s: float) -> float:
    """Add a span to `spans`, which is not empty; return by how many seconds their union has grown."""
    if begun_s > spans[-1][1]:
        spans.append((begun_s, ended_s))
        return ended_s - begun_s
    first = bisect_left(spans, begun_s, key=lambda span: span[1])
    end, known_s = first, 0.0
    while end < len(spans) and spans[end][0] <= ended_s:
        known_s += spans[end][1] - spans[end][0]
        end += 1
    if end > first:
        begun_s, ended_s = min(begun_s, spans[first][0]), max(ended_s, spans[end - 1][1])
    spans[first:end] = [(begun_s, ended_s)]
    return ended_s - begun_s - known_s
