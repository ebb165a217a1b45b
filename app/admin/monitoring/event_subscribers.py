"""Publish the server's events to subscribed pages: each view is encoded once, and a slow reader is dropped."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from app import server_version
from app.admin.monitoring.event_encoding import event
from app.admin.monitoring.sample_ring import HISTORY_S, INTERVAL_S
from app.admin.monitoring.sampling import Feeds
from app.admin.monitoring.visibility import ViewKey, view_key
from app.auth.client_certificates import CERTIFICATE_KEY_ID
from app.auth.key_store import KeyStore
from app.auth.principal import ANONYMOUS, Principal
from app.inference.lifecycle import Lifecycle
from app.observability.metrics import RequestRecord
from frameworks.core.errors import Overloaded

MOST_VIEWERS = 128
"""Open streams of a process."""
MOST_OF_TENANT = 64
_RETRY_AFTER_S = 5.0
_MOST_UNREAD = 64
_MOST_UNREAD_BYTES = 4 * 1024**2
_BEAT_S = 10.0
_LAST_EVENT_S = 2.0

_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-store"),
        # A proxy that collects parts of a response would hold events back.
        (b"x-accel-buffering", b"no"),
    ],
}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server, as a page shows it. `labels`: as those of its metrics."""

    num_workers: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    started_s: float = field(default_factory=time.time)


class Viewer:
    """One open stream: the events that it has not sent yet. Owned by the event loop."""

    def __init__(self, principal: Principal, abort: Callable[[], object]) -> None:
        """`abort`: closes the connection with all that its reader has not taken."""
        self.principal = principal
        self._abort = abort
        self.is_over = False
        """Whether it is to end: its reader is too slow or gone, or `end` was called."""
        self.is_dropped = False
        self.was_idle = False
        """Whether nothing was added since the last beat."""
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._after: int | None = None
        self._early: deque[tuple[int, bytes]] = deque(maxlen=_MOST_UNREAD)
        self._news = asyncio.Event()

    def start(self, number: int, content: bytes) -> None:
        """Send the first events, and then those with greater numbers."""
        self._after = number
        self._put(content)
        for each in self._early:
            self.add(*each)
        self._early.clear()

    def add(self, number: int, content: bytes) -> None:
        """Send further events. A viewer that is too far behind is dropped, so that its memory is bounded."""
        if self._after is None:
            self._early.append((number, content))
        elif number > self._after:
            self._put(content)

    def end(self, last: bytes = b"") -> None:
        """Send the last events, and end the stream."""
        if not self.is_over:
            self._put(last)
            self.is_over = True

    def drop(self) -> None:
        """End the stream without anything further."""
        self.is_over = self.is_dropped = True
        self._unread.clear()
        self._news.set()
        self._abort()

    def beat(self) -> None:
        """Send a comment if nothing else was sent since the last call."""
        if self.was_idle and not self._unread:
            self._put(b": \n\n")
        self.was_idle = True

    async def take(self) -> bytes:
        """Return all events that are to be sent, as soon as there are any; b"" at the end."""
        while not self._unread and not self.is_over:
            self._news.clear()
            await self._news.wait()
        content = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        return content

    def _put(self, content: bytes) -> None:
        if self.is_over:
            return
        self._unread.append(content)
        self._unread_bytes += len(content)
        self.was_idle = False
        if len(self._unread) > _MOST_UNREAD or self._unread_bytes > _MOST_UNREAD_BYTES:
            self.drop()
        self._news.set()


class ViewerGroup:
    """The viewers of one view, which is a FeedReader. Owned by the event loop."""

    def __init__(self, principal: Principal, keys: KeyStore) -> None:
        self.principal = principal
        self.viewers: set[Viewer] = set()
        self._keys = keys

    def deliver(self, number: int, content: bytes) -> None:
        """As FeedReader.deliver. Ends the streams whose keys are not valid any more."""
        for viewer in self.viewers:
            if self.check(viewer):
                viewer.add(number, content)

    def check(self, viewer: Viewer) -> bool:
        """Return whether the key of a viewer is still valid; else its stream ends."""
        if _is_valid(self._keys, viewer.principal):
            return True
        viewer.end(event("end", {"reason": "key"}))
        return False


