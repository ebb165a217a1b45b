"""Join a Ray cluster, or start one on this machine for the time of a run."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from app.extension import extensions
from extensions.offline.contract import RunFailed, WrongCommand
from extensions.offline.ray.placement import Node
from memory.host import host_memory

# Blocks of rows on the way to a worker, and of results on the way back. More go to the disk.
_OBJECT_STORE_BYTES = 1024**3
_OBJECT_STORE_SHARE = 0.1


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Join the cluster at `address` for the time of the block; "": that of RAY_ADDRESS, else start one.

    Must run in the main thread, as Ray sets signal handlers. Raises WrongCommand, RunFailed.
    """
    if "://" in address or "://" in os.environ.get("RAY_ADDRESS", ""):
        raise WrongCommand(
            "--ray: expected HOST:PORT or auto, got the address of a Ray client; run the command on a node of the "
            "cluster, for example with ray job submit"
        )
    connect = next((each.connect_to_cluster for each in extensions() if each.connect_to_cluster is not None), None)
    if connect is None:
        raise WrongCommand("--ray: expected an installation with extensions/ray, got none; run without --ray")
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        connect("--ray", "this machine" if where == "local" else where, **_options(where))
    except ConnectionError as error:
        raise RunFailed(str(error)) from error
    _quieten()
    try:
        yield
    finally:
        ray.shutdown()


def _options(address: str) -> dict[str, Any]:
    common = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    # Each pool of Ray Data logs an error of its own kind on standard error.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if address != "local":
        return common
    # A run sends nothing to anyone.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    store_bytes = min(_OBJECT_STORE_BYTES, int(host_memory()[0] * _OBJECT_STORE_SHARE))
    return {**common, "include_dashboard": False, "object_store_memory": store_bytes}


def _quieten() -> None:
    """Leave the terminal to the progress of the run. Ray Data logs to the folder of its session."""
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    # Each window is a block of its own. Small ones would be joined, and run by one worker.
    context.target_max_block_size = 1
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.CRITICAL + 1)


def alive_nodes() -> list[Node]:
    """Return the resources of the nodes of the cluster."""
    nodes = []
    for each in ray.nodes():  # type: ignore[no-untyped-call]
        if each["Alive"]:
            resources = each["Resources"]
            nodes.append(Node(resources.get("CPU", 0.0), resources.get("memory", 0.0), resources.get("GPU", 0.0)))
    return nodes
