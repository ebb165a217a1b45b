"""Test that the counts of workers are reported and added up as one server's."""

import asyncio
import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from app.observability.metrics import Observer
from app.observability.process_counts import ProcessCounts
from app.workers.messages import CollectTallies, ForgetModel, Tallies, TalliesChanged, TalliesReport, messages_to_worker
from app.workers.tallies.tallies import WorkerTallies
from frameworks.core.timings import Timings
from frameworks.models.replicas.control import ControlLink
from frameworks.models.versions.slot import ModelSlot
from tests.app.workers.tallied import FakeSlot, Supervisor, Worker, counted, observe, process_of
from tests.support.loops import in_loop, settle, soon, task

NUMBERS = st.integers(0, 2)
REQUESTS = st.tuples(
    NUMBERS, st.sampled_from(["", "m", "n"]), st.sampled_from(["", "a"]), st.sampled_from([200, 404, 429])
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), REQUESTS),
        st.tuples(st.sampled_from(["replace", "push", "begin"]), NUMBERS),
        st.tuples(st.just("forget"), st.sampled_from(["m", "n"])),
        st.tuples(st.just("refresh"), st.none()),
    ),
    max_size=25,
)


@dataclass
class OneServer:
    """An observer that counts all requests, and the workers that share them."""

    supervisor: Supervisor
    workers: dict[int, Worker]
    observer: Observer = field(default_factory=lambda: Observer("none", 1000))
    steps: int = 0
    forgets: int = 0

    async def apply(self, kind: str, detail: Any) -> None:
        await getattr(self, kind)(detail)

    async def request(self, detail: tuple[int, str, str, int]) -> None:
        self.steps += 1
        number, model, tenant, status = detail
        for observer in (self.observer, self.workers[number].observer):
            observe(observer, self.steps, model, tenant, status)

    async def begin(self, number: int) -> None:
        for observer in (self.observer, self.workers[number].observer):
            observer.inflight += 1

    async def push(self, number: int) -> None:
        self.workers[number].sender.send_changes()

    async def replace(self, number: int) -> None:
        """Lose a worker that has reported its last request; another one replaces it."""
        await self.push(number)
        self.observer.inflight -= self.workers[number].observer.inflight
        await self.supervisor.lose(self.workers[number])
        self.workers[number] = Worker(number)
        await self.supervisor.join(self.workers[number])

    async def forget(self, model: str) -> None:
        self.observer.forget(model)
        self.supervisor.merged.forget(model)
        self.forgets += 1
        # Workers know a new model of that name only after this message.
        await soon(lambda: all(each.sender._forgotten == self.forgets for each in self.workers.values()))

    async def refresh(self, _: None) -> None:
        assert await self.supervisor.refreshed() == counted(self.observer)


@given(EVENTS)
def test_merged_workers_equal_one_observer(events: list[tuple[str, Any]]) -> None:
    @in_loop
    async def run() -> None:
        server = OneServer(Supervisor(), {number: Worker(number) for number in range(3)})
        for worker in server.workers.values():
            await server.supervisor.join(worker)
        for kind, detail in events:
            await server.apply(kind, detail)
        await server.refresh(None)
        await server.supervisor.close()

    run()


@given(st.lists(REQUESTS, max_size=30))
def test_encoded_tallies_decode_to_equal_ones(requests: list[tuple[int, str, str, int]]) -> None:
    observer = Observer("none", 1000)
    for steps, model, tenant, status in requests:
        observe(observer, steps, model, tenant, status)
    observer.inflight = 3
    slots = cast(list[ModelSlot], [FakeSlot("m", {"": (1, 0), "a": (2, 5)}), FakeSlot("n", {})])
    tallies = WorkerTallies.read(observer, slots)
    again = WorkerTallies.decode(tallies.encode())
    assert again == tallies
    assert again.held == {("m", ""): (1, 0), ("m", "a"): (2, 5)}
    # The report does not change with the observer.
    observe(observer, 1)
    assert again != WorkerTallies.read(observer, slots)


class TestNoCounterGoesDown:
    """Not by the last digit of a float either: Prometheus takes any fall for a restart."""

    TOTAL = 0.1 + 0.2 + 0.3
    """Greater than 0.3 + 0.2 + 0.1."""

    @in_loop
    async def test_workers_lost_in_any_order(self) -> None:
        supervisor, workers = Supervisor(), [Worker(number) for number in range(3)]
        for worker, seconds in zip(workers, (0.1, 0.2, 0.3), strict=True):
            await supervisor.join(worker)
            observe(worker.observer, 1, step_s=seconds / 8)
        assert (await supervisor.refreshed()).models["m", "a"].request_seconds.total == self.TOTAL
        for worker in reversed(workers):
            await supervisor.lose(worker)
            assert (await supervisor.refreshed()).models["m", "a"].request_seconds.total == self.TOTAL

    @in_loop
    async def test_tenants_reported_in_any_order(self) -> None:
        supervisor, early, late = Supervisor(), Worker(0), Worker(1)
        for worker in (early, late):
            await supervisor.join(worker)
        for tenant, seconds in (("a", 0.1), ("b", 0.2), ("c", 0.3)):
            observe(late.observer, 1, tenant=tenant, step_s=seconds / 8)
        await supervisor.merged.refresh()
        assert sum(each.answered_s for each in supervisor.merged.versions.values()) == self.TOTAL
        for tenant in "cb":
            observe(early.observer, 1, tenant=tenant, status=429)
        await supervisor.merged.refresh()
        assert sum(each.answered_s for each in supervisor.merged.versions.values()) == self.TOTAL
        await supervisor.close()


