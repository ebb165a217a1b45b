"""Let all requests that wait for one load share it, and end it when none of them waits any more."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from frameworks.core.errors import Draining
from frameworks.replicas.version import ReplicaVersion


class _SharedLoad:
    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.waiting = 0


class SharedLoads:
    """Owned by the event loop."""

    def __init__(self, load: Callable[[ReplicaVersion], Awaitable[None]]) -> None:
        """`load(version)`: called once for all requests that wait at the same time, and cancelled with the last one."""
        self._load = load
        self._loads: dict[ReplicaVersion, _SharedLoad] = {}

    def __len__(self) -> int:
        return len(self._loads)

    async def join(self, version: ReplicaVersion) -> None:
        """Wait for the load of a version. Raises its errors, and Draining after `close`."""
        load = self._loads.get(version)
        # A load that is done is forgotten at the end of the round: the request needs another one.
        if load is None or load.task.done():
            task = asyncio.get_running_loop().create_task(self._run(version))
            load = self._loads[version] = _SharedLoad(task)
            task.add_done_callback(partial(self._end, version, load))
        load.waiting += 1
        try:
            await asyncio.shield(load.task)
        except asyncio.CancelledError:
            if load.task.cancelled():
                raise Draining(Draining.UNANSWERED) from None
            raise
        finally:
            load.waiting -= 1
            if not load.waiting and not load.task.done():
                # At once: a request that arrives now needs a load of its own.
                self._forget(version, load)
                load.task.cancel()

    def close(self) -> None:
        """Cancel all loads."""
        for load in self._loads.values():
            load.task.cancel()

    async def _run(self, version: ReplicaVersion) -> None:
        await self._load(version)

    def _end(self, version: ReplicaVersion, load: _SharedLoad, task: asyncio.Task[None]) -> None:
        self._forget(version, load)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: all requests may be cancelled

    def _forget(self, version: ReplicaVersion, load: _SharedLoad) -> None:
        if self._loads.get(version) is load:
            del self._loads[version]
