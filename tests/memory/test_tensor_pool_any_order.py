"""The pool with leases, releases and deleted views in any order and thread: no byte is shared, stats add up."""

import random
import threading

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from memory.buffers import Array
from memory.settings import MemorySettings
from memory.tensor_pool import HOST, Lease, LeaseEnded, TensorPool, TensorTooLarge

BYTES = np.dtype(np.uint8)
SETTINGS = MemorySettings(pool_size=5, max_tensor_size=4096, max_allocated=16384, gc_threshold=0.8)


class PoolMachine(RuleBasedStateMachine):
    """`held`: leases in use, each with the number written into all its bytes: shared bytes would show."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.pool = TensorPool(SETTINGS, checks=True)
        self.held: dict[int, tuple[Lease, int]] = {}
        self.views: list[tuple[Array, int]] = []
        self.number = 0
        self.asked = 0

    def next_number(self) -> int:
        self.number = (self.number + 1) % 251
        return self.number

    @rule(target=leases, size=st.integers(0, 4096))
    def lease(self, size: int) -> Lease:
        lease = self.pool.lease((size,), BYTES)
        self.asked += 1
        self.held[id(lease)] = lease, self.next_number()
        lease.array[:] = self.number
        return lease

    @rule(size=st.integers(4097, 10_000))
    def too_large(self, size: int) -> None:
        try:
            self.pool.lease((size,), BYTES)
        except TensorTooLarge:
            return
        raise AssertionError(size)

    @rule(lease=leases, elsewhere=st.booleans())
    def release(self, lease: Lease, elsewhere: bool) -> None:
        if self.held.pop(id(lease), None) is None:
            try:
                lease.release()
            except LeaseEnded:
                return
            raise AssertionError("released twice")
        run(lease.release, elsewhere)

    @rule(size=st.integers(1, 4096), cuts=st.integers(1, 4))
    def array(self, size: int, cuts: int) -> None:
        whole = self.pool.lease((size,), BYTES).array
        self.asked += 1
        whole[:] = self.next_number()
        self.views += [(part, self.number) for part in np.array_split(whole, cuts)]

    @rule(at=st.integers(0), elsewhere=st.booleans())
    def drop_view(self, at: int, elsewhere: bool) -> None:
        if self.views:
            dying = [self.views.pop(at % len(self.views))]
            run(dying.clear, elsewhere)

    @invariant()
    def leases_keep_their_content(self) -> None:
        for lease, number in self.held.values():
            assert (lease.array == number).all()
        for view, number in self.views:
            assert (view == number).all()

    @invariant()
    def stats_add_up(self) -> None:
        stats = self.pool.stats()[HOST]
        whole = {id(view.base.base if isinstance(view.base, np.ndarray) else view.base) for view, _ in self.views}
        assert stats.leases == len(self.held) + len(whole)
        assert stats.hits + stats.misses == self.asked
        assert stats.leased_bytes + stats.idle_bytes <= SETTINGS.max_allocated
        buffers = self.pool._devices[HOST]
        idle = [size for size, buffers in zip(self.pool._classes, buffers.idle, strict=True) for _ in buffers]
        assert stats.idle_bytes == sum(idle)
        assert not self.pool._returned
        # Idle buffers alone never exceed the threshold.
        assert stats.idle_bytes <= SETTINGS.gc_threshold * SETTINGS.max_allocated

    def teardown(self) -> None:
        for lease, _ in self.held.values():
            lease.release()
        self.views.clear()
        stats = self.pool.stats()[HOST]
        assert (stats.leased_bytes, stats.leases) == (0, 0)


TestPooled = PoolMachine.TestCase
TestPooled.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_threads_never_share_bytes() -> None:
    pool = TensorPool(SETTINGS, checks=True)
    wrong: list[str] = []

    def work(number: int) -> None:
        choose = random.Random(number)
        held: list[tuple[Array, int]] = []
        for step in range(400):
            array = pool.lease((choose.randint(1, 4096),), BYTES).array
            array[:] = number
            held.append((array, number))
            if len(held) > choose.randint(0, 4):
                old, own = held.pop(0)
                if not (old == own).all():
                    wrong.append(f"{number} at {step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    stats = pool.stats()[HOST]
    assert (stats.leased_bytes, stats.leases, stats.hits + stats.misses) == (0, 0, 8 * 400)


def run(action: object, elsewhere: bool) -> None:
    assert callable(action)
    if not elsewhere:
        action()
        return
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()
