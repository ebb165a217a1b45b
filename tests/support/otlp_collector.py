"""A collector of traces on loopback: OTLP over HTTP with protobuf."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """All spans that arrived. `resources`: the attributes of their resources."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self._processes: dict[bytes, int] = {}

    def requests(self, **wanted: object) -> list[Span]:
        """Return the spans of requests whose attributes have these values, `__` for a dot."""
        named = {f"roundhouse.{name}".replace("__", "."): value for name, value in wanted.items()}
        servers = [span for span in self.spans if span.kind == Span.SpanKind.SPAN_KIND_SERVER]
        return [span for span in servers if named.items() <= attributes(span).items()]

    def batches(self, request: Span) -> list[Span]:
        """Return the spans of batches that a request is linked to."""
        linked = {(link.trace_id, link.span_id) for link in request.links}
        return [span for span in self.spans if (span.trace_id, span.span_id) in linked]

    def children(self, parent: Span) -> list[Span]:
        """Return the spans below another, in the order of their begin."""
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def process_of(self, span: Span) -> int:
        """Return the id of the process that has exported a span."""
        return self._processes[span.span_id]

    def take(self, body: bytes) -> None:
        """Decode the body of a request."""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            self.resources.append(attributes(resource.resource))
            spans = [span for scope in resource.scope_spans for span in scope.spans]
            self._processes |= dict.fromkeys((span.span_id for span in spans), self.resources[-1]["process.pid"])
            self.spans += spans


def attributes(source: Any) -> dict[str, Any]:
    """Return the attributes of a span or resource."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in source.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector within the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Write nothing to standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
