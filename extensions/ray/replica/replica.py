"""A replica of a model in Ray Serve: it loads the versions, and answers every ingress that connects."""

import asyncio
import contextlib
import logging
import os
import secrets
import sys
import time
from typing import Any

import ray
import structlog
from ray import serve

from extensions.ray.autoscaling import QUEUED_S
from extensions.ray.config import GroupConfig, ReplicaConfig
from extensions.ray.handshake import SECRET_BYTES, Address, server_context
from extensions.ray.replica.hosted import Hosted
from extensions.ray.replica.hosted_versions import HostedVersions
from extensions.ray.replica.listener import ReplicaListener
from frameworks.engine.threads import EngineThreads
from memory.allocator import keep_freed_memory
from memory.garbage import shorten_collections

log = structlog.get_logger(__name__)

_CHECK_S = 5.0
_SWITCH_INTERVAL_S = 0.001
_DRAIN_POLL_S = 0.05
# An ingress learns from Serve that the replica stops; until then it sends requests.
_QUIET_S = 1.0


class ModelReplica:
    """The class of the Serve deployment of one model, and of those of a group."""

    async def __init__(self, config: ReplicaConfig | GroupConfig) -> None:  # type: ignore[misc]
        """Load the versions of the config: Serve routes to the replica, and ends older ones, after that.

        Raises InvalidModel, OutOfMemory, and errors of libraries on damaged files.
        """
        _prepare_process(config)
        self._limit_s = config.engine.max_batch_seconds if isinstance(config, ReplicaConfig) else None
        self._threads = EngineThreads()
        self._versions = _hosted(config, self._threads)
        self._secret = secrets.token_hex(SECRET_BYTES)
        self._listener = ReplicaListener(self._secret, self._versions.accept)
        await self._versions.open()
        self._host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._port = await self._listener.open(self._host, server_context())
        self._checking = asyncio.get_running_loop().create_task(self._check())

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tell the routers of Serve where the replica listens."""
        context = ray.get_runtime_context()
        address = Address(context.get_actor_id() or "", context.get_node_id(), self._host, self._port, self._secret)
        return address.to_metadata()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the metric of the autoscaling policy."""
        return {QUEUED_S: self._versions.queued_s}

    def check_health(self) -> None:
        """Raise RuntimeError where the replica has to be replaced."""
        if self._versions.is_dead:
            raise RuntimeError("the threads of the model have ended")
        limit_s = self._limit_s
        if limit_s is not None and self._versions.running_s() > limit_s:
            raise RuntimeError(f"a batch runs for more than {limit_s:.1f} s (max_batch_seconds)")

    async def wake(self) -> None:
        """Do nothing: a call that waits for a replica makes Serve start one."""

    async def __del__(self) -> None:
        """Stop: answer the requests in progress, then end. Serve awaits it, and limits its time."""
        with contextlib.suppress(AttributeError):  # its load has failed
            await self._drain()
            self._checking.cancel()
            self._listener.close()
        self._versions.close()
        self._threads.close()

    async def _drain(self) -> None:
        quiet_since_s = time.monotonic()
        while time.monotonic() - quiet_since_s < _QUIET_S:
            if self._versions.num_calls:
                quiet_since_s = time.monotonic()
            await asyncio.sleep(_DRAIN_POLL_S)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            self._versions.check()


def _hosted(config: ReplicaConfig | GroupConfig, threads: EngineThreads) -> Hosted:
    if isinstance(config, ReplicaConfig):
        return HostedVersions(config, threads)
    # Of groups only: it takes the modules of the server's residency.
    from extensions.ray.replica.hosted_models import HostedModels

    return HostedModels(config, threads)


def _prepare_process(config: ReplicaConfig | GroupConfig) -> None:
    """Set what the server sets for its own process, before a framework is imported."""
    # The threads of OpenMP do not spin beside other replicas, see `frameworks.models.residency.processes`.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    keep_freed_memory()
    shorten_collections()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    context = serve.get_replica_context()
    kind = "model" if isinstance(config, ReplicaConfig) else "group"
    labels = {kind: config.name, "replica": context.replica_id.unique_id}
    labels["node"] = ray.get_runtime_context().get_node_id()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            lambda _, __, event: {**labels, **event},
            structlog.processors.JSONRenderer(default=str, skipkeys=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[config.log_level.upper()]),
        cache_logger_on_first_use=False,
    )
