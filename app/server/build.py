"""Build the server: wire every part, in the order of their dependencies."""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
from fastapi import APIRouter, FastAPI

from app.admin.health import HealthApi
from app.admin.metrics import MetricsApi, StatsSources
from app.admin.models import ModelsApi
from app.admin.open_inference.management import Management
from app.admin.open_inference.routes import OpenInferenceApi
from app.admin.openai_models import OpenAiModelsApi
from app.admin.pages import PagesApi
from app.admin.process_parts import ProcessParts
from app.admin.views import Views
from app.auth.authenticator import Authenticator
from app.auth.quotas import limits_by_tenant
from app.auth.store import KeyStore
from app.auth.tls import ServerTls
from app.config import LoadedSettings, ServerSettings, Settings
from app.http.app import Lifespan, build_admin, build_app
from app.http.clocks import ConnectionBounds, Connections
from app.http.endpoint import Endpoint
from app.http.origins import OriginRules
from app.inference.bounds import Bounds
from app.inference.lifecycle import Lifecycle, ServerLifecycle
from app.inference.model_view import ManagedModelView
from app.inference.pipeline import Pipeline
from app.inference.response_cache import ResponseCache
from app.inference.service import InferenceService
from app.inference.shadowing import ShadowTraffic
from app.observability.background import background_task
from app.observability.integrity import IntegrityMonitor
from app.observability.loop_lag import LoopLagMonitor
from app.observability.metrics import Observer
from app.protocols.native.codec import ROUTES as NATIVE_ROUTES
from app.protocols.open_inference.generate_codec import ROUTES as GENERATE_ROUTES
from app.protocols.open_inference.infer_codec import routes as open_inference_routes
from app.protocols.openai.routes import ROUTES as OPENAI_ROUTES
from app.protocols.routes import RouteTable
from app.server.keys import open_keys
from app.server.manager import build_manager
from frameworks.devices import DeviceManager, DeviceProbe, SystemProbe
from frameworks.manager import MLFrameworkManager
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.byte_limit import ByteLimit
from memory.result_cache import ResultCache
from memory.tensor_pool import TensorPool

if TYPE_CHECKING:
    from app.grpc.call import Unary
    from app.grpc.listener import GrpcListener

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Server:
    """The ASGI application, and the switch that starts its drain."""

    app: Endpoint
    lifecycle: Lifecycle


@dataclass(frozen=True, slots=True)
class _Inference:
    """The parts that run requests, from the manager up to the pipeline."""

    manager: MLFrameworkManager
    pool: TensorPool
    response_cache: ResponseCache
    requests: RequestLimit
    service: InferenceService
    shadowing: ShadowTraffic
    pipeline: Pipeline
    lifecycle: ServerLifecycle
    views: Views


@dataclass(frozen=True, slots=True)
class _Monitors:
    """The parts that check the server itself."""

    loop_lag: LoopLagMonitor
    integrity: IntegrityMonitor


def build(
    loaded: LoadedSettings,
    log_requests: str,
    probe: DeviceProbe | None = None,
    grpc_listener: "GrpcListener | None" = None,
    connections: Connections | None = None,
    keys: KeyStore | None = None,
) -> Server:
    """Wire the parts for these settings. Nothing is loaded before the application starts.

    `log_requests`: `all`, `slow_and_failed` or `none`. `probe`: finds the devices; None: those of this machine.
    `grpc_listener`: already open; it answers while the application runs. `connections`: those of the HTTP listener.
    `keys`: None reads the keys file. Raises ConfigError.
    """
    observer = Observer(log_requests, loaded.settings.logging.slow_ms)
    if connections is None:
        connections = Connections(ConnectionBounds(), ByteLimit(loaded.settings.server.max_buffered_bytes))
    if keys is None:
        keys = open_keys(loaded, api_key="")
    authenticator = None if loaded.settings.auth.mode == "off" else Authenticator(keys)
    inference = _build_inference(loaded, observer, probe or SystemProbe(), connections.byte_limit)
    monitors = _build_monitors(inference, observer)
    table = _build_routes(loaded.settings)
    admin = build_admin(
        table,
        _build_routers(loaded, inference, monitors, connections, keys),
        connections.byte_limit,
        _build_lifespan(loaded.settings, inference, monitors, keys, connections.tls, grpc_listener, authenticator),
    )
    app = build_app(inference.pipeline, table, admin, _origin_rules(loaded.settings.server), authenticator)
    return Server(app, inference.pipeline.lifecycle)


