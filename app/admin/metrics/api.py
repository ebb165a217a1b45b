"""Serve GET /metrics: convert the plain counters that the key may see to Prometheus families at each scrape."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response

from app.admin.metrics.families import Family, by_label, by_tenant, counter, gauge, single, time_histogram
from app.admin.metrics.formats import OPEN_METRICS, metrics_page, with_labels
from app.admin.metrics.models import (
    batch_families,
    generation_families,
    model_families,
    process_families,
    state_families,
    tenant_family,
    time_families,
)
from app.admin.views import View, Views
from app.auth.key_store import KeyStore
from app.auth.quotas import TenantLimits
from app.http.listener.clocks import Connections
from app.inference.response_cache import CacheUse
from app.observability.process_counts import ProcessCounts
from app.observability.worker_counts import WorkerCounts
from frameworks.core.devices import Device, DeviceManager
from frameworks.engine.process.client import process_registry
from frameworks.models.residency.ledger import HOST, MemoryLedger
from frameworks.scheduling.admission import RequestLimit

_WORKER_ENDS = ("exit_status", "sigabrt", "sigkill", "sigsegv")


@dataclass(frozen=True, slots=True)
class StatsSources:
    """The parts of the server that hold statistics. `request_limit`: of the whole server. `tenants`: the limits of
    those that have any, by name. `process_counts`: returns those of all processes that answer requests.
    `labels`: of each sample beside its own. `added`: return the families of extensions.
    """

    devices: DeviceManager
    ledger: MemoryLedger
    request_limit: RequestLimit
    response_cache: CacheUse
    connections: Connections
    keys: KeyStore
    tenants: Mapping[str, TenantLimits]
    process_counts: Callable[[], ProcessCounts]
    workers: WorkerCounts
    labels: Mapping[str, str] = field(default_factory=dict)
    added: Sequence[Callable[[View], Awaitable[Iterable[Family]]]] = ()


class MetricsApi:
    """Handler of the route."""

    def __init__(self, sources: StatsSources, views: Views) -> None:
        self._sources = sources
        self._views = views

    def router(self) -> APIRouter:
        router = APIRouter(tags=["metrics"])
        router.add_api_route(
            "/metrics",
            self.metrics,
            methods=["GET"],
            summary="Metrics for Prometheus",
            responses={200: {"content": {"text/plain": {}, OPEN_METRICS: {}}, "description": "Prometheus text."}},
        )
        return router

    async def metrics(self, request: Request) -> Response:
        """Show metrics in Prometheus' text format: those of the models, the tenant and the machine.

        An operator also gets those of all tenants and of the parts that tenants share. A client that accepts
        OpenMetrics gets that format, with exemplars.
        """
        devices = await asyncio.to_thread(self._sources.devices.devices)
        view = self._views.for_request(request)
        await view.counts.refresh()
        added = [family for each in self._sources.added for family in await each(view)]
        families = _Families(self._sources, view, devices, added).collect()
        if self._sources.labels:
            families = with_labels(families, self._sources.labels)
        page = metrics_page(families, request.headers.getlist("accept"))
        return Response(page.content, headers={"content-type": page.content_type})


class _Families:
    """The metrics that a view shows, with their values of now."""

    def __init__(self, sources: StatsSources, view: View, devices: list[Device], added: Sequence[Family]) -> None:
        self._sources = sources
        self._counts = view.counts
        self._process = sources.process_counts()
        self._slots = view.models.slots
        self._devices = devices
        self._added = added

    def collect(self) -> Iterator[Family]:
        counts, slots = self._counts, self._slots
        yield from self._requests()
        yield self._tenant_inflight()
        yield self._queue_limits()
        yield from model_families(slots, self._sources.ledger.evictions, counts)
        yield from time_families(counts.times())
        if counts.tenant is None:
            yield from batch_families(slots)
            yield from process_families(slots)
        yield tenant_family(slots, counts.tenant)
        yield from generation_families(slots, counts)
        yield from state_families(slots, counts.tenant)
        yield from self._cache()
        yield from self._added
        yield from self._machine()
        if counts.are_of_server:
            yield from self._shared()

    def _requests(self) -> Iterator[Family]:
        counts = self._counts
        yield counter(
            "requests",
            "Completed requests to models, by HTTP status.",
            *by_tenant(
                ["model", "version", "code"],
                (
                    ([model, version, str(status)], tenant, n)
                    for (model, version, status, tenant), n in counts.requests()
                ),
            ),
        )
        yield counter(
            "rejected",
            "Requests rejected because a queue was full, a tenant's limit was reached or no model was ready.",
            *by_tenant(["reason"], (([reason], tenant, n) for (reason, tenant), n in counts.rejected())),
        )
        inflight = counts.all_in_flight(self._slots)
        yield single(gauge, "inflight", "Requests to models that are in progress.", inflight)

    def _tenant_inflight(self) -> Family:
        tenants, visible = self._sources.tenants, self._counts.tenant
        return by_label(
            gauge,
            "tenant_inflight",
            "Requests that count towards the max_concurrent_requests of a tenant. Only tenants with limits.",
            "tenant",
            ((name, each.places.inflight) for name, each in tenants.items() if visible in (None, name)),
        )

    def _machine(self) -> Iterator[Family]:
        """Yield the families of process and devices, which show no requests."""
        process = self._process
        about = "Delay of the event loop's periodic timer."
        yield time_histogram("event_loop_lag_seconds", about, [], [([], process.loop_lag_seconds)])
        sizes = [
            ([device.id, kind], size)
            for device in self._devices
            for kind, size in (("total", device.total_bytes), ("free", device.free_bytes))
        ]
        yield gauge("device_memory_bytes", "Memory of a device.", ["device", "kind"], sizes)
        about = "Log lines lost because their reader was too slow."
        yield single(counter, "log_lines_dropped", about, process.log_lines_dropped)
        about = "Sampled requests without a trace: the queue was full, or the collector did not take them."
        yield single(counter, "traces_dropped", about, process.traces_dropped)
        about = "Integrity checks that found reserved memory without an owner, or an owner without a reservation."
        yield single(counter, "integrity_failures", about, process.integrity_failures)
        workers = self._sources.workers
        yield single(gauge, "workers", "Processes that accept connections.", workers.running)
        # Zeros too: the first restart would not be an increase for Prometheus.
        restarts = ((reason, workers.restarts[reason]) for reason in sorted({*_WORKER_ENDS, *workers.restarts}))
        about = "Processes that accepted connections, ended, and were replaced, by reason."
        yield by_label(counter, "worker_restarts", about, "reason", restarts)

    def _shared(self) -> Iterator[Family]:
        """Yield the families of parts that all tenants share."""
        cache = self._sources.response_cache
        about = "Size of the bodies in progress: received, decompressed, decoded or not yet sent."
        yield single(gauge, "buffered_bytes", about, self._sources.request_limit.byte_limit.held_bytes)
        about = "Requests refused for their key: absent, not valid, without the scope, or in the query."
        yield by_label(counter, "auth_failures", about, "reason", self._counts.of_server.auth_failures.items())
        yield from self._keys()
        yield from self._connections()
        yield from self._tls()
        yield single(gauge, "cache_bytes", "Size of the cached requests and responses.", cache.size_bytes)
        yield single(counter, "cache_evictions", "Cached responses evicted to free memory.", cache.evictions)
        yield from self._tensor_pool()
        yield from self._processes()
        yield self._model_budget()
        yield counter(
            "shadow_requests",
            "Requests copied to a shadow version, by the comparison of its response.",
            ["model", "version", "outcome"],
            self._counts.of_server.shadow_outcomes.items(),
        )

    def _connections(self) -> Iterator[Family]:
        yield single(gauge, "connections", "Open connections over HTTP.", self._sources.connections.open)
        about = "Connections over HTTP that the server closed before the client did, by reason."
        yield by_label(counter, "connections_closed", about, "reason", self._process.connections_closed.items())

    def _keys(self) -> Iterator[Family]:
        yield single(gauge, "auth_keys", "Keys of the server, expired ones included.", len(self._sources.keys))
        yield by_label(
            counter,
            "auth_key_reloads",
            "Changes of the keys file while the server ran, by outcome: `loaded`, or `failed`, with the old keys kept.",
            "outcome",
            self._process.key_reloads.items(),
        )

    def _tls(self) -> Iterator[Family]:
        about = "Reads of changed TLS files, by outcome: `loaded`, or `failed`, with the last good files kept."
        yield by_label(counter, "tls_reloads", about, "outcome", self._process.tls_reloads.items())
        expires_s = self._process.tls_expires_s
        yield gauge(
            "tls_certificate_expiry_timestamp_seconds",
            "When the server's certificate expires, as Unix time.",
            [],
            [] if expires_s is None else [([], expires_s)],
        )

    def _queue_limits(self) -> Family:
        limits = {"": self._sources.request_limit}
        limits |= {slot.name: slot.requests for slot in self._slots}
        return by_label(
            gauge,
            "queue_limit",
            'Maximum number of queued requests: of a model with its own limit, and with model="" of all models.',
            "model",
            ((model, limit.max_queue_size) for model, limit in limits.items() if limit.max_queue_size is not None),
        )

    def _cache(self) -> Iterator[Family]:
        about = "Requests answered from the cache, or by the run of an equal request."
        yield by_label(counter, "cache_hits", about, "model", self._counts.cache_hits().items())
        about = "Requests that the cache could not answer."
        yield by_label(counter, "cache_misses", about, "model", self._counts.cache_misses().items())

    def _tensor_pool(self) -> Iterator[Family]:
        stats = self._process.tensor_pool
        sizes = [
            ([device, state], size)
            for device, each in stats.items()
            for state, size in (("leased", each.leased_bytes), ("idle", each.idle_bytes))
        ]
        yield gauge("tensor_pool_bytes", "Size of pooled buffers.", ["device", "state"], sizes)
        for name, documentation, total in (
            ("tensor_pool_hits", "Leases that reused an idle buffer.", sum(each.hits for each in stats.values())),
            ("tensor_pool_misses", "Leases that needed a new buffer.", sum(each.misses for each in stats.values())),
            ("gc_runs", "Collections of idle buffers.", sum(each.gc_runs for each in stats.values())),
            ("gc_freed_bytes", "Size of the collected idle buffers.", sum(each.freed_bytes for each in stats.values())),
        ):
            yield single(counter, name, documentation, total)

    def _processes(self) -> Iterator[Family]:
        yield single(gauge, "engine_processes", "Processes of models that run.", process_registry.count())
        yield by_label(
            gauge,
            "engine_shared_memory_bytes",
            "Memory that the server shares with processes of models: blocks in use by requests, and pages in memory.",
            "kind",
            (("leased", self._process.shared_leased_bytes), ("resident", self._process.shared_resident_bytes)),
        )

    def _model_budget(self) -> Family:
        budget = self._sources.ledger.budget
        reservations = [
            ([device, kind], size)
            for device in budget.devices
            for kind, size in (("limit", budget.limit(device)), ("reserved", budget.used(device)))
        ]
        reservations.append(([HOST, "collections"], self._sources.ledger.held_bytes))
        return gauge(
            "model_budget_bytes",
            "Memory of a device for models and collections: the limit, all that is reserved, and that of collections.",
            ["device", "kind"],
            reservations,
        )
