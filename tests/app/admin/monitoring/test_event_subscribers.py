"""Streams of events: order, bounds of memory, slow readers, lost keys and the drain."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.admin.monitoring import event_subscribers as module
from app.admin.monitoring.event_subscribers import ServerFacts, Viewer, Viewers
from app.admin.monitoring.sampling import FeedReader, Opened
from app.auth.key_store import KeyStore
from app.auth.principal import ANONYMOUS, Principal
from app.config import AuthSettings
from app.inference.lifecycle import Lifecycle
from app.observability.metrics import RequestRecord
from frameworks.core.errors import Draining, Overloaded
from tests.app.admin.monitoring.observed import TENANTS, named, parse
from tests.support.keyring import make_key, write_keys
from tests.support.loops import in_loop, pass_time, settle, soon, task


class ViewerMachine(RuleBasedStateMachine):
    """One viewer gets every event once and in order, or is dropped; it never holds more than its bound."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = 0
        self.viewer = Viewer(ANONYMOUS, self.abort)
        self.sent: list[int] = []
        self.taken: list[int] = []
        self.started_at = 0
        self.number = 0

    def abort(self) -> None:
        self.aborted += 1

    @rule(count=st.integers(1, 70))
    def add(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.viewer.add(self.number, b"%d " % self.number)

    @rule()
    def start(self) -> None:
        """Open it with all events until now, as a feed does."""
        if not self.started_at:
            self.started_at = self.number + 1
            self.viewer.start(self.number, b"%d " % self.number)

    @rule()
    def take(self) -> None:
        if self.viewer._unread or self.viewer.is_over:
            content = asyncio.run(self.viewer.take())
            self.taken += map(int, content.split())

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.viewer._unread) <= module._MOST_UNREAD
        assert len(self.viewer._early) <= module._MOST_UNREAD

    @invariant()
    def events_are_in_order(self) -> None:
        if self.started_at:
            expected = list(range(self.started_at - 1, self.number + 1))
            if self.viewer.is_dropped:
                assert self.taken == expected[: len(self.taken)]
                assert self.aborted == 1
            else:
                unread = [int(each) for content in self.viewer._unread for each in content.split()]
                assert [*self.taken, *unread] == expected
        else:
            assert not self.taken


TestViewer = ViewerMachine.TestCase
TestViewer.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


class FakeFeeds:
    """Feeds whose events the test writes."""

    def __init__(self) -> None:
        self.readers: list[FeedReader] = []
        self.opened = 0
        self.number = 0
        self.gate: asyncio.Event | None = None

    async def open(self, reader: FeedReader) -> Opened:
        self.opened += 1
        if reader not in self.readers:
            self.readers.append(reader)
        opened = Opened(self.number, b'event: sample\ndata: {"n":%d}\n\n' % self.number)
        if self.gate is not None:
            await self.gate.wait()
        return opened

    def close(self, reader: FeedReader) -> None:
        self.readers.remove(reader)

    def publish(self) -> bytes:
        self.number += 1
        content = b'event: sample\ndata: {"n":%d}\n\n' % self.number
        for reader in self.readers:
            reader.deliver(self.number, content)
        return content


class PlainLifecycle(Lifecycle):
    @property
    def is_ready(self) -> bool:
        return True


class Client:
    """One request to `Viewers.stream`. `is_slow`: it reads nothing."""

    def __init__(self, viewers: Viewers, principal: Principal = ANONYMOUS, method: str = "GET") -> None:
        self.content: list[bytes] = []
        self.heads = 0
        self.is_slow = asyncio.Event()
        self.is_slow.set()
        self.aborted = False
        self.gone = asyncio.Event()
        record = RequestRecord("id", method, "/events", 0.0, principal=principal)
        record.abort = self.abort  # type: ignore[method-assign]
        self.stream = task(viewers.stream({"record": record, "type": "http"}, self.receive, self.send))

    def abort(self) -> None:
        self.aborted = True
        self.is_slow.set()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.heads += 1
            return
        await self.is_slow.wait()
        self.content.append(message["body"])

    @property
    def numbers(self) -> list[int]:
        return [content["n"] for content in named(parse(b"".join(self.content)), "sample")]


