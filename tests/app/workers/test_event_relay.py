"""Events and finished requests between a supervisor and its workers, over real links."""

import asyncio
from typing import Any

from app.admin.monitoring.sampling import FeedReader, Opened
from app.auth.principal import Principal, Scope
from app.observability.metrics import Observer
from app.workers.event_relay import FeedServer, MergedRequests, RemoteFeeds, RequestsSender
from app.workers.messages import CollectRequests, FinishedRequests, messages_to_worker
from frameworks.core.tenants import Tenant
from frameworks.models.replicas.control import ControlLink, Workers
from tests.app.admin.monitoring.observed import OPERATOR, FakeReader, observe
from tests.support.control_links import connect
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, settle, soon, task

RED = Principal(Tenant("red"), "key", frozenset({Scope.READ}), [("m*",), ("*",)])


class FakeFeeds:
    def __init__(self) -> None:
        self.readers: list[FeedReader] = []
        self.number = 0

    async def open(self, reader: FeedReader) -> Opened:
        if reader not in self.readers:
            self.readers.append(reader)
        return Opened(self.number, b"first")

    def close(self, reader: FeedReader) -> None:
        self.readers.remove(reader)

    def publish(self) -> None:
        self.number += 1
        for reader in self.readers:
            reader.deliver(self.number, b"%d" % self.number)


class Worker:
    def __init__(self, number: int) -> None:
        self.link = ControlLink(number, messages_to_worker())
        self.feeds = RemoteFeeds(self.link)
        self.observer = Observer("none", 1000, worker=number)
        RequestsSender(self.link, self.observer.recent)


class Supervisor:
    def __init__(self, collect_s: float = 60.0) -> None:
        self.workers = Workers()
        self.feeds = FakeFeeds()
        FeedServer(self.feeds, self.workers)
        self.requests = MergedRequests(self.workers, collect_s)

    async def join(self, number: int) -> Worker:
        worker = Worker(number)
        await connect(self.workers, worker.link)
        return worker

    async def lose(self, worker: Worker) -> None:
        ours = self.workers.links[worker.link.number]
        worker.link.close()
        await ours.lost
        await settle()


def as_shown(principal: Principal) -> Any:
    return principal.tenant.name, principal.patterns, principal.counts_of, principal.scopes, principal.key_id


@in_loop
async def test_events_reach_the_readers_of_a_worker() -> None:
    supervisor = Supervisor()
    worker = await supervisor.join(0)
    red, operator = FakeReader(RED), FakeReader(OPERATOR)
    for reader in (red, operator, red):
        assert (await worker.feeds.open(reader)).content == b"first"
    assert [as_shown(each.principal) for each in supervisor.feeds.readers] == [as_shown(RED), as_shown(OPERATOR)]
    supervisor.feeds.publish()
    await soon(lambda: red.delivered == operator.delivered == [(1, b"1")])
    worker.feeds.close(red)
    await soon(lambda: len(supervisor.feeds.readers) == 1)
    supervisor.feeds.publish()
    await soon(lambda: len(operator.delivered) == 2)
    assert red.delivered == [(1, b"1")]
    await supervisor.lose(worker)


@in_loop
async def test_first_events_come_before_later_ones() -> None:
    supervisor = Supervisor()
    worker = await supervisor.join(0)
    reader = FakeReader(RED)
    opening = asyncio.create_task(worker.feeds.open(reader))
    await soon(lambda: bool(supervisor.feeds.readers))
    supervisor.feeds.publish()
    opened = await opening
    await soon(lambda: bool(reader.delivered))
    assert (opened.number, reader.delivered) == (0, [(1, b"1")])
    await supervisor.lose(worker)


@in_loop
async def test_lost_worker_leaves_no_reader() -> None:
    supervisor = Supervisor()
    lost, other = await supervisor.join(0), await supervisor.join(1)
    reader = FakeReader(RED)
    await lost.feeds.open(FakeReader(RED))
    await other.feeds.open(reader)
    await supervisor.lose(lost)
    await soon(lambda: len(supervisor.feeds.readers) == 1)
    supervisor.feeds.publish()
    await soon(lambda: bool(reader.delivered))
    assert reader.delivered == [(1, b"1")]
    await supervisor.lose(other)
    assert not supervisor.feeds.readers


@in_loop
async def test_requests_of_all_workers_are_merged() -> None:
    supervisor = Supervisor()
    workers = [await supervisor.join(number) for number in range(2)]
    for number in range(6):
        tenant = "red" if number < 4 else "blue"
        observe(workers[number % 2].observer, tenant=tenant, request_id=str(number), started_s=float(number))
    assert [each.request_id for each in await supervisor.requests.latest(None)] == list("543210")
    red = await supervisor.requests.latest("red")
    assert [(each.worker, each.number, each.request_id) for each in red] == [
        (1, 2, "3"), (0, 2, "2"), (1, 1, "1"), (0, 1, "0"),
    ]  # fmt: skip
    assert [each.request_id for each in await supervisor.requests.latest(None, "2")] == ["2"]
    for worker in workers:
        await supervisor.lose(worker)
    assert await supervisor.requests.latest(None) == []


@in_loop
async def test_fresh_requests_are_read_once() -> None:
    supervisor = Supervisor()
    workers = [await supervisor.join(number) for number in range(2)]
    for worker in workers:
        observe(worker.observer, request_id="old")
    assert len(await supervisor.requests.fresh()) == 2
    assert await supervisor.requests.fresh() == []
    observe(workers[1].observer, request_id="new")
    assert [each.request_id for each in await supervisor.requests.fresh()] == ["new"]
    await supervisor.lose(workers[1])
    # A worker with the same number has other requests.
    workers[1] = await supervisor.join(1)
    observe(workers[1].observer, request_id="next")
    assert [each.request_id for each in await supervisor.requests.fresh()] == ["next"]
    for worker in workers:
        await supervisor.lose(worker)


@in_loop
async def test_silent_worker_is_left_out() -> None:
    supervisor = Supervisor(collect_s=HANGS_AFTER_S)
    worker, silent = await supervisor.join(0), await supervisor.join(1)
    asked = asyncio.Event()

    async def never(_: CollectRequests) -> FinishedRequests:
        asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    silent.link.answer(CollectRequests, never)
    observe(worker.observer)
    reading = task(supervisor.requests.latest(None))
    await asked.wait()
    links = supervisor.workers.links
    await soon(lambda: not links[0]._replies)
    pass_time(HANGS_AFTER_S)
    assert len(await reading) == 1
    for each in (worker, silent):
        await supervisor.lose(each)
