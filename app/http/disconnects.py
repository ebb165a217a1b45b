"""Clients that disconnect while their requests are processed: the work for them is cancelled."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from starlette.types import Receive

from app.protocols.shared.errors import ClientGone

# A request that completes sooner is not worth a watch of its connection.
_WATCH_AFTER_S = 0.05


class WatchedConnection(Protocol):
    """A connection that tells when its client disconnects."""

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        """Call it once when the client disconnects; at once if it has."""

    def end_watch(self) -> None: ...


class WatchedRequest:
    """A request in progress. While `is_watched`, its task is cancelled if its client disconnects.

    It is in the watcher's `young` from `DisconnectWatcher.add` on. `watching`: its connection, or where that cannot
    tell, a task that waits for ASGI's message.
    """

    is_watched = False
    watching: object | None = None
    fast_path: WatchedConnection | None = None
    is_gone = False
    """Whether the client has disconnected."""

    def __init__(self, watcher: "DisconnectWatcher", receive: Receive, started_s: float) -> None:
        """`started_s`: arrival of the request (time.perf_counter)."""
        self.watcher = watcher
        self.receive = receive
        self.started_s = started_s
        self.task: asyncio.Task[Any] | None = None

    def watch(self) -> None:
        """Begin to watch the connection."""
        if self.fast_path is None:
            self.watching = asyncio.get_running_loop().create_task(_cancel_on_disconnect(self))
        else:
            # Thousands of requests that wait would have as many tasks.
            self.watching = self.fast_path
            self.fast_path.watch(self.cancel)

    def cancel(self) -> None:
        """Cancel the task, as its client has disconnected."""
        assert self.task is not None
        self.is_gone = True
        self.task.cancel()

    async def end_watch(self) -> None:
        """End `watching`. Raises ClientGone if the client has disconnected."""
        assert self.watching is not None
        assert self.task is not None
        if isinstance(self.watching, asyncio.Task):
            self.watching.cancel()
            with suppress(asyncio.CancelledError):
                await self.watching
        elif self.fast_path is not None:
            self.fast_path.end_watch()
        self.watching = None
        if self.is_gone:
            self.task.uncancel()
            raise ClientGone
        # It may be watched again: first it waited for a load, now it runs.
        self.watcher.add(self, self.task)


class DisconnectWatcher:
    """Watch each request that takes longer than _WATCH_AFTER_S.

    One timer serves all requests: a timer for each would cost more than a short request. Owned by the event loop.
    """

    def __init__(self) -> None:
        self.young: dict[WatchedRequest, None] = {}
        """Requests in progress that are not watched yet, in order of arrival."""
        self.timer: asyncio.TimerHandle | None = None

    def add(self, request: WatchedRequest, task: asyncio.Task[Any] | None = None) -> None:
        """Let a task be cancelled for this request, the current one by default. At the end, remove the request from
        `young`.
        """
        request.task = task or asyncio.current_task()
        self.young[request] = None
        if self.timer is None:
            self.start_timer()

    def start_timer(self) -> None:
        """Look at the requests in `young` in a while. Called where `timer` is None."""
        self.timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._watch_old)

    def _watch_old(self) -> None:
        self.timer = None
        if not self.young:
            return
        before_s = time.perf_counter() - _WATCH_AFTER_S
        for request in [each for each in self.young if each.is_watched and each.started_s <= before_s]:
            del self.young[request]
            request.watch()
        if self.young:
            self.start_timer()


@asynccontextmanager
async def watched(watcher: DisconnectWatcher, receive: Receive) -> AsyncIterator[None]:
    """Cancel the block if the client disconnects. Raises ClientGone."""
    request = WatchedRequest(watcher, receive, time.perf_counter())
    watcher.add(request)
    request.is_watched = True
    try:
        yield
    finally:
        request.is_watched = False
        try:
            if request.watching is not None:
                await request.end_watch()
        finally:
            watcher.young.pop(request, None)


async def _cancel_on_disconnect(request: WatchedRequest) -> None:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        request.cancel()
