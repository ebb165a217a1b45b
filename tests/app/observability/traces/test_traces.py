"""W3C Trace Context: valid and malformed headers, the decision of the sampler, and the hand-over at the end."""

from typing import cast

import pytest

from app.observability.metrics import Observer, RequestRecord
from app.observability.traces.traces import (
    MAX_TRACESTATE_BYTES,
    EndedRequest,
    Exporter,
    QueueBounds,
    RemoteParent,
    RequestTrace,
    TraceQueue,
    Tracer,
    read_parent,
)

TRACE_ID, SPAN_ID = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
VALID = b"00-" + TRACE_ID + b"-" + SPAN_ID + b"-01"
PARENT = RemoteParent(int(TRACE_ID, 16), int(SPAN_ID, 16), 1)


class Kept(TraceQueue):
    """Keeps the requests, and exports none."""

    def __init__(self) -> None:
        super().__init__(cast("Exporter", None), QueueBounds())
        self.requests: list[EndedRequest] = []

    def add(self, request: EndedRequest) -> None:
        self.requests.append(request)


def test_traceparent_and_tracestate_read() -> None:
    headers = [(b"host", b"a"), (b"traceparent", VALID), (b"tracestate", b"a=1"), (b"tracestate", b"b=2")]
    assert read_parent(headers) == PARENT._replace(state=b"a=1,b=2")


def test_newer_version_read_with_further_fields() -> None:
    assert read_parent([(b"traceparent", b"cc" + VALID[2:] + b"-what")]) == PARENT


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"ff" + VALID[2:],
        VALID + b"-more",
        VALID + b"0",
        VALID + b"\n",
        VALID.upper(),
        VALID.replace(TRACE_ID, b"0" * 32),
        VALID.replace(SPAN_ID, b"0" * 16),
        pytest.param(b"a" * 100_000, id="long"),
        "00-٣٣".encode(),
    ],
)
def test_malformed_traceparent_ignored(given: bytes) -> None:
    assert read_parent([(b"traceparent", given)]) is None


def test_repeated_traceparent_ignored() -> None:
    assert read_parent([(b"traceparent", VALID)] * 2) is None


@pytest.mark.parametrize("parts", [1, 1000])
def test_long_tracestate_dropped(parts: int) -> None:
    state = [(b"tracestate", b"a" * MAX_TRACESTATE_BYTES + b"=1")] * parts
    assert read_parent([*state, (b"traceparent", VALID)]) == PARENT


def test_begun_trace_keeps_parents_trace() -> None:
    asked: list[tuple[int, RemoteParent | None]] = []

    def is_sampled(trace_id: int, parent: RemoteParent | None) -> bool:
        asked.append((trace_id, parent))
        return parent is None

    tracer = Tracer(is_sampled, Kept())
    child, root = tracer.begin([(b"traceparent", VALID)]), tracer.begin([])
    assert child.hex_id.encode() == TRACE_ID
    assert not child.is_sampled
    assert root.is_sampled
    assert root.trace_id != tracer.begin([]).trace_id
    assert asked[:2] == [(PARENT.trace_id, PARENT), (root.trace_id, None)]


@pytest.mark.parametrize("is_sampled", [True, False])
def test_only_sampled_requests_handed_over(is_sampled: bool) -> None:
    kept = Kept()
    observer = Observer("none", 1000, Tracer(lambda *_: is_sampled, kept))
    record = RequestRecord("id", "POST", "/infer", 0.0, "m", "1", 200)
    record.trace = RequestTrace(7, None, is_sampled)
    observer.record_inference(record, 0.5)
    assert [each.model for each in kept.requests] == ["m"] * is_sampled


def test_ended_request_keeps_no_credentials() -> None:
    kept = Kept()
    record = RequestRecord("id", "POST", "/infer", 0.0, credentials=((b"authorization", b"Bearer rh-secret"),))
    record.trace = RequestTrace(7, None, is_sampled=True)
    Observer("none", 1000, Tracer(lambda *_: True, kept)).record_inference(record, 0.5)
    assert kept.requests[0].is_authenticated
    assert "secret" not in repr(kept.requests)
