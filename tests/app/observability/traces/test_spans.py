"""Spans of ended requests: names, times, attributes and status."""

import os
import time
from itertools import count
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanKind, StatusCode

from app.observability.traces.spans import own_resource, phases_of, read_state, spans_of
from app.observability.traces.traces import KeyCheck, RemoteParent
from frameworks.core.timings import RunTrace, Timings, note_batch
from tests.app.observability.ended import ended

PARENT = RemoteParent(11, 12, 1, b"a=1")


def spans(**request: Any) -> list[Any]:
    return spans_of(ended(**request), Resource({}), count(1))


def test_phases_end_with_request() -> None:
    phases = list(phases_of(ended(is_authenticated=True)))
    assert [name for name, _, _ in phases] == ["authenticate", "decode", "queue", "compute", "encode"]
    begins = [begin for _, begin, _ in phases]
    assert begins == pytest.approx([0.0, 0.3, 0.4, 0.6, 0.9])
    assert [seconds for _, _, seconds in phases] == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.1])


def test_later_request_of_stream_has_no_authenticate_span() -> None:
    assert spans(method="gRPC", is_authenticated=True)[1].name == "decode"


def test_grpc_call_begins_with_check_of_key() -> None:
    call = ended(method="gRPC", is_authenticated=True)
    call.trace.checked = KeyCheck(99.5, 0.25)
    span, authenticate, decode, *_ = spans_of(call, Resource({}), count(1))
    assert (authenticate.name, decode.name) == ("authenticate", "decode")
    assert span.start_time == authenticate.start_time == 10**18 - 15 * 10**8
    assert authenticate.end_time == 10**18 - 125 * 10**7
    assert decode.start_time == 10**18 - 7 * 10**8


def test_phases_without_time_have_no_span() -> None:
    cached = spans(timings=Timings(0.1, 0.0, 0.0, 0.1, cache_hit=True))
    assert [span.name for span in cached] == ["infer m", "decode", "encode"]
    assert cached[0].attributes["roundhouse.cache_hit"] is True


def test_batch_span_links_its_requests() -> None:
    own, other = (RunTrace(number.to_bytes(16) + number.to_bytes(8)) for number in (7, 8))
    note_batch([own, other], time.perf_counter(), 0.25, 5, "cuda:1", 2)
    span, batch, *phases = spans(timings=Timings(0.1, 0.2, 0.25, 0.1, trace=own))
    assert [each.name for each in phases] == ["decode", "queue", "compute", "encode"]
    assert (batch.name, batch.parent, batch.kind) == ("batch m", None, SpanKind.INTERNAL)
    assert dict(batch.attributes) == {
        "roundhouse.model": "m",
        "roundhouse.version": "1",
        "roundhouse.batch_size": 5,
        "roundhouse.device": "cuda:1",
        "roundhouse.instance": 2,
        "process.pid": os.getpid(),
    }
    assert batch.end_time - batch.start_time == 25 * 10**7
    assert [(each.context.trace_id, each.context.span_id) for each in batch.links] == [(7, 7), (8, 8)]
    assert batch.context.trace_id not in (0, 7, 8)
    assert batch.context.trace_flags.sampled
    assert [each.context for each in span.links] == [batch.context]
    linked = spans(timings=Timings(0.1, 0.2, 0.25, 0.1, trace=other))
    assert [each.name for each in linked] == ["infer m", "decode", "queue", "compute", "encode"]
    assert [each.context for each in linked[0].links] == [batch.context]


def test_request_span_below_clients_span() -> None:
    span, *children = spans(parent=PARENT)
    assert span.kind is SpanKind.SERVER
    assert (span.parent.trace_id, span.parent.span_id, span.parent.is_remote) == (11, 12, True)
    assert span.context.trace_state.to_header() == "a=1"
    assert {child.parent.span_id for child in children} == {span.context.span_id}
    assert {child.context.trace_id for child in children} == {11}
    assert span.end_time - span.start_time == 10**9


def test_attributes_of_http_request() -> None:
    assert dict(spans()[0].attributes) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/infer",
        "roundhouse.request_id": "id",
        "roundhouse.status": 200,
        "roundhouse.model": "m",
        "roundhouse.version": "1",
        "roundhouse.tenant": "team",
        "roundhouse.batch_size": 8,
    }


def test_attributes_of_grpc_call() -> None:
    attributes = spans(method="gRPC", status=404, code="model_not_found")[0].attributes
    assert attributes["rpc.system.name"] == "grpc"
    assert attributes["rpc.method"] == "infer"
    assert attributes["error.type"] == "model_not_found"
    assert not any(name.startswith("http.") for name in attributes)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (200, "", StatusCode.UNSET),
        (400, "invalid_input", StatusCode.UNSET),
        (499, "client_gone", StatusCode.UNSET),
        (503, "overloaded", StatusCode.ERROR),
        (200, "model_failed", StatusCode.ERROR),
    ],
)
def test_only_server_errors_set_status(status: int, code: str, expected: StatusCode) -> None:
    assert spans(status=status, code=code)[0].status.status_code is expected


@pytest.mark.parametrize(("state", "read"), [(b"a=1, b@c=2", "a=1,b@c=2"), (b"a=1,,b=2", "a=1,b=2")])
def test_valid_tracestate_read(state: bytes, read: str) -> None:
    found = read_state(state)
    assert found is not None
    assert found.to_header() == read


@pytest.mark.parametrize(
    "state", [b"", b"a", b"A=1", b"a=1,a=2", b"a=\x00", b"a=\xff", b",".join(b"a%d=1" % i for i in range(33))]
)
def test_invalid_tracestate_dropped(state: bytes) -> None:
    assert read_state(state) is None


def test_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert own_resource().attributes["service.name"] == "roundhouse"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert own_resource().attributes["service.name"] == "mine"
