"""The ingress deployment: the server with its protocols, keys and page. The models run in other replicas."""

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
import structlog
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse

from app.auth.keys import Key
from app.config import LoadedSettings
from app.observability.logs.logs import FLUSH_S, close_logs, configure_logging
from app.observability.traces.tracing import close_tracer, open_tracer
from app.server.build import Host, Server, build
from app.server.http_server import open_connections, server_tls
from app.server.keys import open_keys
from extensions.ray.checks import model_tables
from extensions.ray.ingress.group_startup import Deployed, client_name
from extensions.ray.ingress.listeners import HttpListener, open_grpc_listener
from extensions.ray.ingress.loaded_versions import LoadedVersions
from extensions.ray.ingress.starter import RayStarter
from extensions.ray.running_replicas import running_replicas
from extensions.ray.settings import ray_settings
from frameworks.core.settings.values import ReplicaRange
from memory.allocator import keep_freed_memory
from memory.garbage import shorten_collections

log = structlog.get_logger(__name__)

NAME = "Ingress"
"""Name of the deployment."""
READY_S = 60.0
"""Limit of the wait for the models before the ingress listens. After it, requests to other models are refused."""
_POLL_S = 0.05
_SWITCH_INTERVAL_S = 0.001
_RESOURCE_SHARE = 0.001
_MARGIN_S = 10.0
SUCCESSOR_S = 60.0
"""Limit of the wait for another ingress. Where the cluster has no room for two, an update waits so long."""
_STATUS_S = 0.25


@dataclass(frozen=True, slots=True)
class IngressConfig:
    """The settings of the ingress, as they travel to it. `key`: that of ROUNDHOUSE_API_KEY, without its secret."""

    loaded: LoadedSettings
    key: Key | None


class Ingress:
    """The class of the deployment. Serve calls its methods in the event loop of the replica."""

    async def __init__(  # type: ignore[misc]
        self, config: IngressConfig, models: dict[str, Any], groups: dict[str, Any]
    ) -> None:
        """Start the server, and listen when its models are ready. `models`, `groups`: the handle of each by name.

        Raises ConfigError and CannotListenError.
        """
        loaded = config.loaded
        self._settings = loaded.settings
        context = serve.get_replica_context()
        self._application = context.app_name
        labels = {"replica": context.replica_id.unique_id, "node": ray.get_runtime_context().get_node_id()}
        keep_freed_memory()
        shorten_collections()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        configure_logging(self._settings.logging.level, self._settings.logging.format, fields=labels)
        self._tracer = open_tracer(os.environ)
        tls = server_tls(loaded)
        connections = open_connections(self._settings.server, tls)
        self._grpc = open_grpc_listener(self._settings, connections)
        starter = RayStarter(_deployments(loaded, models, groups))
        host = Host(
            starter=starter,
            labels=labels,
            attach=lambda manager: starter.attach(manager.residency),
            keeps_files=False,
        )
        self._server = build(
            loaded,
            self._settings.logging.requests or "slow_and_failed",
            host,
            self._grpc,
            connections,
            open_keys(loaded, config.key or ""),
            self._tracer,
        )
        self._listener = HttpListener(self._server.app, connections, self._settings.server)
        await self._listener.start()
        await _wait_for_models(self._server)
        self._listener.listen()
        log.info("listening", host=self._settings.server.host, port=self._settings.server.port, pid=os.getpid())

    async def __call__(self, request: Request) -> JSONResponse:
        """Refuse a request that Serve's own proxy has forwarded: the ingress listens itself."""
        port = self._settings.server.port
        message = f"path: expected a request to port {port} of a node with an ingress, got one to Ray Serve's proxy"
        return JSONResponse({"error": {"code": "not_found", "message": message, "request_id": ""}}, 404)

    def check_health(self) -> None:
        """Raise RuntimeError where the replica has to be replaced."""
        if not self._listener.is_running:
            raise RuntimeError("the HTTP listener has ended")

    async def __del__(self) -> None:
        """Serve until another ingress runs, then drain. Serve awaits it, and limits its time."""
        with suppress(AttributeError):  # the start has failed
            await wait_for_successor(self._application, NAME)
            await self._listener.stop()
            timeout_s = self._settings.server.drain_timeout_s
            close_tracer(self._tracer, self._server.lifecycle.drain_left_s(timeout_s))
            log.info("stopped")
        await asyncio.to_thread(close_logs, FLUSH_S)


