"""Count and log requests in plain numbers; /metrics shapes them into Prometheus families when it is scraped."""

import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import structlog

from app.auth.digests import BodyDigest
from app.auth.principal import ANONYMOUS, Principal
from app.auth.quotas import TenantLimits
from app.observability.recent_requests import MAX_NAME, MAX_PATH, MAX_TEXT, RecentRequests, cut
from app.observability.tallies import GenerationMetrics, ModelMetrics, RequestTallies, VersionRequests
from app.observability.traces.traces import EndedRequest, RequestTrace, Tracer
from frameworks.core.timings import Timings, unix_ns

log = structlog.get_logger("roundhouse.request")

REJECTED_STATUSES = frozenset({429, 503, 507})
"""HTTP statuses of requests that were refused as there was no room, or no model was ready."""

_VALID_ID_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/+=-")
_MAX_ID_LENGTH = 128
_MAX_SHOWN_PATH_BYTES = 1024
_PROBES = ("/health", "/metrics", "/v2/health")
_STREAM = "/events"


class _RequestIds:
    """Numbers the requests of this process. `next(new_ids.ids)` is a new id."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Give requests other ids than in the process that this one was forked from."""
        self.ids: Iterator[str] = map(f"{secrets.token_hex(6)}-%08x".__mod__, itertools.count())


new_ids = _RequestIds()


def checked_id(given: bytes) -> str:
    """Return a client's request id if it is valid (1 to 128 letters, digits and ._:/+=-), else an empty string."""
    if given and len(given) <= _MAX_ID_LENGTH and _VALID_ID_CHARACTERS.issuperset(given):
        return given.decode("ascii")
    return ""


def request_id(headers: list[tuple[bytes, bytes]]) -> str:
    """Return the client's own x-request-id if it is valid, else a new one."""
    return checked_id(next((value for name, value in headers if name == b"x-request-id"), b"")) or next(new_ids.ids)


@dataclass(eq=False)
class RequestRecord:
    """Log members and counts of one request: filled while it is processed, read once after the response.

    An inference request is one object, of a subclass: RequestContext adds what the pipeline needs, and a class of its
    transport how it is read and answered. Defaults are attributes of the class: a constructor sets only other values.
    """

    request_id: str
    method: str
    path: str
    started_s: float
    model: str = ""
    version: str = ""
    status: int = 500
    code: str = ""
    timings: Timings = field(default_factory=Timings)
    principal: Principal = ANONYMOUS
    limits: TenantLimits | None = None
    """Of the request's tenant. Noted when the request is admitted or refused by them."""
    credentials: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)
    """Headers that may hold a key. They are never logged."""
    digest: BodyDigest | None = field(default=None, repr=False)
    """That of the body of a signed request. The body is used after it was checked."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further headers of the response, for web pages."""
    trace: RequestTrace | None = None
    """None if tracing is off."""
    answered_name: str = ""
    """The model in the response: as the request names it, by its name or an alias, with the adapter."""
    alias: str = ""
    """Alias by which the request names the model; empty for its own name."""
    adapter: str = ""
    """Name of the adapter that the request names; empty for the base."""
    resource: str = ""
    """A name of the path beside models, such as a collection, if its sender may see it. Counted with `operation`."""
    operation: str = ""
    error: str = ""
    """Text of the error, without paths of the machine."""
    request_bytes: int = 0
    """Size of the body, or of the message."""
    response_bytes: int = 0

    @property
    def trace_id(self) -> str | None:
        """The id of the trace, for log lines."""
        return None if self.trace is None else self.trace.hex_id

    def abort(self) -> None:
        """Close the connection, with what its reader has not taken. Does nothing where the request has none."""


