"""Add up requests in plain numbers: histograms, and the counts of a model, a version and a generating model."""

import itertools
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, fields
from operator import add
from typing import Any, NamedTuple

from frameworks.core.timings import Timings
from frameworks.models.versions.slot import ModelSlot

SECONDS_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


SERIES_OF_MODELS = ("requests", "models", "versions", "generations", "cache_hits", "cache_misses", "shadow_outcomes")
"""The counts of RequestTallies whose keys begin with the name of a model."""


class Exemplar(NamedTuple):
    """A request of a sampled trace, as an example of its bucket. `ended_s`: Unix time."""

    trace_id: str
    value: float
    ended_s: float


@dataclass(slots=True)
class Histogram:
    """Observations in seconds. `counts`: per bucket of SECONDS_BUCKETS, not cumulated; the last is for all above.

    `exemplars`: the latest of a bucket, by its index.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BUCKETS) + 1))
    total: float = 0.0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(SECONDS_BUCKETS, value)] += 1
        self.total += value

    def show(self, exemplar: Exemplar) -> None:
        """Keep an observation as the example of its bucket, unless a later one is there."""
        index = bisect_left(SECONDS_BUCKETS, exemplar.value)
        before = self.exemplars.get(index)
        if before is None or before.ended_s <= exemplar.ended_s:
            self.exemplars[index] = exemplar

    def merge(self, other: "Histogram") -> None:
        """Add the observations of another histogram."""
        self.counts = list(map(add, self.counts, other.counts))
        self.total += other.total
        for exemplar in other.exemplars.values():
            self.show(exemplar)

    def cumulated(self) -> list[tuple[str, float]]:
        """Return Prometheus buckets: each bound and the number of observations up to it."""
        bounds = (*map(str, SECONDS_BUCKETS), "+Inf")
        return list(zip(bounds, itertools.accumulate(self.counts), strict=True))


@dataclass(slots=True)
class ModelMetrics:
    """The three histograms of one model and tenant. `steps`: of a pipeline, the histogram of each step."""

    request_seconds: Histogram = field(default_factory=Histogram)
    queue_seconds: Histogram = field(default_factory=Histogram)
    compute_seconds: Histogram = field(default_factory=Histogram)
    steps: dict[str, Histogram] = field(default_factory=dict)

    def observe(self, total_s: float, timings: Timings) -> None:
        """Record one request that succeeded."""
        for histogram, value in (
            (self.request_seconds, total_s),
            (self.queue_seconds, timings.queue_s),
            (self.compute_seconds, timings.compute_s),
        ):
            # As Histogram.observe, without three calls for each request.
            histogram.counts[bisect_left(SECONDS_BUCKETS, value)] += 1
            histogram.total += value
        if timings.steps:
            for step, _, seconds in timings.steps:
                known = self.steps.get(step)
                if known is None:
                    known = self.steps[step] = Histogram()
                known.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
                known.total += seconds

    def show(self, trace_id: str, total_s: float, timings: Timings) -> None:
        """Keep a request that succeeded as an example of its buckets."""
        ended_s = round(time.time(), 3)
        self.request_seconds.show(Exemplar(trace_id, total_s, ended_s))
        self.queue_seconds.show(Exemplar(trace_id, timings.queue_s, ended_s))
        self.compute_seconds.show(Exemplar(trace_id, timings.compute_s, ended_s))

    def merge(self, other: "ModelMetrics") -> None:
        """Add the observations of another tenant."""
        self.request_seconds.merge(other.request_seconds)
        self.queue_seconds.merge(other.queue_seconds)
        self.compute_seconds.merge(other.compute_seconds)
        for step, seconds in other.steps.items():
            self.steps.setdefault(step, Histogram()).merge(seconds)


@dataclass(slots=True)
class VersionRequests:
    """The requests of one tenant to one version of a model, and their seconds.

    `answered` requests succeeded; of those, `cache_hits` were cached and `cache_misses` were run although the model has
    a cache. Seconds of queue, decode, compute and encode are those of requests that ran. `last_s`: when the latest
    request began (time.perf_counter).
    """

    answered: int = 0
    answered_s: float = 0.0
    queue_s: float = 0.0
    decode_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    failed: int = 0
    failed_s: float = 0.0
    cache_hits: int = 0
    cache_hits_s: float = 0.0
    cache_misses: int = 0
    last_s: float = 0.0

    def add(self, timings: Timings, total_s: float) -> None:
        """Count a request that succeeded."""
        self.answered += 1
        self.answered_s += total_s
        if timings.cache_hit:
            self.cache_hits += 1
            self.cache_hits_s += total_s - timings.decode_s - timings.encode_s
            return
        if timings.cache_hit is not None:
            self.cache_misses += 1
        self.queue_s += timings.queue_s
        self.decode_s += timings.decode_s
        self.compute_s += timings.compute_s
        self.encode_s += timings.encode_s

    def merge(self, other: "VersionRequests") -> None:
        """Add the requests of another tenant."""
        last_s = max(self.last_s, other.last_s)
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.last_s = last_s


@dataclass(slots=True)
class GenerationMetrics:
    """The histograms of one model that generates text, for one tenant: from a request's first byte to its first token,
    and between the tokens of one text.
    """

    time_to_first_token_seconds: Histogram = field(default_factory=Histogram)
    inter_token_seconds: Histogram = field(default_factory=Histogram)

    def observe_first(self, seconds: float) -> None:
        """As TokenTimes.observe_first."""
        self.time_to_first_token_seconds.observe(seconds)

    def observe_next(self, seconds: float) -> None:
        """As TokenTimes.observe_next."""
        self.inter_token_seconds.observe(seconds)

    def merge(self, other: "GenerationMetrics") -> None:
        """Add the observations of another tenant."""
        self.time_to_first_token_seconds.merge(other.time_to_first_token_seconds)
        self.inter_token_seconds.merge(other.inter_token_seconds)


class RequestTallies:
    """The counts of requests to models. Owned by the event loop.

    They are kept by tenant, "" without keys; `visible_counts` adds up those that a principal may see. They are of one
    process; a server with several workers overrides the methods.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int, str]] = Counter()
        """By model, version, HTTP status and tenant."""
        self.rejected: Counter[tuple[str, str]] = Counter()
        """By code and tenant."""
        self.models: dict[tuple[str, str], ModelMetrics] = {}
        """By model and tenant."""
        self.versions: dict[tuple[str, str, str], VersionRequests] = {}
        """By model, version and tenant."""
        self.generations: dict[tuple[str, str], GenerationMetrics] = {}
        """By model and tenant."""
        self.inflight = 0
        self.cache_hits: Counter[tuple[str, str]] = Counter()
        """By model and tenant, as `cache_misses`."""
        self.cache_misses: Counter[tuple[str, str]] = Counter()
        self.shadow_outcomes: Counter[tuple[str, str, str]] = Counter()
        """By model, version and outcome."""
        self.operations: Counter[tuple[str, str, int, str]] = Counter()
        """By resource, operation, HTTP status and tenant."""
        self.operation_seconds: dict[tuple[str, str, str], Histogram] = {}
        """Of operations that succeeded, by resource, operation and tenant."""
        self.auth_failures: Counter[str] = Counter()
        """Requests that were refused for their key, by reason."""

    async def refresh(self) -> None:
        """Update the counts before they are shown. Those of one process are current."""

    def count_operation(self, resource: str, operation: str, status: int, tenant: str, total_s: float) -> None:
        """Count one request to a resource beside models."""
        self.operations[resource, operation, status, tenant] += 1
        if status == 200:
            key = resource, operation, tenant
            histogram = self.operation_seconds.get(key)
            if histogram is None:
                histogram = self.operation_seconds[key] = Histogram()
            histogram.observe(total_s)

    def requests_of(self, slot: ModelSlot, tenant: str) -> tuple[int, int]:
        """Return the number of a tenant's requests to a model, and of the places in the queue that they hold."""
        return slot.requests_of(tenant)

    def requests_by_tenant(self, slot: ModelSlot) -> dict[str, tuple[int, int]]:
        """Return what `requests_of` does, by the names of the tenants that have requests in flight."""
        return slot.requests_by_tenant()

    def forget(self, model: str) -> None:
        """Drop the series of a deleted model, so that they do not pile up."""
        for name in SERIES_OF_MODELS:
            forget_model(getattr(self, name), model)


def forget_model(series: dict[tuple[Any, ...], Any], model: str) -> None:
    """Drop the counts of a model. `series`: by tuples that begin with its name."""
    for key in [key for key in series if key[0] == model]:
        del series[key]
