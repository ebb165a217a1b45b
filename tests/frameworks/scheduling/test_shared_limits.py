"""The count of all bodies in progress over several processes, each with views of its own of the same memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from app.auth.errors import QuotaExceeded
from frameworks.core.errors import Overloaded
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.byte_limit import ByteHold
from frameworks.scheduling.shared_limits import SharedByteLimit, SharedLimits, SharedRequestLimit, request_limit
from tests.frameworks.scheduling.test_admission import NAMES, PROCESSES, Admission, processes
from tests.frameworks.scheduling.test_byte_limit import MAX_BYTES, Counts
from tests.support.clocks import Clock


def views(max_bytes: int | None) -> list[SharedByteLimit]:
    """Return a limit as each process sees it."""
    shared, limits = SharedLimits(PROCESSES, []), []
    for process in range(PROCESSES):
        shared.use(process)
        limits.append(SharedByteLimit(shared.server(), max_bytes))
    return limits


class SharedCounts(Counts):
    """As Counts; each hold is that of the process which opens it."""

    def __init__(self) -> None:
        super().__init__()
        self.views = views(MAX_BYTES)
        self.limit = self.views[0]

    @rule(target=Counts.holds, process=st.integers(0, PROCESSES - 1))
    def open_in(self, process: int) -> ByteHold:
        hold = self.views[process].hold()
        self.model[hold] = 0
        return hold


SharedCounts.TestCase.settings = settings(max_examples=75, stateful_step_count=30)
TestSharedCounts = SharedCounts.TestCase


def test_only_request_of_all_processes_grows() -> None:
    first, second, _ = views(10)
    with first.hold() as alone, second.hold() as other:
        alone.grow(8)
        alone.grow(100)
        with pytest.raises(Overloaded, match="got 108 and 1 more"):
            other.grow(1)
        alone.resize(0)
        other.grow(11)
    assert first.held_bytes == 0


def test_tenant_bound_within_server_bound() -> None:
    shared = SharedLimits(2, ["search"])
    servers, tenants = [], []
    for process in range(2):
        shared.use(process)
        servers.append(SharedByteLimit(shared.server(), 100))
        tenants.append(SharedByteLimit(shared.tenant("search").row, 10, "tenant", QuotaExceeded, servers[-1]))
    with tenants[0].hold() as first, tenants[1].hold() as second, servers[1].hold() as other:
        first.grow(6)
        with pytest.raises(QuotaExceeded, match="tenant: expected at most 10 bytes"):
            second.grow(5)
        second.grow(4)
        with pytest.raises(Overloaded, match=r"server\.max_buffered_bytes"):
            other.grow(91)
        assert (servers[0].held_bytes, tenants[0].held_bytes) == (10, 10)


class SharedAdmission(Admission):
    """As Admission; each process has limits of its own, and is lost and replaced at any time."""

    def limits_of_processes(self) -> list[list[RequestLimit]]:
        self.shared = SharedLimits(PROCESSES, [])
        self.model_rows = [self.shared.allocate_row() for _ in NAMES[1:]]
        return [self.limits_of(process) for process in range(PROCESSES)]

    def limits_of(self, process: int) -> list[RequestLimit]:
        """Create the limits of a process."""
        self.shared.use(process)
        rows = [self.shared.server(), *map(self.shared.model, self.model_rows)]
        parts = zip(rows, NAMES, self.bounds, strict=True)
        return [request_limit(row, name, *bounds, self.clock) for row, name, bounds in parts]

    @rule(process=processes)
    def lose(self, process: int) -> None:
        """The process is killed, and another one is started in its place."""
        self.shared.release(process)
        self.admitted = [each for each in self.admitted if each.process != process]
        self.limits[process] = self.limits_of(process)

    def teardown(self) -> None:
        super().teardown()
        assert not hasattr(self, "shared") or not self.shared._counters._lines().any()


SharedAdmission.TestCase.settings = settings(max_examples=75, stateful_step_count=40)
TestSharedAdmission = SharedAdmission.TestCase


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
