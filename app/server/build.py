"""build(settings): wires every part, and says in which order they start and stop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI

from app.admin.health import HealthApi
from app.admin.metrics import MetricsApi, StatsSources
from app.admin.models import ModelsApi
from app.admin.open_inference.management import Management
from app.admin.open_inference.routes import OpenInferenceApi
from app.admin.openai_models import OpenAiModelsApi
from app.admin.pages import PagesApi
from app.config import LoadedSettings
from app.http.app import HttpApp, build_app
from app.http.endpoint import Endpoint
from app.inference.lifecycle import Lifecycle
from app.inference.pipeline import Bounds, Pipeline
from app.inference.response_cache import ResponseCache
from app.inference.service import InferenceService
from app.inference.shadowing import ShadowTraffic
from app.observability.integrity_watch import IntegrityWatch
from app.observability.loop_watch import LoopWatch
from app.observability.metrics import Observer
from app.protocols.native.codec import ROUTES as NATIVE_ROUTES
from app.protocols.open_inference.generate_codec import ROUTES as GENERATE_ROUTES
from app.protocols.open_inference.infer_codec import routes as open_inference_routes
from app.protocols.openai.routes import ROUTES as OPENAI_ROUTES
from app.protocols.routes import RouteTable
from frameworks.devices import DeviceManager, DeviceProbe, SystemProbe
from frameworks.manager import MLFrameworkManager
from frameworks.quantization.copies import QuantizedCopies
from frameworks.runtime import Registry
from frameworks.scheduling.admission import RequestLimit
from memory.pooled_arrays import PooledArrays
from memory.result_cache import ResultCache
from memory.tensor_pool import TensorPool

if TYPE_CHECKING:
    from app.grpc.listener import GrpcListener

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Server:
    """The application, and the switch that makes it drain."""

    app: HttpApp
    lifecycle: Lifecycle


def build(
    loaded: LoadedSettings,
    log_requests: str,
    probe: DeviceProbe | None = None,
    grpc_listener: "GrpcListener | None" = None,
) -> Server:
    """Wires the parts for these settings; nothing is loaded before the application starts.

    `log_requests`: `all`, `slow_and_failed` or `none`. `probe`: which devices there are; this machine's by default.
    `grpc_listener`: opened, and answering while the application runs.
    """
    settings = loaded.settings
    devices = DeviceManager(probe or SystemProbe(), settings.performance.enable_gpu)
    pool = TensorPool(settings.memory)
    manager = _manager(loaded, devices, pool)
    lifecycle = Lifecycle(manager, tuple(slot.name for slot in manager.slots if slot.entry.load == "startup"))
    observer = Observer(log_requests, settings.logging.slow_ms)
    response_cache = ResponseCache(
        ResultCache(settings.cache.max_bytes, settings.cache.ttl_s), observer.cache_hits, observer.cache_misses
    )
    manager.on_unloaded(response_cache.drop)
    loop_watch = LoopWatch(lambda: observer.inflight > 0)
    service = InferenceService(response_cache, observer.generation)
    shadowing = ShadowTraffic(service, observer.shadow_outcomes)
    integrity = IntegrityWatch(
        lambda: not observer.inflight and not shadowing.copies and manager.residency.is_idle,
        [manager.residency.ledger.check_integrity, manager.residency.check_integrity, pool.check_integrity],
    )
    scheduling = settings.scheduling
    requests = RequestLimit("the server", scheduling.max_queue_size, scheduling.max_concurrent_requests)
    pipeline = Pipeline(
        manager,
        service,
        shadowing,
        observer,
        lifecycle,
        Bounds(requests, settings.server.max_body_bytes, scheduling.default_timeout_ms),
    )
    models = ModelsApi(
        manager,
        observer,
        lifecycle,
        loaded.base_dir,
        tuple(loaded.resolve(root) for root in settings.models.roots),
        settings.server.max_body_bytes,
    )
    routers = [
        PagesApi().router(),
        models.router(),
        OpenAiModelsApi(manager).router(),
        OpenInferenceApi(Management(pipeline), settings.server.max_body_bytes).router(),
        HealthApi(manager, observer, lifecycle).router(),
        MetricsApi(StatsSources(manager, requests, observer, response_cache, loop_watch, integrity, pool)).router(),
    ]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Stops in the reverse of this order; the doors are closed by then.
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running_beside(loop_watch.watch()))
            stack.callback(service.close)
            stack.callback(pipeline.close)
            # The ledger only: an instance that was given up may compute on, in what it has leased.
            stack.callback(integrity.look_at, manager.residency.ledger.check_integrity)
            await stack.enter_async_context(manager)
            await stack.enter_async_context(running_beside(integrity.watch()))
            stack.push_async_callback(shadowing.close)
            await stack.enter_async_context(running_beside(manager.load_registered()))
            if grpc_listener is not None:
                serving = grpc_listener.serving(
                    pipeline, settings.models.default_model, settings.server.drain_timeout_s
                )
                await stack.enter_async_context(serving)
            log.info("devices", devices=[f"{d.id} ({d.name})" for d in devices.devices()])
            yield

    infer_routes = open_inference_routes(settings.server.max_body_bytes)
    table = RouteTable([*NATIVE_ROUTES, *OPENAI_ROUTES, *infer_routes, *GENERATE_ROUTES])
    return Server(build_app(table, Endpoint(pipeline), routers, observer, lifespan), lifecycle)


def _manager(loaded: LoadedSettings, devices: DeviceManager, pool: TensorPool) -> MLFrameworkManager:
    """With every model of the settings registered."""
    settings = loaded.settings
    manager = MLFrameworkManager(
        _registries(loaded, devices, pool),
        devices,
        settings.performance,
        settings.scheduling,
        settings.server.drain_timeout_s,
        settings.memory.max_model_memory,
        arrays=PooledArrays(pool),
    )
    for framework, entries in (("onnx", settings.models.onnx_models), ("pytorch", settings.models.torch_models)):
        for entry in entries:
            manager.register(framework, entry, loaded.resolve(entry.path))
    return manager


def _registries(loaded: LoadedSettings, devices: DeviceManager, pool: TensorPool) -> dict[str, Callable[[], Registry]]:
    """How to make each framework's registry. Imported when its first model is loaded: a server of ONNX models alone
    never imports torch or transformers, one of PyTorch models alone never onnxruntime.
    """
    settings = loaded.settings
    enable_memory_mapping = settings.memory.enable_memory_mapping
    copies = QuantizedCopies(loaded.resolve(settings.models.cache_dir))

    def onnx() -> Registry:
        from frameworks.onnx.registry import OnnxRegistry

        return OnnxRegistry(
            devices,
            settings.performance,
            settings.models.max_model_size,
            copies,
            enable_memory_mapping,
            PooledArrays(pool),
        )

    def pytorch() -> Registry:
        from frameworks.pytorch.registry import TorchRegistry

        return TorchRegistry(
            settings.performance,
            settings.models.max_model_size,
            copies,
            enable_memory_mapping,
            pool,
            settings.scheduling.ageing_ms / 1000,
        )

    return {"onnx": onnx, "pytorch": pytorch}


@asynccontextmanager
async def running_beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Runs a coroutine beside the block, and ends it with the block."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
