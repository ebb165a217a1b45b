"""What is counted and logged: here only, in plain numbers, from the timings that ride in the answers."""

import itertools
import secrets
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from frameworks.types import Timings

log = structlog.get_logger("roundhouse.request")

SECONDS_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

_ids = itertools.count()
_prefix = secrets.token_hex(6)
_SANE_ID_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/+=-")
_MAX_ID_LENGTH = 128
_PROBES = ("/health", "/metrics", "/v2/health")


def request_id(headers: list[tuple[bytes, bytes]]) -> str:
    """The caller's own x-request-id if it is sane (1 to 128 letters, digits and ._:/+=-), else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            if 0 < len(value) <= _MAX_ID_LENGTH and _SANE_ID_CHARACTERS.issuperset(value):
                return value.decode("ascii")
            break
    return f"{_prefix}-{next(_ids):08x}"


@dataclass(slots=True)
class Histogram:
    """Observations in seconds: `counts` per bucket of SECONDS_BUCKETS, not cumulated, the last for what is above."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(SECONDS_BUCKETS, value)] += 1
        self.total += value

    def cumulated(self) -> list[tuple[str, float]]:
        """As Prometheus has buckets: each bound, and the number of observations up to it."""
        bounds = (*map(str, SECONDS_BUCKETS), "+Inf")
        return list(zip(bounds, itertools.accumulate(self.counts), strict=True))


@dataclass(slots=True)
class ModelMetrics:
    """The three histograms of one model."""

    request_seconds: Histogram = field(default_factory=Histogram)
    queue_seconds: Histogram = field(default_factory=Histogram)
    compute_seconds: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class VersionRequests:
    """The requests to one version of a model: how many were answered, and failed, and the seconds that they took.

    Of those that were answered `kept` were known already, and `not_kept` had to be run, where answers are kept at all;
    the seconds of reading, computing and writing are those of the ones that ran. `last_s`: when the last of all began
    (time.perf_counter).
    """

    answered: int = 0
    answered_s: float = 0.0
    queue_s: float = 0.0
    decode_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    failed: int = 0
    failed_s: float = 0.0
    kept: int = 0
    kept_s: float = 0.0
    not_kept: int = 0
    last_s: float = 0.0

    def add(self, timings: Timings, total_s: float) -> None:
        """Counts one that was answered."""
        self.answered += 1
        self.answered_s += total_s
        if timings.cache_hit:
            self.kept += 1
            self.kept_s += total_s - timings.decode_s - timings.encode_s
            return
        if timings.cache_hit is not None:
            self.not_kept += 1
        self.queue_s += timings.queue_s
        self.decode_s += timings.decode_s
        self.compute_s += timings.compute_s
        self.encode_s += timings.encode_s


@dataclass(slots=True)
class GenerationMetrics:
    """The histograms of one model that generates text: from a request's first byte to its first token, and between the
    tokens of one text.
    """

    time_to_first_token_seconds: Histogram = field(default_factory=Histogram)
    inter_token_seconds: Histogram = field(default_factory=Histogram)


class FastPath(Protocol):
    """What a connection may offer beside ASGI's messages."""

    def take_body(self) -> bytes | None:
        """The whole body, once, if all of it has come."""
        ...

    def gather(self, most_bytes: int) -> list[bytes]:
        """What comes of the body from now on, added as it comes; ASGI's `receive` returns when that is all of it, or
        more than so many bytes, or when the caller leaves.
        """
        ...

    def respond(self, status: int, header_lines: bytes, body: bytes) -> bool:
        """Sends a whole answer, or says that it did not. `header_lines` end in CRLF each and are sane."""
        ...

    def abort(self) -> None:
        """Ends the connection, with what its reader has not taken."""
        ...


@dataclass(slots=True)
class RequestRecord:
    """One request on its way: filled as more is known, read once when the answer has left."""

    request_id: str
    method: str
    path: str
    started_s: float
    model: str = ""
    version: str = ""
    status: int = 500
    code: str = ""
    timings: Timings = field(default_factory=Timings)
    fast_path: FastPath | None = None


