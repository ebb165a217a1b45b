"""The phases of a request in seconds. Where parts of it are in a phase at the same time, the time counts once."""

import time
from bisect import bisect_left
from dataclasses import dataclass, field

from frameworks.core.traces import RunTrace

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
