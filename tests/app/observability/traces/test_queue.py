"""The queue of ended requests: its bounds, its losses and its end."""

import threading
from collections.abc import Sequence

import structlog

from app.observability.traces.traces import EndedRequest, QueueBounds, TraceQueue
from tests.app.observability.ended import ended

NEVER_S = 3600.0
HANGS_AFTER_S = 60.0


class FakeExporter:
    """As Exporter. It waits for `gate`."""

    def __init__(self, failure: str = "", is_open: bool = True) -> None:
        self.batches: list[int] = []
        self.failure = failure
        self.gate = threading.Event()
        self.has_begun = threading.Event()
        if is_open:
            self.gate.set()

    def export(self, requests: Sequence[EndedRequest]) -> str:
        self.has_begun.set()
        assert self.gate.wait(HANGS_AFTER_S)
        self.batches.append(len(requests))
        return self.failure

    def interrupt(self) -> None:
        self.gate.set()


def queue_of(exporter: FakeExporter, requests: int, most: int = 100, batch: int = 10) -> TraceQueue:
    queue = TraceQueue(exporter, QueueBounds(most, batch, NEVER_S), clock=lambda: 0.0)
    for _ in range(requests):
        queue.add(ended())
    return queue


def test_full_batch_exported_before_delay() -> None:
    exporter = FakeExporter()
    queue = queue_of(exporter, 10)
    assert exporter.has_begun.wait(HANGS_AFTER_S)
    queue.close(HANGS_AFTER_S)
    assert exporter.batches == [10]


def test_close_exports_all_batches() -> None:
    exporter = FakeExporter()
    queue = queue_of(exporter, 25)
    queue.close(HANGS_AFTER_S)
    assert sum(exporter.batches) == 25
    assert max(exporter.batches) == 10
    assert queue.dropped == 0


def test_requests_beyond_bound_dropped() -> None:
    queue = queue_of(FakeExporter(), 8, most=5)
    assert queue.dropped == 3
    queue.close(HANGS_AFTER_S)
    assert queue.dropped == 3


def test_failures_counted_and_logged_once() -> None:
    with structlog.testing.capture_logs() as lines:
        queue = queue_of(FakeExporter("refused"), 25)
        queue.close(HANGS_AFTER_S)
    assert queue.dropped == 25
    assert [(line["event"], line["reason"]) for line in lines] == [("traces not exported", "refused")]


def test_close_interrupts_export_after_timeout() -> None:
    exporter = FakeExporter(is_open=False)
    queue = queue_of(exporter, 10)
    assert exporter.has_begun.wait(HANGS_AFTER_S)
    queue.close(0.01)
    assert exporter.gate.is_set()


def test_unused_queue_closed_without_thread() -> None:
    exporter = FakeExporter()
    queue_of(exporter, 0).close(HANGS_AFTER_S)
    assert not exporter.batches