def ingress_deployment(
    config: IngressConfig, models: dict[str, serve.Application], groups: dict[str, serve.Application]
) -> serve.Application:
    """Return the deployment of the ingress, bound to those of the models and of their groups."""
    ray_options = ray_settings(config.loaded.settings)
    options: dict[str, Any] = {"num_cpus": ray_options.ingress_cpus}
    if ray_options.ingress_resource is not None:
        options["resources"] = {ray_options.ingress_resource: _RESOURCE_SHARE}
    deployment: Any = serve.deployment(
        name=NAME,
        num_replicas=ray_options.ingress_replicas,
        ray_actor_options=options,
        graceful_shutdown_timeout_s=stop_timeout_s(config.loaded),
        graceful_shutdown_wait_loop_s=_POLL_S,
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
    )
    application: serve.Application = deployment(Ingress).bind(config, models, groups)
    return application


def stop_timeout_s(loaded: LoadedSettings) -> float:
    """Return the limit of the stop of an ingress: for its successor, for connections and for the models."""
    return SUCCESSOR_S + 2 * loaded.settings.server.drain_timeout_s + _MARGIN_S


def _deployments(loaded: LoadedSettings, models: dict[str, Any], groups: dict[str, Any]) -> dict[str, Deployed]:
    """Return the deployment of each model by its name."""
    ray_groups = {each.name: each for each in ray_settings(loaded.settings).groups}
    shared = {
        name: deployed(handle, may_be_empty=_may_be_empty(ray_groups[name].replicas), is_shared=True)
        for name, handle in groups.items()
    }
    found = {}
    for entry in (entry for entries in model_tables(loaded).values() for entry in entries):
        if entry.replica_group is not None:
            found[entry.name] = shared[entry.replica_group]
        else:
            found[entry.name] = deployed(models[entry.name], may_be_empty=_may_be_empty(entry.replicas))
    return found


def deployed(handle: DeploymentHandle[Any], may_be_empty: bool = False, is_shared: bool = False) -> Deployed:
    """Return the deployment behind a handle, for the engines in this process. `may_be_empty`: it scales to zero.

    `is_shared`: models share its replicas, which this process follows from now on. Call it in the event loop then.
    """
    # Starts the router of the handle, which publishes the running replicas.
    waking = handle.options(method_name="wake")

    async def wake() -> None:
        await waking.remote()

    key = handle.deployment_id
    node = ray.get_runtime_context().get_node_id()
    running = running_replicas(key.app_name, key.name)
    loaded_versions = None
    if is_shared:
        loaded_versions = LoadedVersions(running, client_name())
        loaded_versions.open()
    return Deployed(running, wake, node, may_be_empty, loaded_versions)


def _may_be_empty(replicas: int | ReplicaRange | None) -> bool:
    return isinstance(replicas, ReplicaRange) and replicas.min == 0


async def _wait_for_models(server: Server) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            while server.lifecycle.is_starting:  # noqa: ASYNC110 - once
                await asyncio.sleep(_POLL_S)


async def wait_for_successor(application: str, deployment: str) -> None:
    """Wait until another replica of the deployment runs, or until its application is being deleted.

    So an update leaves no time without an ingress.
    """
    try:
        async with asyncio.timeout(SUCCESSOR_S):
            while not has_successor(await asyncio.to_thread(serve.status), application, deployment):  # noqa: ASYNC110
                await asyncio.sleep(_STATUS_S)
    except TimeoutError:
        log.warning("no other ingress runs; the update leaves a gap", waited_s=SUCCESSOR_S)
    except Exception:
        # Serve itself is being shut down.
        log.info("stops without another ingress", exc_info=True)


def has_successor(status: Any, application: str, deployment: str) -> bool:
    """Whether a replica that stops need not wait. `status`: of `serve.status()`."""
    found = status.applications.get(application)
    if found is None or found.status == "DELETING" or deployment not in found.deployments:
        return True
    return int(found.deployments[deployment].replica_states.get("RUNNING", 0)) > 0
