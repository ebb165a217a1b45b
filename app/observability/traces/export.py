"""Sample and export traces by OpenTelemetry's SDK, as its environment variables say. Needs the extra `otel`."""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from app.observability.traces.spans import own_resource, spans_of
from app.observability.traces.traces import EndedRequest, IsSampled, QueueBounds, RemoteParent, TraceQueue

log = structlog.get_logger(__name__)

_EXPORTERS_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_NO_PARENT = Context()


class OtlpExporter:
    """As Exporter: OTLP over HTTP with protobuf. `export` is called by one thread."""

    def __init__(self) -> None:
        """Raises ValueError for variables that cannot be used."""
        self._exporter: SpanExporter = OTLPSpanExporter()
        self._resource = own_resource()
        self._child_ids = _span_ids()
        self._failure = ""
        # Its lines are reasons of ours, which are logged once a minute.
        logger = logging.getLogger(_EXPORTERS_LOG)
        logger.filters[:] = [self._keep]

    def export(self, requests: Sequence[EndedRequest]) -> str:
        """Implement Exporter."""
        self._failure = ""
        try:
            spans = [span for each in requests for span in spans_of(each, self._resource, self._child_ids)]
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - the thread goes on with the next batch
            return f"{type(error).__name__}: {error}"
        return "" if result is SpanExportResult.SUCCESS else self._failure or "the collector did not take them"

    def interrupt(self) -> None:
        """Implement Exporter."""
        self._exporter.shutdown()

    def _keep(self, record: logging.LogRecord) -> bool:
        self._failure = record.getMessage()
        return False


def open_queue(environ: Mapping[str, str]) -> TraceQueue:
    """Return the queue to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names. Raises ValueError."""
    usual = QueueBounds()
    max_requests = _positive(environ, "OTEL_BSP_MAX_QUEUE_SIZE", usual.max_requests)
    bounds = QueueBounds(
        max_requests,
        min(max_requests, _positive(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", usual.max_batch)),
        _positive(environ, "OTEL_BSP_SCHEDULE_DELAY", round(usual.delay_s * 1e3)) / 1e3,
    )
    return TraceQueue(OtlpExporter(), bounds)


def sampler_of_environment() -> IsSampled:
    """Return the sampler that OTEL_TRACES_SAMPLER names; by default all requests, but as a parent has decided."""
    return decider(TracerProvider(shutdown_on_exit=False).sampler)


def decider(sampler: Sampler) -> IsSampled:
    """Return the decision of one of the SDK's samplers."""
    sampled = Decision.RECORD_AND_SAMPLE

    def is_sampled(trace_id: int, parent: RemoteParent | None) -> bool:
        context = _NO_PARENT if parent is None else _context_of(parent)
        return sampler.should_sample(context, trace_id, "infer", SpanKind.SERVER).decision is sampled

    return is_sampled


def _context_of(parent: RemoteParent) -> Context:
    span = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(parent.flags))
    return set_span_in_context(NonRecordingSpan(span), _NO_PARENT)


def _span_ids() -> Iterator[int]:
    while True:
        yield random.getrandbits(64) or 1


def _positive(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the number of a variable. As the specification has it, one that is not valid is no error."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    if text.isascii() and text.isdecimal() and int(text[:12]) > 0:
        return int(text[:12])
    log.warning("variable ignored", name=name, expected="a positive integer", default=default)
    return default
