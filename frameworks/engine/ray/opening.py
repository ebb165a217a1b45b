"""Open the engine of a version: wait for the first replica that has loaded it."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.process.link import Started
from frameworks.engine.ray.connections import REPLACED_S, Connections, Seat, Version
from frameworks.engine.ray.group import RETRY_AFTER_S, ReplicaGroup
from frameworks.engine.ray.running import RunningReplicas
from frameworks.errors import InvalidModel, ModelFailed, OutOfMemory

COLD_START_S = 600.0
"""Limit of the wait for the first replica: a node may have to be started, and a model fetched."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """A Serve deployment of a model, as an ingress sees it.

    `wake`: makes Serve start a replica where none runs, and waits for it. `node`: id of the node of this process.
    """

    running: RunningReplicas
    wake: Callable[[], Awaitable[Any]]
    node: str
    may_be_empty: bool = False
    cold_start_s: float = COLD_START_S
    replaced_s: float = REPLACED_S


async def open_group(
    deployed: Deployed, settings: EngineSettings, counts: RunCounts, name: str, path: str, instances: int
) -> tuple[ReplicaGroup, Started]:
    """Return the engine of a version, and the description of its first replica.

    `name`, `path`: of the version. Raises InvalidModel and OutOfMemory of a replica that cannot load it, and
    ModelFailed where no replica has started in time.
    """
    version = Version(name, path, f"{socket.gethostname()}:{os.getpid()}", deployed.node)
    connections = Connections(settings, counts, version, deployed.running, deployed.replaced_s)
    first: asyncio.Future[Seat] = asyncio.get_running_loop().create_future()
    early: list[Seat] = []

    def note_open(seat: Seat) -> None:
        early.append(seat)
        if not first.done():
            first.set_result(seat)

    def note_left(seat: Seat) -> None:
        early.remove(seat)
        seat.engine.abort("the replica stopped")

    def note_failed(error: Exception) -> None:
        if isinstance(error, InvalidModel | OutOfMemory) and not first.done():
            first.set_exception(error)

    connections.on_open, connections.on_left, connections.on_failed = note_open, note_left, note_failed
    connections.open()
    waking = asyncio.ensure_future(deployed.wake())
    try:
        async with asyncio.timeout(deployed.cold_start_s):
            seat = await first
        if not early:
            raise ModelFailed("the replica stopped while its model was loaded; try again", 1.0)
    except TimeoutError:
        _close(connections, early)
        limit_s = f"{deployed.cold_start_s:.0f} s"
        raise ModelFailed(
            f'model "{settings.name}": no replica has started within {limit_s}; try again later', RETRY_AFTER_S
        ) from None
    except BaseException:
        _close(connections, early)
        raise
    finally:
        waking.cancel()
        await asyncio.gather(waking, return_exceptions=True)
    seat = early[0]
    assert seat.engine.started is not None, "an open seat has started"
    group = ReplicaGroup(
        settings, connections, seat, instances, deployed.wake, deployed.cold_start_s, deployed.may_be_empty
    )
    for each in early[1:]:
        connections.on_open(each)
    return group, seat.engine.started


def _close(connections: Connections, early: list[Seat]) -> None:
    connections.close()
    for seat in early:
        seat.engine.abort("the model was not loaded")
