"""The count of all bodies in progress over several processes, each with views of its own of the same memory."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from app.auth.errors import QuotaExceeded
from frameworks.core.errors import Overloaded
from frameworks.scheduling.byte_limit import ByteHold
from frameworks.scheduling.shared_bytes import SharedByteLimit
from frameworks.scheduling.shared_limits import SharedLimits
from tests.frameworks.scheduling.test_byte_limit import MAX_BYTES, Counts

PROCESSES = 3


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
