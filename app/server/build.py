"""Build the server: wire every part, in the order of their dependencies."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog
from starlette.types import ASGIApp

from app.admin.metrics.process_parts import ProcessParts
from app.admin.views import Views
from app.auth.authenticator import Authenticator
from app.auth.key_store import KeyStore
from app.auth.permissions import HttpAccess
from app.auth.quotas import limits_by_tenant
from app.auth.tls import ServerTls
from app.config import LoadedSettings, ServerSettings, Settings
from app.extension import ServerProcess, extensions, http_access, open_parts
from app.http.app import build_app
from app.http.deferred import DeferredApplication, Lifespan
from app.http.endpoint import Endpoint
from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.page.files import WebSite
from app.http.page.page import WebPage
from app.inference.bounds import Bounds
from app.inference.context import InferenceService
from app.inference.lifecycle import ServerLifecycle
from app.inference.model_view import ManagedModelView
from app.inference.pipeline import Pipeline
from app.inference.response_cache import ResponseCache
from app.inference.shadowing import ShadowTraffic
from app.observability.background import background_task
from app.observability.integrity import IntegrityMonitor
from app.observability.loop_lag import LoopLagMonitor
from app.observability.metrics import Observer
from app.observability.progress import ProgressReporter
from app.observability.tallies import RequestTallies
from app.observability.traces.traces import Tracer
from app.observability.worker_counts import WorkerCounts
from app.protocols.native.routes import ROUTES as NATIVE_ROUTES
from app.protocols.shared.routes import Route, RouteTable
from app.server.http_server import origin_rules, prefix_rules
from app.server.keys import open_keys
from app.server.manager import build_manager, keep_compiled_code
from app.server.monitoring import Live, Shown, build_live
from app.server.parts import Counting, Inference, Monitors
from app.workers.shared.responses import SharedResponses
from app.workers.tallies.merged import MergedTallies
from frameworks.core.devices import DeviceManager, DeviceProbe, SystemProbe
from frameworks.manager import MLFrameworkManager
from frameworks.models.replicas.control import Workers
from frameworks.models.residency.processes import Starter
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.scheduling.shared_limits import SharedLimits, request_limit
from memory.host import resident_bytes
from memory.result_cache import ResultCache
from memory.tensor_pool import TensorPool

if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.grpc.call import Unary
    from app.grpc.listener import GrpcListener
    from app.grpc.management import Answer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Server:
    """The ASGI application, and the switch that starts its drain."""

    app: Endpoint
    lifecycle: ServerLifecycle


@dataclass(frozen=True, slots=True)
class Host:
    """Where the server runs. `probe`: finds the devices; None: those of this machine. `starter`: starts the models that
    run outside of this process; None: in engine processes. `labels`: of each metric. `attach`: called with the manager.
    `keeps_files`: whether what is created at run time is kept for the next start.
    """

    probe: DeviceProbe | None = None
    starter: Starter | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    attach: Callable[[MLFrameworkManager], None] = lambda _: None
    keeps_files: bool = True


@dataclass(frozen=True, slots=True)
class Sharing:
    """The parts that a supervisor shares with its workers. `limits`: as used by this process."""

    workers: Workers
    limits: SharedLimits
    num_workers: int


def build(
    loaded: LoadedSettings,
    log_requests: str,
    host: Host = Host(),
    grpc_listener: "GrpcListener | None" = None,
    connections: Connections | None = None,
    keys: KeyStore | None = None,
    tracer: Tracer | None = None,
) -> Server:
    """Wire the parts for these settings. Nothing is loaded before the application starts.

    `log_requests`: `all`, `slow_and_failed` or `none`. `grpc_listener`: already open; it answers while the application
    runs. `connections`: those of the HTTP listener. `keys`: None reads the keys file. `tracer`: None if tracing is off.
    Raises ConfigError.
    """
    observer = Observer(log_requests, loaded.settings.logging.slow_ms, tracer)
    if connections is None:
        connections = Connections(ConnectionBounds(), ByteLimit(loaded.settings.server.max_buffered_bytes))
    if keys is None:
        keys = open_keys(loaded, api_key="")
    authenticator = None if loaded.settings.auth.mode == "off" else Authenticator(keys)
    inference = build_inference(loaded, observer, host, connections.byte_limit)
    monitors = build_monitors(inference, observer)
    counting = build_counting(inference, monitors, connections, keys, labels=host.labels)
    table = build_routes()
    serve_grpc = None
    if grpc_listener is not None:
        methods = partial(own_management_methods, inference, counting.views, observer)
        serve_grpc = partial(grpc_listener.serving, inference.pipeline, methods, loaded.settings, authenticator)
    live = build_live(shown_of(inference, counting), inference.pipeline, keys, host.labels)
    lifespan = build_lifespan(inference, monitors, keys, connections.tls, live, serve_grpc)
    warn_of_missing_site(loaded.settings.server)

    def administration() -> ASGIApp:
        routes = build_administration(loaded, inference, counting, connections, keys, table, live)
        return with_page(read_site(loaded.settings.server), routes)

    admin = DeferredApplication(administration, lifespan)
    rules, prefixes = origin_rules(loaded.settings.server), prefix_rules(loaded.settings.server)
    has_page = has_site(loaded.settings.server)
    app = build_app(inference.pipeline, table, admin, rules, authenticator, has_page, prefixes)
    return Server(app, inference.lifecycle)


def build_inference(
    loaded: LoadedSettings,
    observer: Observer,
    host: Host,
    byte_limit: ByteLimit,
    sharing: Sharing | None = None,
) -> Inference:
    """Return the parts of a single server, or with `sharing` those of a supervisor, which runs no requests."""
    settings = loaded.settings
    keep_compiled_code(loaded)
    pool = TensorPool(settings.memory)
    devices = DeviceManager(host.probe or SystemProbe(), settings.performance.enable_gpu)
    limits = None if sharing is None else sharing.limits
    manager = build_manager(loaded, devices, pool, 0 if sharing is None else sharing.num_workers, limits, host.starter)
    host.attach(manager)
    lifecycle = ServerLifecycle(manager, tuple(slot.name for slot in manager.slots if slot.entry.load == "startup"))
    cache_settings = settings.cache
    responses = ResponseCache(
        ResultCache(cache_settings.max_bytes, cache_settings.ttl_s), observer.cache_hits, observer.cache_misses
    )
    cache: ResponseCache | SharedResponses = responses
    if sharing is not None:
        cache = SharedResponses(ResultCache(cache_settings.max_bytes, cache_settings.ttl_s), sharing.workers)
    manager.on_unloaded(cache.drop)
    service = InferenceService(responses, observer.generation_metrics)
    shadowing = ShadowTraffic(service, observer.shadow_outcomes)
    bounds = build_bounds(settings, byte_limit, limits)
    pipeline = Pipeline(manager, service, shadowing, observer, lifecycle, bounds)
    process = ServerProcess(
        loaded=loaded,
        pipeline=pipeline,
        models=manager.parts,
        slots=manager.slots_by_name,
        composites=manager.composites,
        ledger=manager.residency.ledger,
        workers=None if sharing is None else sharing.workers,
        keeps_files=host.keeps_files,
    )
    parts = open_parts(process)
    return Inference(manager, pool, cache, bounds.requests, service, shadowing, pipeline, lifecycle, parts)


def build_bounds(settings: Settings, byte_limit: ByteLimit, limits: SharedLimits | None = None) -> Bounds:
    """Return the bounds of requests. `limits`: those of all workers; None for one process."""
    scheduling = settings.scheduling
    requests = request_limit(
        None if limits is None else limits.server(),
        "the server",
        scheduling.max_queue_size,
        scheduling.max_concurrent_requests,
        byte_limit=byte_limit,
    )
    tenants = limits_by_tenant(settings.auth.tenants, byte_limit, limits)
    server = settings.server
    return Bounds(requests, server.max_body_bytes, scheduling.default_timeout_ms, tenants, server.media_hosts)


def build_counting(
    inference: Inference,
    monitors: Monitors,
    connections: Connections,
    keys: KeyStore,
    sharing: Sharing | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Counting:
    """Return the counts of this process, or with `sharing` those of all workers too. `labels`: of each metric."""
    observer: RequestTallies = inference.pipeline.observer
    tracer = inference.pipeline.observer.tracer
    counts = ProcessParts(monitors.loop_lag, monitors.integrity, inference.pool, connections, keys, tracer).counts
    memory_bytes = resident_bytes
    if sharing is not None:
        merged = MergedTallies(sharing.workers, observer, counts)
        observer, counts, memory_bytes = merged, merged.process_counts, merged.memory_bytes
    views = Views(partial(ManagedModelView, inference.manager), observer)
    return Counting(views, observer, counts, WorkerCounts(), memory_bytes, labels)


def shown_of(inference: Inference, counting: Counting) -> Shown:
    """Return what the page shows."""
    manager = inference.manager
    ledger = manager.residency.ledger
    return Shown(counting.views, counting.tallies, manager, manager.devices, ledger, inference.lifecycle)


def build_monitors(inference: Inference, observer: Observer) -> Monitors:
    residency, shadowing = inference.manager.residency, inference.shadowing
    integrity = IntegrityMonitor(
        lambda: not observer.inflight and not shadowing.copies and residency.is_idle,
        [residency.ledger.check_integrity, residency.check_integrity, inference.pool.check_integrity],
    )
    return Monitors(LoopLagMonitor(partial(getattr, observer, "inflight")), integrity)


def build_routes() -> RouteTable:
    """Return the routes of inference. Only those of /infer are imported before a request needs another one."""
    return RouteTable(NATIVE_ROUTES, HttpAccess(http_access()), _other_routes)


def _other_routes() -> Sequence[Route]:
    from app.protocols.open_inference.generate_codec import ROUTES as GENERATE_ROUTES
    from app.protocols.open_inference.infer_codec import routes as open_inference_routes
    from app.protocols.open_inference.predict_codec import ROUTES as PREDICT_ROUTES
    from app.protocols.openai.routes import ROUTES as OPENAI_ROUTES

    of_extensions = [route for extension in extensions() for route in extension.routes()]
    return (*OPENAI_ROUTES, *open_inference_routes(), *GENERATE_ROUTES, *PREDICT_ROUTES, *of_extensions)


def has_site(server: ServerSettings) -> bool:
    """Whether there is a web page."""
    return server.web and WebSite.is_in()


def read_site(server: ServerSettings) -> WebSite | None:
    """Return the web page; None if it is switched off, or not a part of this installation."""
    return WebSite.read() if server.web else None


def with_page(site: WebSite | None, admin: ASGIApp) -> ASGIApp:
    """Return the application with the web page before it; None: `GET /` is JSON."""
    return admin if site is None else WebPage(site, admin)


def warn_of_missing_site(server: ServerSettings) -> None:
    if server.web and not has_site(server):
        log.warning("no web page: the folder app/web of this installation has none")


def build_lifespan(
    inference: Inference,
    monitors: Monitors,
    keys: KeyStore,
    tls: ServerTls | None,
    live: Live,
    serve_grpc: Callable[[], AbstractAsyncContextManager[None]] | None,
) -> Lifespan:
    """Return the context that starts the parts in order, and stops them in reverse after the listeners are closed."""
    manager, pipeline = inference.manager, inference.pipeline

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            works = [monitors.loop_lag.run(), ProgressReporter().run(), keys.watch(), *([tls.watch()] if tls else ())]
            for work in works:
                await stack.enter_async_context(background_task(work))
            stack.callback(pipeline.close)
            # Only the ledger: an instance that was abandoned may still compute in its leases.
            stack.callback(monitors.integrity.check, manager.residency.ledger.check_integrity)
            await stack.enter_async_context(manager)
            for part in inference.parts:
                await stack.enter_async_context(part.running())
            await stack.enter_async_context(background_task(monitors.integrity.run()))
            stack.push_async_callback(inference.shadowing.close)
            await stack.enter_async_context(background_task(manager.load_registered()))
            await stack.enter_async_context(background_task(live.feed.run()))
            if serve_grpc is not None:
                await stack.enter_async_context(serve_grpc())
            log.info("devices", devices=[f"{d.id} ({d.name})" for d in manager.devices.devices()])
            yield

    return lifespan


def build_administration(
    loaded: LoadedSettings,
    inference: Inference,
    counting: Counting,
    connections: Connections,
    keys: KeyStore,
    table: RouteTable,
    live: Live,
) -> "FastAPI":
    """Return the routes that change or describe the server. FastAPI and they are imported by this call."""
    from app.http.routes.application import build_admin
    from app.server.administration import build_routers

    return build_admin(
        table, build_routers(loaded, inference, counting, connections, keys, live), connections.byte_limit
    )


def management_answer(inference: Inference, views: Views) -> "Answer":
    """Return how calls over gRPC are answered that are no inference."""
    from app.admin.open_inference.management import Management
    from app.grpc.management import ManagementCalls

    return ManagementCalls(Management(inference.pipeline, inference.lifecycle), views).answer


def management_methods(answer: "Answer", observer: Observer) -> "dict[str, Unary]":
    """Return the methods over gRPC that are no inference. Their messages are imported only for an open port."""
    from app.grpc.management import management_methods as methods

    return methods(answer, observer)


def own_management_methods(inference: Inference, views: Views, observer: Observer) -> "dict[str, Unary]":
    """Return the methods that this process answers itself; see `management_methods`."""
    return management_methods(management_answer(inference, views), observer)
