"""The routes that change or describe the server: FastAPI's, with all that they show."""

from functools import partial

from fastapi import APIRouter

from app.admin.extension_part import ServerParts
from app.admin.health import HealthApi
from app.admin.metrics.api import MetricsApi, StatsSources
from app.admin.models.adapters import AdaptersApi
from app.admin.models.allowed_paths import AllowedPaths
from app.admin.models.api import ModelsApi
from app.admin.models.folders import FoldersApi
from app.admin.monitoring.events_api import EventsApi
from app.admin.monitoring.file_sending import ModelFileSender
from app.admin.monitoring.files_api import ModelFilesApi
from app.admin.open_inference.management import Management
from app.admin.open_inference.routes import OpenInferenceApi
from app.admin.openai_models import OpenAiModelsApi
from app.admin.pages import PagesApi
from app.auth.key_store import KeyStore
from app.config import LoadedSettings
from app.http.listener.clocks import Connections
from app.server.manager import source_folder, source_framework
from app.server.monitoring import Live
from app.server.parts import Counting, Inference


def build_routers(
    loaded: LoadedSettings,
    inference: Inference,
    counting: Counting,
    connections: Connections,
    keys: KeyStore,
    live: Live,
) -> list[APIRouter]:
    """Return the routes that change or describe the server."""
    manager, pipeline, views = inference.manager, inference.pipeline, counting.views
    lifecycle = inference.lifecycle
    max_body_bytes = loaded.settings.server.max_body_bytes
    models = loaded.settings.models
    paths = AllowedPaths(
        loaded.base_dir, tuple(map(loaded.resolve, models.roots)), models.sources, partial(source_folder, loaded)
    )
    isolation = loaded.settings.performance.isolation
    sources = StatsSources(
        manager.devices,
        manager.residency.ledger,
        inference.requests,
        inference.response_cache,
        connections,
        keys,
        pipeline.bounds.tenants,
        counting.process_counts,
        counting.workers,
        counting.labels,
        [part.families for part in inference.parts],
    )
    server = ServerParts(loaded.settings, views, lifecycle)
    return [
        PagesApi().router(),
        ModelsApi(views, lifecycle, paths, max_body_bytes, partial(source_framework, loaded), isolation).router(),
        FoldersApi(views, paths).router(),
        AdaptersApi(views, lifecycle, paths, max_body_bytes).router(),
        OpenAiModelsApi(views).router(),
        OpenInferenceApi(Management(pipeline, lifecycle), views, max_body_bytes).router(),
        HealthApi(views, manager.devices, lifecycle, counting.memory_bytes, inference.parts, connections).router(),
        MetricsApi(sources, views).router(),
        *(router for part in inference.parts for router in part.routers(server)),
        EventsApi(live.viewers, live.requests).router(),
        ModelFilesApi(ModelFileSender(manager)).router(),
    ]
