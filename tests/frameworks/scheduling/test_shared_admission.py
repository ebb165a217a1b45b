"""Permits of several processes compared with plain counts. Each process has views of its own of the same memory."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
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

from frameworks.errors import Overloaded
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.shared_admission import SharedRequestLimit, request_limit
from frameworks.scheduling.shared_limits import SharedLimits
from tests.support.clocks import Clock

PROCESSES = 3
optional_bounds = st.none() | st.integers(1, 5)
processes = st.integers(0, PROCESSES - 1)
Bounds = tuple[int | None, int | None]


@dataclass(eq=False)
class Holder:
    """A permit of a process, and its expected state."""

    permit: Permit
    process: int
    is_queued: bool = False
    places: int = 0
    is_suspended: bool = False


class Processes(RuleBasedStateMachine):
    """A server and a model; requests of three processes, which are lost and replaced at any time."""

    holders: "Bundle[Holder]" = Bundle("holders")

    @initialize(server=st.tuples(optional_bounds, optional_bounds), model=st.tuples(optional_bounds, optional_bounds))
    def create_limits(self, server: Bounds, model: Bounds) -> None:
        self.clock = Clock()
        self.shared = SharedLimits(PROCESSES, [])
        self.bounds = {"server": server, "model": model}
        self.model_row = self.shared.allocate_row()
        self.limits = [self.limits_of(process) for process in range(PROCESSES)]
        self.admitted: list[Holder] = []

    def limits_of(self, process: int) -> tuple[RequestLimit, RequestLimit]:
        """Create the limits of a process."""
        self.shared.use(process)
        return (
            request_limit(self.shared.server(), "server", *self.bounds["server"], self.clock),
            request_limit(self.shared.model(self.model_row), "model", *self.bounds["model"], self.clock),
        )

    def inflight(self, name: str) -> int:
        return sum(not each.is_suspended and (name == "server" or each.is_queued) for each in self.admitted)

    def queue_is_full(self, name: str, places: int, own: int = 0) -> bool:
        waiting, most = sum(each.places for each in self.admitted), self.bounds[name][0]
        return most is not None and waiting > own and waiting + places > most

    def is_full(self, name: str, places: int = 1) -> bool:
        most = self.bounds[name][1]
        return self.queue_is_full(name, places) or (most is not None and self.inflight(name) >= most)

    @rule(target=holders, process=processes)
    def admit(self, process: int) -> MultipleResults[Holder]:
        server, _ = self.limits[process]
        if self.is_full("server"):
            with pytest.raises(Overloaded, match="server: "):
                Permit(server)
            return multiple()
        holder = Holder(Permit(server), process)
        self.admitted.append(holder)
        return multiple(holder)

    @rule(holder=holders, places=st.sampled_from([1, 1, 2, 7]))
    def queue(self, holder: Holder, places: int) -> None:
        if holder not in self.admitted or holder.is_queued or holder.is_suspended:
            return
        _, model = self.limits[holder.process]
        if self.queue_is_full("server", places) or self.is_full("model", places):
            refuser = "server: " if self.queue_is_full("server", places) else "model: "
            with pytest.raises(Overloaded, match=refuser) as refused:
                holder.permit.queue(model, places)
            assert 0 < refused.value.retry_after_s <= 600
            return
        holder.permit.queue(model, places)
        holder.is_queued, holder.places = True, places

    @rule(holder=holders, more=st.integers(1, 3))
    def queue_more(self, holder: Holder, more: int) -> None:
        if holder not in self.admitted or not holder.places:
            return
        _, model = self.limits[holder.process]
        if any(self.queue_is_full(name, more, holder.places) for name in self.bounds):
            with pytest.raises(Overloaded):
                holder.permit.queue(model, holder.places + more)
            return
        holder.permit.queue(model, holder.places + more)
        holder.places += more

    @rule(holder=holders)
    def suspend_or_resume(self, holder: Holder) -> None:
        if holder not in self.admitted or holder.is_queued:
            return
        if not holder.is_suspended:
            holder.permit.suspend()
        elif self.is_full("server"):
            with pytest.raises(Overloaded, match="server: "):
                holder.permit.resume()
            return
        else:
            holder.permit.resume()
        holder.is_suspended = not holder.is_suspended

    @rule(holder=holders)
    def begin(self, holder: Holder) -> None:
        if holder in self.admitted and holder.is_queued:
            holder.permit.begin()
            holder.places = 0

    @rule(holder=consumes(holders))
    def release(self, holder: Holder) -> None:
        if holder in self.admitted:
            holder.permit.release()
            self.admitted.remove(holder)

    @rule(process=processes)
    def lose(self, process: int) -> None:
        """The process is killed, and another one is started in its place."""
        self.shared.release(process)
        self.admitted = [each for each in self.admitted if each.process != process]
        self.limits[process] = self.limits_of(process)

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @invariant()
    def each_process_sees_all_counts(self) -> None:
        waiting = sum(each.places for each in getattr(self, "admitted", []))
        for server, model in getattr(self, "limits", []):
            assert (server.inflight, server.waiting) == (self.inflight("server"), waiting)
            assert (model.inflight, model.waiting) == (self.inflight("model"), waiting)
            for limit, name in ((server, "server"), (model, "model")):
                assert 0 < limit.seconds_to_drain(1) <= 600
                if self.is_full(name):
                    with pytest.raises(Overloaded):
                        limit.check_room()
                else:
                    limit.check_room()

    def teardown(self) -> None:
        if hasattr(self, "shared"):
            for holder in self.admitted:
                holder.permit.release()
            assert not self.shared._counters._lines().any()


Processes.TestCase.settings = settings(max_examples=75, stateful_step_count=40)
TestProcesses = Processes.TestCase


def two_processes(max_concurrent_requests: int, clock: Clock) -> list[SharedRequestLimit]:
    """Return a limit as two processes see it."""
    shared, limits = SharedLimits(2, []), []
    for process in range(2):
        shared.use(process)
        limits.append(SharedRequestLimit(shared.server(), "m", None, max_concurrent_requests, clock))
    return limits


@given(st.lists(st.tuples(st.sampled_from(["acquire", "complete", "cancel"]), st.floats(0, 10)), max_size=200))
def test_one_process_drains_as_without_sharing(steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    shared = two_processes(1000, clock)[0]
    own = RequestLimit("m", None, 1000, clock)
    for step, pause_s in steps:
        clock.now_s += pause_s
        for limit in (own, shared):
            if step == "acquire":
                limit.acquire()
            elif limit.own_inflight:
                limit.release(step == "complete")
        assert shared.seconds_to_drain(7) == pytest.approx(own.seconds_to_drain(7), rel=1e-6, abs=1e-5)


def test_retry_after_is_drain_time_of_all() -> None:
    """One process answers ten requests a second, the other one thirty: forty drain in one second."""
    clock = Clock()
    first, second = two_processes(40, clock)
    for limit in (first, second):
        for _ in range(20):
            limit.acquire()
    for tick in range(1, 601):
        clock.now_s += 1 / 30
        for limit in (first, second) if tick % 3 == 0 else (second,):
            limit.release(completed=True)
            limit.acquire()
    with pytest.raises(
        Overloaded, match=r"m: 40 requests are in flight, its max_concurrent_requests; try again in 1\.0"
    ):
        first.enter()
    for _ in range(20):
        second.release(completed=True)
    assert first.seconds_to_drain(20) == pytest.approx(2.0, rel=0.02), "a process without requests drains none"


def test_messages_show_counts_of_all() -> None:
    first, second = two_processes(3, Clock())
    permits = [Permit(first), Permit(first), Permit(second)]
    with pytest.raises(Overloaded, match="3 requests are in flight, its max_concurrent_requests"):
        Permit(second)
    permits[0].release()
    Permit(second)