@in_loop
async def test_unreported_counts_of_lost_worker_vanish() -> None:
    supervisor, worker = Supervisor(), Worker(0)
    await supervisor.join(worker)
    observe(worker.observer, 1)
    worker.observer.inflight = 2
    before = await supervisor.refreshed()
    observe(worker.observer, 2)
    await supervisor.lose(worker)
    after = await supervisor.refreshed()
    assert (before.inflight, after.inflight) == (2, 0)
    before.inflight = 0
    assert after == before


@in_loop
async def test_held_requests_are_those_of_live_workers() -> None:
    supervisor, workers = Supervisor(), [Worker(0), Worker(1)]
    slot: Any = SimpleNamespace(name="m")
    for worker, held in zip(workers, [(1, 4), (2, 0)], strict=True):
        worker.slots = [FakeSlot("m", {"a": held}), FakeSlot("n", {"a": (9, 9)})]
        await supervisor.join(worker)
    merged = supervisor.merged
    assert merged.requests_of(slot, "a") == (0, 0)
    await merged.refresh()
    assert merged.requests_of(slot, "a") == (3, 4)
    assert merged.requests_of(slot, "b") == (0, 0)
    # The uses of the models that the supervisor shows beside the counts are reported before them.
    assert [worker.uses_reported for worker in workers] == [1, 1]
    await supervisor.lose(workers[0])
    await merged.refresh()
    assert merged.requests_of(slot, "a") == (2, 0)
    merged.forget("m")
    assert merged.requests_of(slot, "a") == (0, 0)
    await supervisor.close()


class ByHand:
    """A worker that reports when the test says so. `questions`: not answered yet."""

    def __init__(self, number: int = 0) -> None:
        self.link = ControlLink(number, messages_to_worker())
        self.questions: list[CollectTallies] = []
        self.forgets: list[ForgetModel] = []
        self.link.handle(CollectTallies, self.questions.append)
        self.link.handle(ForgetModel, self.forgets.append)

    def report(self, forgotten: int = 0, **counts: Any) -> TalliesReport:
        return TalliesReport(WorkerTallies(**counts).encode(), ProcessCounts(), forgotten)

    async def answer(self, report: TalliesReport) -> None:
        """Answer the next question."""
        await soon(lambda: bool(self.questions))
        self.link.send(Tallies(self.questions.pop(0).id, report))


@in_loop
async def test_late_reports_of_deleted_model_are_ignored() -> None:
    """A model of the same name may be registered before the worker has forgotten the old one."""
    supervisor, worker = Supervisor(), ByHand()
    await supervisor.join(worker)
    old, other = ("m", "1", 200, ""), ("n", "1", 200, "")

    async def collected(report: TalliesReport) -> dict[Any, int]:
        refresh = task(supervisor.merged.refresh())
        await worker.answer(report)
        await refresh
        return dict(supervisor.merged.requests)

    assert await collected(worker.report(requests={old: 5, other: 1})) == {old: 5, other: 1}
    supervisor.merged.forget("m")
    assert supervisor.merged.requests == {other: 1}
    await soon(lambda: bool(worker.forgets))
    assert await collected(worker.report(requests={old: 6, other: 2})) == {other: 2}
    number = worker.forgets[0].number
    assert await collected(worker.report(forgotten=number, requests={old: 1, other: 2})) == {old: 1, other: 2}
    supervisor.merged.forget("m")
    await supervisor.lose(worker)
    # Neither the kept counts nor those of a new worker are confused with those of the deleted model.
    worker = ByHand()
    await supervisor.join(worker)
    assert await collected(worker.report(requests={old: 3})) == {old: 3, other: 2}
    await supervisor.close()


@in_loop
async def test_exemplars_are_those_of_all_workers() -> None:
    supervisor, workers = Supervisor(), [Worker(0), Worker(1)]
    for number, worker in enumerate(workers):
        await supervisor.join(worker)
        observe(worker.observer, 1)
        worker.observer.models["m", "a"].show(f"{number:032x}", 10.0**number, Timings())
    merged = (await supervisor.refreshed()).models["m", "a"].request_seconds
    assert sorted((each.trace_id, each.value) for each in merged.exemplars.values()) == [
        (f"{0:032x}", 1.0),
        (f"{1:032x}", 10.0),
    ]
    await supervisor.lose(workers[0])
    assert (await supervisor.refreshed()).models["m", "a"].request_seconds == merged
    await supervisor.close()


