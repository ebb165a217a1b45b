"""Permits compared with plain counts, with an injected clock."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from frameworks.core.errors import Overloaded
from frameworks.scheduling.admission import Permit, RequestLimit
from tests.support.clocks import Clock

PROCESSES = 3
NAMES = ("server", "one model", "other model")
Bounds = list[tuple[int | None, int | None]]

optional_bounds = st.none() | st.integers(1, 4)
processes = st.integers(0, PROCESSES - 1)


@dataclass(eq=False)
class Holder:
    """A permit of a process, and its expected state. `model`: the index of its limit."""

    permit: Permit
    process: int
    model: int = 0
    places: int = 0
    is_suspended: bool = False


class Admission(RuleBasedStateMachine):
    """A server and two models; requests are admitted, queued, started and released in any order.

    `limits`: of each process. Here there is one process.
    """

    holders: "Bundle[Holder]" = Bundle("holders")

    @initialize(bounds=st.lists(st.tuples(optional_bounds, optional_bounds), min_size=3, max_size=3))
    def create_limits(self, bounds: Bounds) -> None:
        self.clock = Clock()
        self.bounds = bounds
        self.admitted: list[Holder] = []
        self.limits = self.limits_of_processes()

    def limits_of_processes(self) -> list[list[RequestLimit]]:
        limits = [RequestLimit(name, *each, self.clock) for name, each in zip(NAMES, self.bounds, strict=True)]
        return [limits]

    def inflight(self, index: int) -> int:
        return sum(index in (0, holder.model) and not holder.is_suspended for holder in self.admitted)

    def waiting(self, index: int) -> int:
        return sum(holder.places for holder in self.admitted if index in (0, holder.model))

    def queue_is_full(self, index: int, places: int = 1, own: int = 0) -> bool:
        """`own`: places of the request itself, which do not make a queue busy."""
        waiting, most = self.waiting(index), self.bounds[index][0]
        return most is not None and waiting > own and waiting + places > most

    def is_full(self, index: int, places: int = 1) -> bool:
        most = self.bounds[index][1]
        return self.queue_is_full(index, places) or (most is not None and self.inflight(index) >= most)

    @rule(target=holders, process=processes)
    def admit(self, process: int) -> MultipleResults[Holder]:
        process %= len(self.limits)
        server = self.limits[process][0]
        if self.is_full(0):
            with pytest.raises(Overloaded, match="server: "):
                Permit(server)
            return multiple()
        holder = Holder(Permit(server), process)
        self.admitted.append(holder)
        return multiple(holder)

    @rule(holder=holders, index=st.integers(1, 2), places=st.sampled_from([1, 1, 2, 6]))
    def queue(self, holder: Holder, index: int, places: int) -> None:
        if holder not in self.admitted or holder.model or holder.is_suspended:
            return
        model = self.limits[holder.process][index]
        if self.queue_is_full(0, places) or self.is_full(index, places):
            refuser = NAMES[0 if self.queue_is_full(0, places) else index]
            with pytest.raises(Overloaded, match=f"{refuser}: ") as refused:
                holder.permit.queue(model, places)
            assert 0 < refused.value.retry_after_s <= 600
        else:
            holder.permit.queue(model, places)
            holder.model, holder.places = index, places

    @rule(holder=holders, more=st.integers(0, 3))
    def queue_more(self, holder: Holder, more: int) -> None:
        """A request that waited for a load is decoded, and asks for several texts."""
        if holder not in self.admitted or not holder.model:
            return
        model = self.limits[holder.process][holder.model]
        is_full = any(self.queue_is_full(index, more, holder.places) for index in (0, holder.model))
        if holder.places and more and is_full:
            with pytest.raises(Overloaded):
                holder.permit.queue(model, holder.places + more)
            return
        holder.permit.queue(model, holder.places + more)
        holder.places += more if holder.places else 0

    @rule(holder=holders)
    def suspend(self, holder: Holder) -> None:
        if holder in self.admitted and not holder.model and not holder.is_suspended:
            holder.permit.suspend()
            holder.is_suspended = True

    @rule(holder=holders)
    def resume(self, holder: Holder) -> None:
        if holder not in self.admitted or not holder.is_suspended:
            return
        if self.is_full(0):
            with pytest.raises(Overloaded, match="server: "):
                holder.permit.resume()
        else:
            holder.permit.resume()
            holder.is_suspended = False

    @rule(holder=holders)
    def begin(self, holder: Holder) -> None:
        if holder in self.admitted and holder.model:
            holder.permit.begin()
            holder.places = 0

    @rule(holder=holders)
    def begin_text(self, holder: Holder) -> None:
        if holder in self.admitted and holder.model:
            holder.permit.begin_text()
            holder.places = max(0, holder.places - 1)

    @rule(holder=consumes(holders))
    def release(self, holder: Holder) -> None:
        if holder in self.admitted:
            holder.permit.release()
            self.admitted.remove(holder)

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @invariant()
    def each_process_counts_all_and_holds_bounds(self) -> None:
        for limits in getattr(self, "limits", []):
            for index, limit in enumerate(limits):
                self.check(index, limit)

    def check(self, index: int, limit: RequestLimit) -> None:
        assert (limit.inflight, limit.waiting) == (self.inflight(index), self.waiting(index))
        # Above the bound are at most the places of one request, which found the queue empty.
        most = max((holder.places for holder in self.admitted), default=0)
        assert limit.max_queue_size is None or 0 <= limit.waiting <= max(limit.max_queue_size, most)
        assert limit.max_concurrent_requests is None or limit.inflight <= limit.max_concurrent_requests
        if self.is_full(index):
            with pytest.raises(Overloaded):
                limit.check_room()
        else:
            limit.check_room()
        assert 0 < limit.seconds_to_drain(1) <= 600

    def teardown(self) -> None:
        for holder in getattr(self, "admitted", []):
            holder.permit.release()
        self.admitted = []
        self.each_process_counts_all_and_holds_bounds()


Admission.TestCase.settings = settings(max_examples=75, stateful_step_count=40)
TestAdmission = Admission.TestCase


class LimitedModel:
    """A model with a limit that runs its requests one by one."""

    def __init__(self, max_queue_size: int | None = None) -> None:
        self.clock = Clock()
        self.server = RequestLimit("the server", None, None, self.clock)
        self.limit = RequestLimit("m", max_queue_size, None, self.clock)

    def enqueue(self) -> Permit:
        """Admit a request and queue it for the model."""
        permit = Permit(self.server)
        permit.queue(self.limit)
        return permit

    def run(self, permits: list[Permit], every_s: float) -> None:
        """Run requests one after another, each with this duration."""
        for permit in permits:
            self.clock.now_s += every_s
            permit.begin()
            permit.release()


def test_retry_after_is_drain_time_of_queue() -> None:
    """Ten answers per second and twenty queued requests give two seconds."""
    model = LimitedModel(max_queue_size=20)
    model.run([model.enqueue() for _ in range(20)], every_s=0.1)
    waiting = [model.enqueue() for _ in range(20)]
    with pytest.raises(
        Overloaded, match=r"m: 20 requests are waiting, its max_queue_size; try again in 2\.000"
    ) as full:
        model.enqueue()
    assert full.value.retry_after_s == pytest.approx(2.0)
    assert model.limit.inflight == 20, "a refused request is not counted"
    assert model.server.inflight == 21, "the server counts a request that the model refused"
    model.run(waiting, every_s=0.1)
    assert (model.limit.inflight, model.limit.waiting) == (0, 0)


def test_retry_after_defaults_to_one_second() -> None:
    model = LimitedModel()
    assert model.limit.seconds_to_drain(20) == 1.0
    model.enqueue()
    model.clock.now_s += 1000
    assert model.limit.seconds_to_drain(20) == 1.0


def test_idle_time_does_not_lower_rate() -> None:
    model = LimitedModel()
    for _ in range(10):
        model.run([model.enqueue()], every_s=0.1)
        model.clock.now_s += 3600
    assert model.limit.seconds_to_drain(20) == pytest.approx(2.0)
    model.enqueue()
    assert model.limit.seconds_to_drain(20) == pytest.approx(2.0)


def test_stalled_queue_raises_retry_after() -> None:
    model = LimitedModel()
    model.run([model.enqueue() for _ in range(10)], every_s=0.1)
    model.enqueue()
    estimates = []
    for _ in range(5):
        estimates.append(model.limit.seconds_to_drain(10))
        model.clock.now_s += 10
    assert estimates == pytest.approx([1.0, 11.0, 21.0, 31.0, 41.0])
    model.clock.now_s += 1e6
    assert model.limit.seconds_to_drain(10) == 600


def test_rate_is_that_of_recent_answers() -> None:
    model = LimitedModel()
    model.run([model.enqueue() for _ in range(200)], every_s=5.0)
    model.run([model.enqueue() for _ in range(64)], every_s=0.01)
    assert model.limit.seconds_to_drain(100) == pytest.approx(1.0)


def test_cancelled_requests_do_not_raise_rate() -> None:
    model = LimitedModel()
    for _ in range(10):
        one, *cancelled = [model.enqueue() for _ in range(10)]
        for permit in cancelled:
            permit.release()
        model.run([one], every_s=1.0)
    assert model.limit.seconds_to_drain(10) == pytest.approx(10.0)


def test_request_in_progress_counts_from_admission() -> None:
    """The bound of the server counts requests whose body is still being read."""
    limit = RequestLimit("the server", 1, 2, Clock())
    first, second = Permit(limit), Permit(limit)
    with pytest.raises(Overloaded, match="the server: 2 requests are in flight, its max_concurrent_requests"):
        Permit(limit)
    first.release()
    third = Permit(limit)
    model = RequestLimit("m", None, None)
    second.queue(model)
    with pytest.raises(Overloaded, match="the server: 1 requests are waiting, its max_queue_size"):
        third.queue(model)
    second.begin()
    second.begin()  # a second call has no effect
    third.queue(model)
    assert (limit.inflight, limit.waiting, model.inflight, model.waiting) == (2, 1, 2, 1)


def test_request_for_texts_takes_a_place_for_each() -> None:
    server, model = RequestLimit("the server", 100, None, Clock()), RequestLimit("m", 8, None, Clock())
    first, second, third = Permit(server), Permit(server), Permit(server)
    first.queue(model, 6)
    with pytest.raises(
        Overloaded, match="m: 6 requests are waiting, this one counts as 3, and the max_queue_size is 8; try again"
    ):
        second.queue(model, 3)
    second.queue(model, 2)
    with pytest.raises(Overloaded, match="m: 8 requests are waiting, its max_queue_size"):
        third.check_room(model)
    first.begin_text()
    assert (model.waiting, server.waiting) == (7, 7)
    third.queue(model)
    first.release()
    assert (model.inflight, model.waiting, server.waiting) == (2, 3, 3)


def test_empty_queue_accepts_more_texts_than_bound() -> None:
    """Else the request would never be answered."""
    server, model = RequestLimit("the server", 4, None, Clock()), RequestLimit("m", 4, None, Clock())
    first, second = Permit(server), Permit(server)
    first.queue(model)
    first.queue(model, 16)  # after a wait for the load
    assert (server.waiting, model.waiting) == (16, 16)
    with pytest.raises(Overloaded):
        second.queue(model)
    for _ in range(13):
        first.begin_text()
    second.queue(model)
    assert model.waiting == 4
