"""Wire the parts that show the running server: samples, streams of events, finished requests, files of models."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from app.admin.monitoring.event_subscribers import ServerFacts, Viewers
from app.admin.monitoring.file_sending import ModelFileSender, file_of
from app.admin.monitoring.request_log import OwnRequests, RequestLog
from app.admin.monitoring.sampling import LiveFeed, LiveSources
from app.admin.views import Views
from app.auth.key_store import KeyStore
from app.inference.lifecycle import ServerLifecycle
from app.inference.pipeline import Pipeline
from app.observability.process_use import ProcessMeter
from app.observability.tallies import RequestTallies
from app.workers.event_relay import FeedServer, MergedRequests
from frameworks.core.devices import DeviceManager
from frameworks.models.replicas.control import Workers
from frameworks.models.residency.ledger import MemoryLedger
from frameworks.models.versions.contract import ServedModels


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts that are shown. `tallies`: of all processes."""

    views: Views
    tallies: RequestTallies
    models: ServedModels
    devices: DeviceManager
    ledger: MemoryLedger
    lifecycle: ServerLifecycle


@dataclass(frozen=True, slots=True)
class Live:
    """The parts in the process of the models. `feed` runs while the server does."""

    feed: LiveFeed
    viewers: Viewers
    requests: RequestLog


def build_live(
    shown: Shown, pipeline: Pipeline, keys: KeyStore, labels: Mapping[str, str], workers: Workers | None = None
) -> Live:
    """Return the parts. `workers`: those of a supervisor, none connected yet; None: this process answers requests."""
    requests: RequestLog = OwnRequests(pipeline.observer.recent) if workers is None else MergedRequests(workers)
    processes = ProcessMeter() if workers is None else ProcessMeter(workers.process_ids)
    sources = LiveSources(shown.views, shown.tallies, requests, shown.devices, shown.ledger, shown.lifecycle, processes)
    feed = LiveFeed(sources)
    if workers is not None:
        FeedServer(feed, workers)
    # In a supervisor its routes are described, and answered by the workers.
    viewers = Viewers(feed, keys, shown.lifecycle, ServerFacts(labels=labels))
    return Live(feed, viewers, requests)


class WorkerRoutes:
    """The ASGI application of a worker before the one that forwards: it answers long and endless requests itself."""

    def __init__(self, viewers: Viewers, files: ModelFileSender, forwarded: ASGIApp) -> None:
        self._viewers = viewers
        self._files = files
        self._forwarded = forwarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that the endpoint has authenticated. Raises the errors of the parts."""
        if scope["type"] == "http" and scope["method"] == "GET":
            if scope["path"] == "/events":
                await self._viewers.stream(scope, receive, send)
                return
            named = file_of(scope["path"])
            if named is not None:
                await self._files.send(*named, scope, receive, send)
                return
        await self._forwarded(scope, receive, send)
