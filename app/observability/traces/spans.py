"""Make spans of ended requests and their batches, by OpenTelemetry's conventions. Needs the extra `otel`."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import AttributeValue

from app import server_version
from app.observability.traces.traces import EndedRequest, RemoteParent
from frameworks.core.timings import BatchRun

SCOPE = InstrumentationScope("roundhouse", server_version())
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_GRPC = "gRPC"
_MAX_PATH_CHARACTERS = 256
# As OpenTelemetry has it, which would log a line for each member that is no such.
_STATE_MEMBER = re.compile(
    r"[ \t]*([a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])[ \t]*"
)
_MAX_STATE_MEMBERS = 32


def own_resource() -> Resource:
    """Return the description of this server. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES replace ours."""
    own = Resource({"service.name": "roundhouse", "service.version": server_version(), "process.pid": os.getpid()})
    return Resource.create().merge(own).merge(OTELResourceDetector().detect())


def spans_of(request: EndedRequest, resource: Resource, child_ids: Iterator[int]) -> list[ReadableSpan]:
    """Return the span of a request, those of the batches that it exports, and those of its phases.

    `child_ids`: nonzero, 64 bits.
    """
    trace = request.trace
    state = None if trace.parent is None else read_state(trace.parent.state)
    context = SpanContext(trace.trace_id, trace.span_id, is_remote=False, trace_flags=SAMPLED, trace_state=state)
    started_ns = request.ended_ns - round(request.total_s * 1e9)
    runs = [] if request.timings.trace is None else request.timings.trace.runs
    phases = list(phases_of(request))
    # The key of a call over gRPC is checked before its handler begins.
    first_s = min([0.0, *(begin_s for _, begin_s, _ in phases)])
    spans = [
        ReadableSpan(
            f"infer {request.model}" if request.model else "infer",
            context,
            None if trace.parent is None else _remote(trace.parent, state),
            resource,
            _attributes(request),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR if _is_server_error(request) else StatusCode.UNSET),
            start_time=started_ns + round(first_s * 1e9),
            end_time=request.ended_ns,
            instrumentation_scope=SCOPE,
            links=links_to([run.span for run in runs]),
        )
    ]
    spans += batch_spans(request, runs, resource)
    for name, begin_s, seconds in phases:
        begin_ns = started_ns + round(begin_s * 1e9)
        spans.append(
            ReadableSpan(
                name,
                SpanContext(trace.trace_id, next(child_ids), is_remote=False, trace_flags=SAMPLED, trace_state=state),
                context,
                resource,
                start_time=begin_ns,
                end_time=begin_ns + round(seconds * 1e9),
                instrumentation_scope=SCOPE,
            )
        )
    return spans


def phases_of(request: EndedRequest) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each phase, its begin in seconds since the request's, and its duration.

    Only durations were measured. The phases but the first are in front of the end, one behind the other.
    The first may begin before the request.
    """
    checked = request.trace.checked
    if checked is not None:
        yield "authenticate", min(0.0, checked.begun_s - request.started_s), checked.seconds
    elif request.is_authenticated and request.method != _GRPC:  # another request of the stream had the check
        yield "authenticate", 0.0, max(0.0, request.trace.begun_s - request.started_s)
    timings = request.timings
    if timings.steps:
        # The steps were measured, and some run at the same time. Their wait for models and its computing are in them.
        yield from (
            (f"step {name}", max(0.0, begun_s - request.started_s), seconds) for name, begun_s, seconds in timings.steps
        )
        if timings.encode_s > 0.0:
            yield "encode", max(0.0, request.total_s - timings.encode_s), timings.encode_s
        return
    phases = (
        ("decode", timings.decode_s),
        ("queue", timings.queue_s),
        ("compute", timings.compute_s),
        ("encode", timings.encode_s),
    )
    begin_s = max(0.0, request.total_s - sum(seconds for _, seconds in phases))
    for name, seconds in phases:
        if seconds > 0.0:
            yield name, begin_s, seconds
            begin_s += seconds


def read_state(state: bytes) -> TraceState | None:
    """Return a client's `tracestate`; None if it is empty or not valid."""
    members: dict[str, str] = {}
    for member in state.decode("latin-1").split(","):
        matched = _STATE_MEMBER.fullmatch(member)
        if matched is None:
            if member.strip(" \t"):
                return None
        elif matched[1] in members:
            return None
        else:
            members[matched[1]] = matched[2]
    return TraceState(list(members.items())) if 0 < len(members) <= _MAX_STATE_MEMBERS else None


def _remote(parent: RemoteParent, state: TraceState | None) -> SpanContext:
    return SpanContext(
        parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(parent.flags), trace_state=state
    )


def _is_server_error(request: EndedRequest) -> bool:
    # A response that began with 200 and then failed has a code.
    return request.status >= 500 or (request.status == 200 and bool(request.code))


def _attributes(request: EndedRequest) -> dict[str, AttributeValue]:
    """Return no more than a log line has: no header, and nothing of a body but the model's name."""
    attributes: dict[str, AttributeValue] = {
        "roundhouse.request_id": request.request_id,
        "roundhouse.status": request.status,
    }
    if request.method == _GRPC:
        attributes["rpc.system.name"] = "grpc"
        attributes["rpc.method"] = request.path.removeprefix("/")
    else:
        attributes["http.request.method"] = request.method
        attributes["http.response.status_code"] = request.status
        attributes["url.path"] = request.path[:_MAX_PATH_CHARACTERS].encode("utf-8", "replace").decode()
    optional: dict[str, AttributeValue] = {
        "error.type": request.code,
        "roundhouse.model": request.model,
        "roundhouse.version": request.version,
        "roundhouse.tenant": request.tenant,
        "roundhouse.batch_size": request.timings.batch_rows,
    }
    attributes |= {name: value for name, value in optional.items() if value}
    if request.timings.cache_hit is not None:
        attributes["roundhouse.cache_hit"] = request.timings.cache_hit
    return attributes


def batch_spans(request: EndedRequest, runs: Iterable[BatchRun], resource: Resource) -> list[ReadableSpan]:
    """Return the spans of the batches that this request exports. Each is a trace of its own."""
    return [
        ReadableSpan(
            f"batch {request.model}",
            _context_of(run.span),
            None,
            resource,
            {
                "roundhouse.model": request.model,
                "roundhouse.version": request.version,
                "roundhouse.batch_size": run.rows,
                "roundhouse.device": run.device,
                "roundhouse.instance": run.instance,
                "process.pid": run.pid,
            },
            links=links_to(run.requests),
            start_time=run.begun_ns,
            end_time=run.begun_ns + run.duration_ns,
            instrumentation_scope=SCOPE,
        )
        for run in runs
        if run.requests
    ]


def links_to(spans: Sequence[bytes]) -> list[Link]:
    """Return links to spans, each a SpanRef."""
    return [Link(_context_of(span)) for span in spans]


def _context_of(span: bytes) -> SpanContext:
    trace_id, span_id = int.from_bytes(span[:16]), int.from_bytes(span[16:])
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=SAMPLED)