def _build_inference(
    loaded: LoadedSettings, observer: Observer, probe: DeviceProbe, byte_limit: ByteLimit
) -> _Inference:
    settings = loaded.settings
    pool = TensorPool(settings.memory)
    manager = build_manager(loaded, DeviceManager(probe, settings.performance.enable_gpu), pool)
    lifecycle = ServerLifecycle(manager, tuple(slot.name for slot in manager.slots if slot.entry.load == "startup"))
    response_cache = ResponseCache(
        ResultCache(settings.cache.max_bytes, settings.cache.ttl_s), observer.cache_hits, observer.cache_misses
    )
    manager.on_unloaded(response_cache.drop)
    service = InferenceService(response_cache, observer.generation_metrics)
    shadowing = ShadowTraffic(service, observer.shadow_outcomes)
    scheduling = settings.scheduling
    requests = RequestLimit(
        "the server",
        scheduling.max_queue_size,
        scheduling.max_concurrent_requests,
        byte_limit=byte_limit,
    )
    bounds = Bounds(
        requests,
        settings.server.max_body_bytes,
        scheduling.default_timeout_ms,
        limits_by_tenant(settings.auth.tenants, byte_limit),
    )
    pipeline = Pipeline(manager, service, shadowing, observer, lifecycle, bounds)
    views = Views(partial(ManagedModelView, manager), observer)
    return _Inference(manager, pool, response_cache, requests, service, shadowing, pipeline, lifecycle, views)


def _build_monitors(inference: _Inference, observer: Observer) -> _Monitors:
    residency, shadowing = inference.manager.residency, inference.shadowing
    integrity = IntegrityMonitor(
        lambda: not observer.inflight and not shadowing.copies and residency.is_idle,
        [residency.ledger.check_integrity, residency.check_integrity, inference.pool.check_integrity],
    )
    return _Monitors(LoopLagMonitor(partial(getattr, observer, "inflight")), integrity)


def _build_routes(settings: Settings) -> RouteTable:
    infer_routes = open_inference_routes(settings.server.max_body_bytes)
    return RouteTable([*NATIVE_ROUTES, *OPENAI_ROUTES, *infer_routes, *GENERATE_ROUTES])


def _build_routers(
    loaded: LoadedSettings, inference: _Inference, monitors: _Monitors, connections: Connections, keys: KeyStore
) -> list[APIRouter]:
    """Return the routes that change or describe the server."""
    manager, pipeline, views = inference.manager, inference.pipeline, inference.views
    lifecycle = inference.lifecycle
    max_body_bytes = loaded.settings.server.max_body_bytes
    roots = tuple(loaded.resolve(root) for root in loaded.settings.models.roots)
    isolation = loaded.settings.performance.isolation
    sources = StatsSources(
        manager.devices,
        manager.residency.ledger,
        inference.requests,
        inference.response_cache,
        connections,
        keys,
        pipeline.bounds.tenants,
        ProcessParts(monitors.loop_lag, monitors.integrity, inference.pool, connections, keys).counts,
    )
    return [
        PagesApi().router(),
        ModelsApi(views, lifecycle, loaded.base_dir, roots, max_body_bytes, isolation).router(),
        OpenAiModelsApi(views).router(),
        OpenInferenceApi(Management(pipeline, lifecycle), views, max_body_bytes).router(),
        HealthApi(views, manager.devices, lifecycle).router(),
        MetricsApi(sources, views).router(),
    ]


def _origin_rules(server: ServerSettings) -> OriginRules:
    return OriginRules((server.host, socket.gethostname(), *server.allowed_hosts), server.cors_origins)


def _build_lifespan(
    settings: Settings,
    inference: _Inference,
    monitors: _Monitors,
    keys: KeyStore,
    tls: ServerTls | None,
    grpc_listener: "GrpcListener | None",
    authenticator: Authenticator | None,
) -> Lifespan:
    """Return the context that starts the parts in order, and stops them in reverse after the listeners are closed."""
    manager, pipeline = inference.manager, inference.pipeline

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(background_task(monitors.loop_lag.run()))
            await stack.enter_async_context(background_task(keys.watch()))
            if tls is not None:
                await stack.enter_async_context(background_task(tls.watch()))
            stack.callback(pipeline.close)
            # Only the ledger: an instance that was abandoned may still compute in its leases.
            stack.callback(monitors.integrity.check, manager.residency.ledger.check_integrity)
            await stack.enter_async_context(manager)
            await stack.enter_async_context(background_task(monitors.integrity.run()))
            stack.push_async_callback(inference.shadowing.close)
            await stack.enter_async_context(background_task(manager.load_registered()))
            if grpc_listener is not None:
                methods, default_model = _management_methods(inference), settings.models.default_model
                drain_timeout_s = settings.server.drain_timeout_s
                await stack.enter_async_context(
                    grpc_listener.serving(pipeline, methods, default_model, drain_timeout_s, authenticator)
                )
            log.info("devices", devices=[f"{d.id} ({d.name})" for d in manager.devices.devices()])
            yield

    return lifespan


def _management_methods(inference: _Inference) -> "dict[str, Unary]":
    """Return the methods over gRPC that are no inference. Their messages are imported only for an open port."""
    from app.grpc.management import ManagementCalls, management_methods

    calls = ManagementCalls(Management(inference.pipeline, inference.lifecycle), inference.views)
    return management_methods(calls.answer, inference.pipeline.observer)
