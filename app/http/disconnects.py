"""Clients that disconnect while their requests are processed: the work for them is cancelled."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.types import Receive

from app.observability.metrics import RequestRecord
from app.protocols.shared.errors import ClientGone

# A request that completes sooner is not worth a task that watches its connection.
_WATCH_AFTER_S = 0.05


class WatchedRequest:
    """A request in progress. It is cancelled if its client disconnects between `watch` and `unwatch`."""

    __slots__ = ("_watcher", "is_gone", "receive", "record", "task", "watching")

    def __init__(self, watcher: "DisconnectWatcher", receive: Receive, record: RequestRecord) -> None:
        self._watcher = watcher
        self.receive = receive
        self.record = record
        self.task: asyncio.Task[Any] | None = None
        self.watching: asyncio.Task[None] | None = None
        self.is_gone = False
        """Whether the client has disconnected."""

    def watch(self) -> None:
        """From now on the current task is cancelled if the client disconnects. `unwatch` must follow."""
        self.task = asyncio.current_task()
        watcher = self._watcher
        watcher.young[self] = None
        if watcher.timer is None:
            watcher.start_timer()

    def unwatch(self) -> Awaitable[None] | None:
        """End `watch`. Awaiting the result raises ClientGone if the client has disconnected; None: it was not watched
        yet.
        """
        if self.watching is None:
            del self._watcher.young[self]
            return None
        return self._end()

    async def _end(self) -> None:
        assert self.watching is not None
        assert self.task is not None
        self.watching.cancel()
        with suppress(asyncio.CancelledError):
            await self.watching
        self.watching = None
        if self.is_gone:
            self.task.uncancel()
            raise ClientGone


class DisconnectWatcher:
    """Start a watching task for each request that takes longer than _WATCH_AFTER_S.

    One timer serves all requests: a timer and a task for each would cost more than a short request. Owned by the event
    loop.
    """

    def __init__(self) -> None:
        self.young: dict[WatchedRequest, None] = {}
        """Requests in progress that have no watching task yet, in order of arrival."""
        self.timer: asyncio.TimerHandle | None = None

    def start_timer(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._watch_old)

    def _watch_old(self) -> None:
        loop = asyncio.get_running_loop()
        before_s = time.perf_counter() - _WATCH_AFTER_S
        for request in [request for request in self.young if request.record.started_s <= before_s]:
            del self.young[request]
            request.watching = loop.create_task(_cancel_on_disconnect(request))
        self.timer = None
        if self.young:
            self.start_timer()


@asynccontextmanager
async def watched(request: WatchedRequest) -> AsyncIterator[None]:
    """Cancel the block if the client disconnects. Raises ClientGone."""
    request.watch()
    try:
        yield
    finally:
        disconnected = request.unwatch()
        if disconnected is not None:
            await disconnected


async def _cancel_on_disconnect(request: WatchedRequest) -> None:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        request.is_gone = True
        assert request.task is not None
        request.task.cancel()