class Viewers:
    """All open streams of this process. Owned by the event loop."""

    def __init__(self, feeds: Feeds, keys: KeyStore, lifecycle: Lifecycle, facts: ServerFacts) -> None:
        self._feeds = feeds
        self._keys = keys
        self._lifecycle = lifecycle
        self._facts = facts
        self._groups: dict[ViewKey, ViewerGroup] = {}
        self._beating: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        lifecycle.on_drain(self._drain_soon)

    @property
    def count(self) -> int:
        """The number of open streams."""
        return sum(len(group.viewers) for group in self._groups.values())

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with events until its client disconnects, its key is no longer valid, or the server drains.

        Raises Overloaded beyond the number of streams, Draining.
        """
        record: RequestRecord = scope["record"]
        principal = record.principal
        self._lifecycle.check_accepting()
        self._check_room(principal)
        if record.method == "HEAD":
            await _send_head(send)
            return
        self._loop = asyncio.get_running_loop()
        viewer, group = Viewer(principal, record.abort), self._group(principal)
        group.viewers.add(viewer)
        watching = asyncio.create_task(_watch(receive, viewer))
        try:
            opened = await self._feeds.open(group)
            viewer.start(opened.number, self._hello(principal) + opened.content)
            if self._beating is None:
                self._start_beat()
            await send(_START)
            await _send_all(viewer, send)
        except OSError:
            viewer.drop()  # the client has disconnected
        finally:
            watching.cancel()
            group.viewers.discard(viewer)
            if not group.viewers and self._groups.get(view_key(principal)) is group:
                del self._groups[view_key(principal)]
                self._feeds.close(group)
            with suppress(asyncio.CancelledError):
                await watching

    def _check_room(self, principal: Principal) -> None:
        own = sum(len(group.viewers) for group in self._groups.values() if group.principal.tenant is principal.tenant)
        for number, most, whose in ((own, MOST_OF_TENANT, "a tenant"), (self.count, MOST_VIEWERS, "the server")):
            if number >= most:
                raise Overloaded(
                    f"events: expected at most {most} open streams of {whose}, got one more; close a page",
                    _RETRY_AFTER_S,
                )

    def _group(self, principal: Principal) -> ViewerGroup:
        key = view_key(principal)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ViewerGroup(principal, self._keys)
        return group

    def _hello(self, principal: Principal) -> bytes:
        facts = self._facts
        content: dict[str, Any] = {
            "server": {
                "name": "roundhouse",
                "version": server_version(),
                "started_s": round(facts.started_s, 3),
                "workers": facts.num_workers,
                "labels": dict(facts.labels),
            },
            "auth": self._keys.required,
            "caller": {
                "tenant": principal.tenant.name,
                "key_id": principal.key_id,
                "scopes": sorted(principal.scopes),
                "is_operator": principal.counts_of is None,
                "sees_all_models": principal.sees_all,
            },
            "interval_s": INTERVAL_S,
            "history_s": HISTORY_S,
        }
        return event("hello", content)

    def _start_beat(self) -> None:
        self._beating = asyncio.get_running_loop().call_later(_BEAT_S, self._beat)

    def _beat(self) -> None:
        """Keep idle connections alive. Checks all keys: without a feed there are no deliveries that do."""
        self._beating = None
        for group in list(self._groups.values()):
            for viewer in list(group.viewers):
                if group.check(viewer):
                    viewer.beat()
        if self._groups:
            self._start_beat()

    def _drain_soon(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        for group in self._groups.values():
            for viewer in group.viewers:
                viewer.end(event("end", {"reason": "draining"}))


async def _send_all(viewer: Viewer, send: Send) -> None:
    """Send events until the stream ends. A reader that does not take the last ones in time is dropped."""
    while content := await viewer.take():
        sending = send({"type": "http.response.body", "body": content, "more_body": True})
        if not viewer.is_over:
            await sending
            continue
        try:
            async with asyncio.timeout(_LAST_EVENT_S):
                await sending
        except TimeoutError:
            viewer.drop()
    if not viewer.is_dropped:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_head(send: Send) -> None:
    await send(_START)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _watch(receive: Receive, viewer: Viewer) -> None:
    """Drop the viewer when its client disconnects."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            viewer.drop()
            return


def _is_valid(keys: KeyStore, principal: Principal, now_s: Callable[[], float] = time.time) -> bool:
    """Whether the key of an open stream is still as it was when the stream was opened."""
    if principal is ANONYMOUS:
        return not keys.required
    if principal.key_id == CERTIFICATE_KEY_ID:
        return True  # the certificate was checked for the connection
    stored = keys.find(principal.key_id)
    if stored is None or stored.principal is not principal:
        return False
    return stored.key.expires_s is None or stored.key.expires_s > now_s()