@in_loop
async def test_slow_worker_counts_as_last_reported() -> None:
    supervisor, fast, slow = Supervisor(collect_s=0.01), Worker(0), ByHand(1)
    for worker in (fast, slow):
        await supervisor.join(worker)
    observe(fast.observer, 1)
    slow.link.send(TalliesChanged(slow.report(auth_failures={"scope": 7})))
    await soon(lambda: bool(supervisor.merged._reports[supervisor.workers.links[1]].tallies().auth_failures))
    merged = await supervisor.refreshed()
    assert merged.auth_failures == {"scope": 7}
    # The other worker may have been slow too, on this machine.
    await soon(lambda: bool(slow.questions))
    await supervisor.close()


@in_loop
async def test_failing_worker_counts_as_last_reported() -> None:
    supervisor, worker = Supervisor(), Worker(0)
    await supervisor.join(worker)
    observe(worker.observer, 1)
    before = await supervisor.refreshed()
    worker.observer.auth_failures["\ud800"] = 1  # msgpack cannot hold it
    observe(worker.observer, 1)
    assert await supervisor.refreshed() == before
    await supervisor.close()


@in_loop
async def test_concurrent_refreshes_share_one_collection() -> None:
    supervisor, worker = Supervisor(), ByHand()
    await supervisor.join(worker)
    first = task(supervisor.merged.refresh())
    await soon(lambda: bool(worker.questions))
    later = [task(supervisor.merged.refresh()) for _ in range(5)]
    await settle()
    assert len(worker.questions) == 1
    await worker.answer(worker.report(auth_failures={"scope": 1}))
    await first
    assert supervisor.merged.auth_failures == {"scope": 1}
    # They began after the worker was asked. The second collection is cancelled, and counts for none of them.
    await soon(lambda: bool(worker.questions))
    worker.questions.clear()
    later.pop(0).cancel()
    await settle()
    assert not any(each.done() for each in later)
    await worker.answer(worker.report(auth_failures={"scope": 2}))
    await asyncio.gather(*later)
    assert supervisor.merged.auth_failures == {"scope": 2}
    assert not worker.questions
    await supervisor.close()


@in_loop
async def test_refresh_without_workers_shows_kept_counts() -> None:
    supervisor, worker = Supervisor(process=process_of(1)), Worker(0, process_of(2))
    observe(supervisor.observer, 1)
    await supervisor.join(worker)
    observe(worker.observer, 2)
    await supervisor.merged.refresh()
    assert supervisor.merged.process_counts().tensor_pool["cpu"].leased_bytes == 1 + 2
    await supervisor.lose(worker)
    counts = await supervisor.refreshed()
    assert sum(counts.requests.values()) == 2
    process = supervisor.merged.process_counts()
    assert process.tensor_pool["cpu"] == process_of(1).tensor_pool["cpu"]._replace(hits=9, misses=11, gc_runs=13,
        freed_bytes=15)  # fmt: skip
    assert process.connections_closed == {"idle": 9}


@in_loop
async def test_memory_is_that_of_all_processes() -> None:
    supervisor, worker = Supervisor(), Worker(0)
    ours = await supervisor.join(worker)
    alone = supervisor.merged.memory_bytes()
    ours.pid = os.getpid()
    assert supervisor.merged.memory_bytes() > 1.5 * alone > 0
    await supervisor.close()


class TestSender:
    """When a worker reports."""

    @in_loop
    async def test_reports_only_changes_without_question(self) -> None:
        supervisor, worker = Supervisor(), Worker(0)
        reports: list[TalliesChanged] = []
        ours = await supervisor.join(worker)
        ours.handle(TalliesChanged, reports.append)
        worker.sender.send_changes()
        worker.sender.send_changes()
        worker.process.integrity_failures = 1
        worker.sender.send_changes()
        observe(worker.observer, 1)
        worker.sender.send_changes()
        worker.sender.send_changes()
        await soon(lambda: len(reports) >= 2)
        await settle()
        contents = [WorkerTallies.decode(each.report.content) for each in reports]
        assert [sum(each.requests.values()) for each in contents] == [0, 1]
        assert reports[1].report.process.integrity_failures == 1
        await supervisor.close()

    @in_loop
    async def test_end_of_run_reports_changes(self) -> None:
        supervisor, worker = Supervisor(), Worker(0)
        await supervisor.join(worker)
        running = task(worker.sender.run())
        await settle()
        observe(worker.observer, 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await supervisor.lose(worker)
        assert sum((await supervisor.refreshed()).requests.values()) == 1

    @in_loop
    async def test_costly_reports_are_spaced(self) -> None:
        """They take a tenth of the worker's time at most."""
        worker, cpu = Worker(0), iter([0.0, 0.005, 1.0, 1.0])
        sender = worker.sender
        sender._cpu_clock = lambda: next(cpu)
        loop = asyncio.get_running_loop()
        await sender._collect(CollectTallies(1))
        started_s = loop.time()
        await sender._collect(CollectTallies(2))
        assert loop.time() - started_s >= 0.05 - 1e-3
