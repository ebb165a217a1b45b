"""Permits of several processes compared with plain counts. Each process has views of its own of the same memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from frameworks.core.errors import Overloaded
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.shared_admission import SharedRequestLimit, request_limit
from frameworks.scheduling.shared_limits import SharedLimits
from tests.frameworks.scheduling.test_admission import NAMES, PROCESSES, Admission, processes
from tests.support.clocks import Clock


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
