"""Make the spans of batches, and the links between them and the requests in them. Needs the extra `otel`."""

from collections.abc import Iterable, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, TraceFlags

from app import VERSION
from app.observability.traces.traces import EndedRequest
from frameworks.core.timings import BatchRun

SCOPE = InstrumentationScope("roundhouse", VERSION)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


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
