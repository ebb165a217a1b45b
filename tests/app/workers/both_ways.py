"""Serve one application twice over real sockets: as a single server does, and as a worker that asks a supervisor."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from app.auth.authenticator import Authenticator
from app.auth.key_store import KeyStore
from app.config import AuthSettings, LoadedSettings
from app.config.loading import load_settings
from app.http.app import build_app
from app.http.endpoint import Endpoint
from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.listener.protocol import BoundedHttpProtocol
from app.inference.pipeline import Pipeline
from app.server.build import Host, build, build_routes
from app.server.http_server import origin_rules
from app.server.keys import open_keys
from app.workers.forwarding import AdminServer, ForwardedAdmin
from app.workers.messages import messages_from_worker, messages_to_worker
from frameworks.models.replicas.control import ControlLink
from frameworks.scheduling.byte_limit import ByteLimit
from tests.support.control_links import open_both
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S

KEYS_FILE = "keys.toml"
"""Where the keys of a server lie, in the folder of its config."""


@dataclass(frozen=True, slots=True)
class Links:
    """The two ends of a worker's connection to its supervisor, not open yet."""

    supervisor: ControlLink
    worker: ControlLink

    def close(self) -> None:
        self.worker.close()
        self.supervisor.close()


def make_links(number: int = 0) -> Links:
    """Return the ends of a worker with this number."""
    return Links(ControlLink(number, messages_from_worker()), ControlLink(number, messages_to_worker()))


@dataclass(frozen=True, slots=True)
class BothWays:
    """Clients of the single server and of the worker, whose requests are answered by the same models."""

    direct: httpx.AsyncClient
    forwarded: httpx.AsyncClient
    pipeline: Pipeline
    admin: FastAPI
    links: Links


@asynccontextmanager
async def both_ways(folder: Path, config: str, applied: Callable[[], Awaitable[object]]) -> AsyncIterator[BothWays]:
    """Start the server of a config in this process. `applied`: awaited before each forwarded answer."""
    file = folder / "config.toml"
    file.write_text(config, encoding="utf-8")
    loaded = load_settings(file, {})
    keys = open_keys(loaded, api_key="")
    endpoint = build(loaded, "all", Host(FakeProbe()), keys=keys).app
    admin: Any = endpoint._admin
    links = make_links()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(admin._app.lifespan())
        served = await stack.enter_async_context(AdminServer(admin._app, build_routes().access, applied))
        served.serve(links.supervisor)
        worker = worker_endpoint(loaded, endpoint._pipeline, links.worker, keys)
        await open_both(links.supervisor, links.worker)
        stack.callback(links.close)
        direct, forwarded = [await stack.enter_async_context(client_of(app)) for app in (endpoint, worker)]
        yield BothWays(direct, forwarded, endpoint._pipeline, admin._app, links)


def worker_endpoint(loaded: LoadedSettings, pipeline: Pipeline, link: ControlLink, keys: KeyStore) -> Endpoint:
    """Return the application of a worker that runs requests in `pipeline`."""
    authenticator = None if loaded.settings.auth.mode == "off" else Authenticator(keys)
    table = build_routes()
    admin = ForwardedAdmin(link, ByteLimit(None), table.access, no_lifespan)
    return build_app(pipeline, table, admin, origin_rules(loaded.settings.server), authenticator)


@asynccontextmanager
async def forwarding_to(
    served: AdminServer, folder: Path, bounds: ConnectionBounds | None = None
) -> AsyncIterator[tuple[Links, str]]:
    """Yield the links of a worker without models, and its URL; `served` answers what is no inference."""
    loaded = load_settings(None, {})
    keys = KeyStore(folder / KEYS_FILE, AuthSettings(mode="off"))
    pipeline = build(loaded, "all", Host(FakeProbe()), keys=keys).app._pipeline
    links = make_links()
    served.serve(links.supervisor)
    worker = worker_endpoint(loaded, pipeline, links.worker, keys)
    await open_both(links.supervisor, links.worker)
    try:
        async with listening(worker, bounds) as url:
            yield links, url
    finally:
        links.close()


@asynccontextmanager
async def no_lifespan() -> AsyncIterator[None]:
    """Start nothing."""
    yield


@asynccontextmanager
async def listening(app: ASGIApp, bounds: ConnectionBounds | None = None) -> AsyncIterator[str]:
    """Serve an application with the protocol class of the server; yield its URL."""
    http: Any = type("Http", (BoundedHttpProtocol,), {"limits": Connections(bounds or ConnectionBounds())})
    config = uvicorn.Config(app, interface="asgi3", lifespan="off", proxy_headers=False, log_config=None)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: http(config, state, {}), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for connection in list(state.connections):
            connection.shutdown()
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def client_of(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an application that is served over a socket."""
    async with listening(app) as url, httpx.AsyncClient(base_url=url, timeout=HANGS_AFTER_S, trust_env=False) as client:
        yield client