class Observer(RequestTallies):
    """Count and log the requests of this process. Owned by the event loop."""

    def __init__(self, log_requests: str, slow_ms: float, tracer: Tracer | None = None, worker: int = 0) -> None:
        """`log_requests`: `all`, `slow_and_failed` or `none`. `tracer`: None if tracing is off. `worker`: the number of
        this process.
        """
        super().__init__()
        self.tracer = tracer
        self.recent = RecentRequests(worker)
        self._log_requests = log_requests
        # Successful requests that take longer than this are logged.
        self._slow_s = {"all": -1.0, "none": inf}.get(log_requests, slow_ms / 1000)

    def record_inference(self, record: RequestRecord, total_s: float) -> None:
        """Count one inference request."""
        model, status, timings = record.model, record.status, record.timings
        tenant = record.principal.tenant.name
        self.requests[model, record.version, status, tenant] += 1
        if status != 200 or record.resource:
            self._count_more(record, tenant, total_s)
        # A response that began with 200 and then failed has a code.
        succeeded = status == 200 and not record.code
        if succeeded:
            metrics = self.models.get((model, tenant))
            if metrics is None:
                metrics = self.models[model, tenant] = ModelMetrics()
            metrics.observe(total_s, timings)
        # A request for a version that does not exist counts for no version.
        if model and status != 404:
            requests = self.versions.get((model, record.version, tenant))
            if requests is None:
                requests = self.versions[model, record.version, tenant] = VersionRequests()
            requests.last_s = record.started_s
            if succeeded:
                requests.add(timings, total_s)
            else:
                requests.failed += 1
                requests.failed_s += total_s
        self._keep(record, tenant, total_s)
        if not succeeded or total_s >= self._slow_s:
            self.log_request(record, total_s)
        trace = record.trace
        if trace is not None and trace.is_sampled:
            if succeeded:
                self.models[model, tenant].show(trace.hex_id, total_s, timings)
            self.end_trace(record, total_s)

    def _count_more(self, record: RequestRecord, tenant: str, total_s: float) -> None:
        """Count a rejected request, and one to a resource beside models."""
        if record.status in REJECTED_STATUSES:
            self.rejected[record.code, tenant] += 1
        if record.resource:
            self.count_operation(record.resource, record.operation, record.status, tenant, total_s)

    def _keep(self, record: RequestRecord, tenant: str, total_s: float) -> None:
        """Keep the fields of a FinishedRequest after `number`; a plain tuple takes half the time."""
        timings, path, adapter, error = record.timings, record.path, record.adapter, record.error
        recent = self.recent
        recent.last_number = number = recent.last_number + 1
        recent.by_tenant[tenant].append(
            (
                number,
                (
                    record.started_s + total_s,
                    record.request_id,
                    tenant,
                    record.principal.key_id,
                    record.method,
                    path if len(path) < MAX_PATH else cut(path, MAX_PATH),
                    record.model,
                    record.version,
                    adapter if not adapter else cut(adapter, MAX_NAME),
                    record.status,
                    record.code,
                    error if not error else cut(error, MAX_TEXT),
                    timings.decode_s,
                    timings.queue_s,
                    timings.compute_s,
                    timings.encode_s,
                    total_s,
                    timings.batch_rows,
                    timings.cache_hit,
                    record.request_bytes,
                    record.response_bytes,
                ),
            )
        )

    def end_trace(self, record: RequestRecord, total_s: float) -> None:
        """Hand a sampled inference request to the exporter of traces."""
        trace = record.trace
        if self.tracer is None or trace is None or not trace.is_sampled:
            return
        principal = record.principal
        self.tracer.ended.add(
            EndedRequest(
                trace,
                record.request_id,
                record.method,
                record.path,
                record.model,
                record.version,
                principal.tenant.name,
                record.status,
                record.code,
                record.timings,
                record.started_s,
                total_s,
                unix_ns(record.started_s + total_s),
                bool(record.credentials or principal.key_id),
            )
        )

    def log_request(self, record: RequestRecord, total_s: float) -> None:
        """Log one request of any kind, as `[logging] requests` says. Probes, scrapes and the page's streams are not."""
        if self._log_requests == "none":
            return
        if record.status < 400 and not record.code and total_s < self._slow_s:
            return
        if record.path.startswith(_PROBES) or (record.status == 200 and record.path == _STREAM):
            return
        timings, principal = record.timings, record.principal
        log.info(
            "request",
            request_id=record.request_id,
            trace_id=record.trace_id,
            tenant=principal.tenant.name or None,
            key_id=principal.key_id or None,
            method=record.method,
            path=shown_path(record.path),
            model=record.model or None,
            version=record.version or None,
            adapter=record.adapter or None,
            status=record.status,
            code=record.code or None,
            decode_ms=_ms(timings.decode_s),
            queue_ms=_ms(timings.queue_s),
            compute_ms=_ms(timings.compute_s),
            encode_ms=_ms(timings.encode_s),
            total_ms=_ms(total_s),
        )

    def generation_metrics(self, model: str, tenant: str) -> GenerationMetrics:
        """Return where the token times of a model and tenant are recorded."""
        metrics = self.generations.get((model, tenant))
        if metrics is None:
            metrics = self.generations[model, tenant] = GenerationMetrics()
        return metrics


def shown_path(path: str) -> str:
    """Return the beginning of a caller's path, for a log line."""
    if len(path) <= _MAX_SHOWN_PATH_BYTES // 4:
        return path
    shown = path.encode("utf-8", "replace")[:_MAX_SHOWN_PATH_BYTES].decode("utf-8", "ignore")
    return shown if len(shown) == len(path) else shown + "…"


def server_timing(timings: Timings) -> str:
    """Return the value of the Server-Timing header (W3C Server Timing), in milliseconds: four durations, and those of
    the steps of a pipeline.
    """
    timing = "decode;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, encode;dur=%.3f" % (  # noqa: UP031 - half the time of f""
        timings.decode_s * 1e3,
        timings.queue_s * 1e3,
        timings.compute_s * 1e3,
        timings.encode_s * 1e3,
    )
    if timings.steps:
        for name, _, seconds in timings.steps:
            timing += ", step-%s;dur=%.3f" % (name, seconds * 1e3)  # noqa: UP031
    return timing


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
