"""Carry the events of the page, and the finished requests, between the supervisor and its workers.

The supervisor takes the samples and writes the events of each view once for each worker with a reader of it. Finished
requests stay in their workers until the supervisor asks for them.
"""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial

from app.admin.monitoring.request_log import MOST_FRESH
from app.admin.monitoring.sampling import FeedReader, Feeds, Opened
from app.auth.principal import Principal
from app.observability.recent_requests import KEPT_REQUESTS, FinishedRequest, RecentRequests, newest
from app.workers.forwarding import SupervisorLost
from app.workers.messages import CloseFeed, CollectRequests, FeedContent, FeedOpened, FinishedRequests, OpenFeed
from app.workers.principal_serialization import principal_of, sender_of
from frameworks.core.channel.messages import ChannelError, ChannelLost
from frameworks.core.errors import RoundhouseError
from frameworks.models.replicas.control import ControlLink, Workers

_MOST_FRESH_OF_ALL = 10_000
COLLECT_S = 1.0
"""How long a reading waits for a worker, whose requests are left out then."""


class RemoteFeeds:
    """The events in a worker. Implements Feeds. Owned by the event loop."""

    def __init__(self, link: ControlLink) -> None:
        """`link`: not yet open."""
        self._link = link
        self._numbers = itertools.count(1)
        self._readers: dict[int, FeedReader] = {}
        self._by_reader: dict[FeedReader, int] = {}
        link.handle(FeedContent, self._deliver)

    async def open(self, reader: FeedReader) -> Opened:
        """As Feeds.open."""
        feed = self._by_reader.get(reader)
        if feed is None:
            feed = self._by_reader[reader] = next(self._numbers)
            self._readers[feed] = reader
        sender = sender_of(reader.principal)
        try:
            opened = await self._link.ask(lambda number: OpenFeed(number, feed, sender))
        except ChannelLost:
            raise SupervisorLost from None
        assert isinstance(opened, FeedOpened)
        return Opened(opened.number, opened.content)

    def close(self, reader: FeedReader) -> None:
        """As Feeds.close."""
        feed = self._by_reader.pop(reader, None)
        if feed is not None:
            del self._readers[feed]
            self._link.send(CloseFeed(feed))

    def _deliver(self, message: FeedContent) -> None:
        reader = self._readers.get(message.feed)
        if reader is not None:  # else it was closed meanwhile
            reader.deliver(message.number, message.content)


class FeedServer:
    """The events of the workers in the supervisor. Owned by the event loop."""

    def __init__(self, feeds: Feeds, workers: Workers) -> None:
        """Make it before a worker connects."""
        self._feeds = feeds
        self._readers: dict[ControlLink, dict[int, _RemoteReader]] = {}
        workers.on_connect(self._register)
        workers.on_left(self._leave)

    def _register(self, link: ControlLink) -> None:
        link.answer(OpenFeed, partial(self._open, link))
        link.handle(CloseFeed, partial(self._close, link))

    async def _open(self, link: ControlLink, request: OpenFeed) -> FeedOpened:
        readers = self._readers.setdefault(link, {})
        reader = readers.get(request.feed)
        if reader is None:
            reader = readers[request.feed] = _RemoteReader(link, request.feed, principal_of(request.sender))
        opened = await self._feeds.open(reader)
        if readers.get(request.feed) is not reader:
            self._feeds.close(reader)  # the worker closed it meanwhile, or was lost
        return FeedOpened(request.id, opened.number, opened.content)

    def _close(self, link: ControlLink, message: CloseFeed) -> None:
        reader = self._readers.get(link, {}).pop(message.feed, None)
        if reader is not None:
            self._feeds.close(reader)

    def _leave(self, link: ControlLink) -> None:
        readers = self._readers.pop(link, {})
        for reader in readers.values():
            self._feeds.close(reader)
        readers.clear()


class _RemoteReader:
    """A view that a worker has readers of."""

    def __init__(self, link: ControlLink, feed: int, principal: Principal) -> None:
        self.principal = principal
        self._link = link
        self._feed = feed

    def deliver(self, number: int, content: bytes) -> None:
        """As FeedReader.deliver."""
        self._link.send(FeedContent(self._feed, number, content))


class RequestsSender:
    """The finished requests of a worker, for the supervisor."""

    def __init__(self, link: ControlLink, recent: RecentRequests) -> None:
        """`link`: not yet open."""
        self._recent = recent
        link.answer(CollectRequests, self._collect)

    async def _collect(self, request: CollectRequests) -> FinishedRequests:
        found = self._recent.latest(request.tenant, request.after, request.most, request.request_id)
        return FinishedRequests(request.id, self._recent.last_number, found)


class MergedRequests:
    """The finished requests of all workers, in the supervisor. Implements RequestLog. Owned by the event loop.

    Those of a lost worker are lost.
    """

    def __init__(self, workers: Workers, collect_s: float = COLLECT_S) -> None:
        self._workers = workers
        self._collect_s = collect_s
        self._last_numbers: dict[ControlLink, int] = {}
        workers.on_left(self._forget)

    async def latest(self, tenant: str | None, request_id: str | None = None) -> list[FinishedRequest]:
        """As RequestLog.latest."""
        replies = await self._collect_all(
            lambda _, number: CollectRequests(number, tenant, 0, KEPT_REQUESTS, request_id)
        )
        return newest(request for _, reply in replies for request in reply.requests)

    async def fresh(self) -> list[FinishedRequest]:
        """As RequestLog.fresh."""
        before = self._last_numbers
        replies = await self._collect_all(
            lambda link, number: CollectRequests(number, None, before.get(link, 0), MOST_FRESH)
        )
        for link, reply in replies:
            if not link.lost.done():
                before[link] = reply.last_number
        return newest((request for _, reply in replies for request in reply.requests), most=_MOST_FRESH_OF_ALL)

    def _forget(self, link: ControlLink) -> None:
        self._last_numbers.pop(link, None)

    async def _collect_all(
        self, make: Callable[[ControlLink, int], CollectRequests]
    ) -> list[tuple[ControlLink, FinishedRequests]]:
        links = list(self._workers.links.values())
        replies = await asyncio.gather(*(self._collect(link, partial(make, link)) for link in links))
        return [(link, reply) for link, reply in zip(links, replies, strict=True) if reply is not None]

    async def _collect(self, link: ControlLink, make: Callable[[int], CollectRequests]) -> FinishedRequests | None:
        try:
            async with asyncio.timeout(self._collect_s):
                reply = await link.ask(make)
        except (TimeoutError, ChannelError, RoundhouseError):
            return None
        return reply if isinstance(reply, FinishedRequests) else None
