"""Link the spans of sampled requests with the batches in which they run.

The schedulers make no spans: they note the batches of each sampled request, and the server exports them.
"""

import os
import random
import time
from collections.abc import Sequence
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
