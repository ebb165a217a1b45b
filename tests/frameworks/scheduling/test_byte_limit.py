"""The count of all bodies in progress: bounded, and 0 when no request holds any."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from frameworks.core.errors import Overloaded
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.byte_limit import ByteHold, ByteLimit

MAX_BYTES = 1000
sizes = st.integers(0, 2 * MAX_BYTES)


class Counts(RuleBasedStateMachine):
    """Holds grow, shrink and are released in any order."""

    holds: "Bundle[ByteHold]" = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.limit = ByteLimit(MAX_BYTES)
        self.model: dict[ByteHold, int] = {}
        self.most_forced = 0

    @rule(target=holds)
    def open(self) -> ByteHold:
        hold = self.limit.hold()
        self.model[hold] = 0
        return hold

    def others(self, hold: ByteHold) -> int:
        return sum(size for each, size in self.model.items() if each is not hold)

    @rule(hold=holds, more=sizes)
    def grow(self, hold: ByteHold, more: int) -> None:
        total = sum(self.model.values()) + more
        if not more or total <= MAX_BYTES or not self.others(hold):
            if more:
                hold.check_room(more)
            hold.grow(more)
            self.model[hold] += more
        else:
            with pytest.raises(Overloaded, match=r"server\.max_buffered_bytes: expected at most 1000 bytes") as refused:
                hold.check_room(more)
            assert refused.value.retry_after_s >= 1
            with pytest.raises(Overloaded):
                hold.grow(more)
            assert not hold.try_grow(more)

    @rule(hold=holds, total=sizes)
    def resize(self, hold: ByteHold, total: int) -> None:
        others = self.others(hold)
        if total <= self.model[hold] or not others or others + total <= MAX_BYTES:
            hold.resize(total)
            self.model[hold] = total
        else:
            with pytest.raises(Overloaded):
                hold.resize(total)

    @rule(hold=holds, more=sizes)
    def add(self, hold: ByteHold, more: int) -> None:
        hold.add(more)
        self.model[hold] += more

    @rule(hold=consumes(holds), more=sizes)
    def release(self, hold: ByteHold, more: int) -> None:
        hold.release()
        del self.model[hold]
        # A thread may still work for the request.
        assert not hold.try_grow(more)
        hold.add(more)
        hold.release()

    @invariant()
    def counts_match(self) -> None:
        assert self.limit.held_bytes == sum(self.model.values())
        assert all(hold.held_bytes == size for hold, size in self.model.items())

    def teardown(self) -> None:
        for hold in self.model:
            hold.release()
        assert self.limit.held_bytes == 0


Counts.TestCase.settings = settings(max_examples=75, stateful_step_count=30)
TestCounts = Counts.TestCase


def test_only_request_is_never_refused() -> None:
    limit = ByteLimit(10)
    with limit.hold() as alone, limit.hold() as second:
        alone.grow(8)
        alone.grow(100)
        with pytest.raises(Overloaded):
            second.grow(1)
        alone.resize(0)
        second.grow(11)
    assert limit.held_bytes == 0


def test_no_bound_accepts_all() -> None:
    limit = ByteLimit(None)
    with limit.hold() as first, limit.hold() as second:
        first.grow(2**60)
        second.check_room(2**60)
        second.grow(2**60)
        assert limit.held_bytes == 2**61


def test_threads_lose_no_count() -> None:
    limit = ByteLimit(None)

    def count(_: int) -> None:
        with limit.hold() as hold:
            for _ in range(2000):
                hold.grow(3)
                hold.add(-2)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(8)))
    assert limit.held_bytes == 0


def test_permit_releases_its_bytes() -> None:
    server = RequestLimit("the server", None, None, byte_limit=ByteLimit(100))
    permit = Permit(server)
    permit.hold_bytes().grow(60)
    assert permit.hold_bytes() is permit.held_bytes
    assert server.byte_limit.held_bytes == 60
    permit.release()
    assert server.byte_limit.held_bytes == 0