Make = Callable[[], tuple[Viewers, FakeFeeds, PlainLifecycle]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made() -> tuple[Viewers, FakeFeeds, PlainLifecycle]:
        keys = KeyStore(tmp_path / "keys.toml", AuthSettings(mode="off"))
        feeds, lifecycle = FakeFeeds(), PlainLifecycle()
        return Viewers(feeds, keys, lifecycle, ServerFacts()), feeds, lifecycle

    return made


@in_loop
async def test_viewers_of_one_view_share_events(make: Make) -> None:
    viewers, feeds, lifecycle = make()
    clients = [Client(viewers) for _ in range(3)]
    await soon(lambda: all(client.content for client in clients))
    assert (feeds.opened, len(feeds.readers)) == (3, 1)
    content = feeds.publish()
    await soon(lambda: all(client.numbers == [0, 1] for client in clients))
    assert all(client.content[-1] is content for client in clients)
    hello = named(parse(clients[0].content[0]), "hello")[0]
    assert hello["caller"] == {
        "tenant": "", "key_id": "", "scopes": ["infer", "manage", "read", "write"],
        "is_operator": True, "sees_all_models": True,
    }  # fmt: skip
    lifecycle.drain()
    await asyncio.gather(*(client.stream for client in clients))
    assert viewers.count == 0


@in_loop
async def test_events_while_stream_opens_are_not_lost(make: Make) -> None:
    viewers, feeds, lifecycle = make()
    feeds.gate = asyncio.Event()
    client = Client(viewers)
    await settle()
    feeds.publish()
    feeds.publish()
    feeds.gate.set()
    await soon(lambda: len(client.numbers) == 3)
    lifecycle.drain()
    await client.stream
    assert client.numbers == [0, 1, 2]


@in_loop
async def test_slow_reader_is_dropped_alone(make: Make) -> None:
    viewers, feeds, lifecycle = make()
    slow, fast = Client(viewers), Client(viewers)
    await soon(lambda: bool(slow.content and fast.content))
    slow.is_slow.clear()
    for _ in range(module._MOST_UNREAD + 2):
        feeds.publish()
        await settle()
    await slow.stream
    assert slow.aborted
    assert viewers.count == 1
    assert fast.numbers == list(range(module._MOST_UNREAD + 3))
    lifecycle.drain()
    await fast.stream


@in_loop
async def test_last_reader_closes_the_feed(make: Make) -> None:
    viewers, feeds, _ = make()
    clients = [Client(viewers) for _ in range(2)]
    await soon(lambda: all(client.content for client in clients))
    clients[0].gone.set()
    await clients[0].stream
    assert len(feeds.readers) == 1
    clients[1].gone.set()
    await clients[1].stream
    assert (feeds.readers, viewers.count, viewers._groups) == ([], 0, {})


@in_loop
async def test_client_gone_while_opening_leaves_nothing(make: Make) -> None:
    viewers, feeds, _ = make()
    feeds.gate = asyncio.Event()
    client = Client(viewers)
    await settle()
    client.gone.set()
    await settle()
    feeds.gate.set()
    await client.stream
    assert (client.content, feeds.readers, viewers.count) == ([], [], 0)


@in_loop
async def test_streams_beyond_the_bounds_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_VIEWERS", 3)
    monkeypatch.setattr(module, "MOST_OF_TENANT", 2)
    viewers, _, lifecycle = make()
    clients = [Client(viewers, TENANTS["red"]) for _ in range(2)]
    await soon(lambda: viewers.count == 2)
    with pytest.raises(Overloaded, match="at most 2 open streams of a tenant"):
        await Client(viewers, TENANTS["red"]).stream
    clients.append(Client(viewers, TENANTS["blue"]))
    await soon(lambda: viewers.count == 3)
    with pytest.raises(Overloaded, match="at most 3 open streams of the server"):
        await Client(viewers, TENANTS["blue"]).stream
    lifecycle.drain()
    await asyncio.gather(*(client.stream for client in clients))
    with pytest.raises(Draining):
        await Client(viewers).stream


@in_loop
async def test_drain_ends_streams_with_reason(make: Make) -> None:
    viewers, _, lifecycle = make()
    client, stuck = Client(viewers), Client(viewers)
    await soon(lambda: bool(client.content and stuck.content))
    stuck.is_slow.clear()
    lifecycle.drain()
    await client.stream
    assert parse(b"".join(client.content))[-1] == ("end", {"reason": "draining"})
    await settle()
    pass_time(module._LAST_EVENT_S)
    await stuck.stream
    assert stuck.aborted


@in_loop
async def test_idle_stream_has_comments(make: Make) -> None:
    viewers, _, lifecycle = make()
    client = Client(viewers)
    await soon(lambda: bool(client.content))
    for _ in range(2):
        viewers._beat()
        await settle()
    assert client.content[1:] == [b": \n\n"]
    lifecycle.drain()
    await client.stream


@in_loop
async def test_head_request_ends_at_once(make: Make) -> None:
    viewers, feeds, _ = make()
    client = Client(viewers, method="HEAD")
    await client.stream
    assert (client.heads, client.content, feeds.opened) == (1, [b""], 0)


@pytest.mark.parametrize("feed_delivers", [True, False])
@in_loop
async def test_revoked_key_ends_its_streams(tmp_path: Path, feed_delivers: bool) -> None:
    file = tmp_path / "keys.toml"
    kept, revoked, short = make_key("red"), make_key("red"), make_key("blue", lifetime_s=10_000)
    write_keys(file, kept, revoked, short)
    keys, feeds, lifecycle = KeyStore(file, AuthSettings(mode="required")), FakeFeeds(), PlainLifecycle()
    keys.load()
    viewers = Viewers(feeds, keys, lifecycle, ServerFacts())
    principals = [keys.by_id[each.key.key_id].principal for each in (kept, revoked, short)]
    clients = [Client(viewers, principal) for principal in principals]
    await soon(lambda: all(client.content for client in clients))
    viewers._beat()
    await settle()
    assert viewers.count == 3
    write_keys(file, kept, short)
    await keys.refresh()
    if feed_delivers:
        feeds.publish()
    else:
        viewers._beat()
    await clients[1].stream
    received = parse(b"".join(clients[1].content))
    assert received[2:] == [("end", {"reason": "key"})]
    assert viewers.count == 2
    short_key = keys.by_id[short.key.key_id].key
    assert not module._is_valid(keys, principals[2], now_s=lambda: float(short_key.expires_s or 0))
    assert not module._is_valid(keys, ANONYMOUS)
    lifecycle.drain()
    await asyncio.gather(clients[0].stream, clients[2].stream)