class Observer:
    """Counts and logs requests. Owned by the event loop."""

    def __init__(self, log_requests: str, slow_ms: float) -> None:
        """`log_requests`: `all`, `slow_and_failed` or `none`."""
        self._log_requests = log_requests
        self._slow_s = slow_ms / 1000
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.rejected: Counter[str] = Counter()
        self.models: dict[str, ModelMetrics] = {}
        self.versions: dict[tuple[str, str], VersionRequests] = {}
        """By model and version."""
        self.generations: dict[str, GenerationMetrics] = {}
        self.inflight = 0
        self.cache_hits: Counter[str] = Counter()
        self.cache_misses: Counter[str] = Counter()
        self.shadow_outcomes: Counter[tuple[str, str, str]] = Counter()
        """By model, version and outcome."""

    def inferred(self, record: RequestRecord, total_s: float, rejected: bool) -> None:
        """Counts one answered request to a model; `rejected` if it was refused for want of room or of a ready model."""
        self.requests[record.model, record.version, record.status] += 1
        if rejected:
            self.rejected[record.code] += 1
        if record.status == 200 and not record.code:
            metrics = self.models.get(record.model)
            if metrics is None:
                metrics = self.models[record.model] = ModelMetrics()
            metrics.request_seconds.observe(total_s)
            metrics.queue_seconds.observe(record.timings.queue_s)
            metrics.compute_seconds.observe(record.timings.compute_s)
        # A request that names a version which is not there is none to any.
        if record.model and record.status != 404:
            self._count_version(record, total_s)
        self.answered(record, total_s)

    def _count_version(self, record: RequestRecord, total_s: float) -> None:
        key = record.model, record.version
        requests = self.versions.get(key)
        if requests is None:
            requests = self.versions[key] = VersionRequests()
        requests.last_s = record.started_s
        if record.status == 200 and not record.code:
            requests.add(record.timings, total_s)
        else:
            requests.failed += 1
            requests.failed_s += total_s

    def answered(self, record: RequestRecord, total_s: float) -> None:
        """Logs one answered request of any kind, as `[logging] requests` says; probes and scrapes are no news.

        An answer that began well and ended with an error (a status of 200 and a code) has failed.
        """
        if self._log_requests != "all" and (
            self._log_requests == "none" or (record.status < 400 and not record.code and total_s < self._slow_s)
        ):
            return
        if record.path.startswith(_PROBES):
            return
        timings = record.timings
        log.info(
            "request",
            request_id=record.request_id,
            method=record.method,
            path=record.path,
            model=record.model or None,
            version=record.version or None,
            status=record.status,
            code=record.code or None,
            decode_ms=_ms(timings.decode_s),
            queue_ms=_ms(timings.queue_s),
            compute_ms=_ms(timings.compute_s),
            encode_ms=_ms(timings.encode_s),
            total_ms=_ms(total_s),
        )

    def generation(self, model: str) -> GenerationMetrics:
        """Where the times of a model's tokens are added up."""
        metrics = self.generations.get(model)
        if metrics is None:
            metrics = self.generations[model] = GenerationMetrics()
        return metrics

    def forget(self, model: str) -> None:
        """Drops the series of a model that was deleted, so that names that come and go do not pile up."""
        self.models.pop(model, None)
        self.generations.pop(model, None)
        del self.cache_hits[model], self.cache_misses[model]
        for version in [key for key in self.versions if key[0] == model]:
            del self.versions[version]
        for counter in (self.requests, self.shadow_outcomes):
            for key in [key for key in counter if key[0] == model]:
                del counter[key]


def server_timing(timings: Timings) -> str:
    """The Server-Timing header's value (W3C Server Timing): four durations in milliseconds."""
    return "decode;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, encode;dur=%.3f" % (  # noqa: UP031 - half the time of f""
        timings.decode_s * 1e3,
        timings.queue_s * 1e3,
        timings.compute_s * 1e3,
        timings.encode_s * 1e3,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
