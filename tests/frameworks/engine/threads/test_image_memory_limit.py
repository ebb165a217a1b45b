"""The bound on prepared images: requests wait in order, and a cancelled one holds nothing."""

import asyncio

from frameworks.engine.threads.image_memory_limit import ImageMemoryLimit
from tests.support.loops import in_loop, settle, task


class Holder:
    """A request that holds bytes until `end` is set."""

    def __init__(self, budget: ImageMemoryLimit, nbytes: int) -> None:
        self.has_begun = False
        self.end = asyncio.Event()
        self.task = task(self._run(budget, nbytes))

    async def _run(self, budget: ImageMemoryLimit, nbytes: int) -> None:
        async with budget.hold(nbytes):
            self.has_begun = True
            await self.end.wait()


@in_loop
async def test_requests_wait_in_order_for_room() -> None:
    budget = ImageMemoryLimit(10)
    first, second, third, small = (Holder(budget, nbytes) for nbytes in (6, 5, 4, 1))
    await settle()
    assert [each.has_begun for each in (first, second, third, small)] == [True, False, False, False]
    first.end.set()
    await settle()
    assert [each.has_begun for each in (second, third, small)] == [True, True, True]
    assert budget.held_bytes == 10
    for each in (second, third, small):
        each.end.set()
    await settle()
    assert budget.held_bytes == 0


@in_loop
async def test_request_above_the_bound_runs_alone() -> None:
    budget = ImageMemoryLimit(10)
    huge, small = Holder(budget, 50), Holder(budget, 1)
    await settle()
    assert (huge.has_begun, small.has_begun) == (True, False)
    huge.end.set()
    await settle()
    assert small.has_begun
    small.end.set()


@in_loop
async def test_cancelled_requests_hold_nothing() -> None:
    budget = ImageMemoryLimit(10)
    first, second, third = (Holder(budget, nbytes) for nbytes in (6, 6, 3))
    await settle()
    second.task.cancel()
    await settle()
    assert third.has_begun
    fourth = Holder(budget, 8)
    await settle()
    first.end.set()
    third.end.set()
    await asyncio.sleep(0)
    # It is cancelled in the round in which it is granted the bytes.
    fourth.task.cancel()
    await settle()
    assert budget.held_bytes == 0
    assert not fourth.task.done() or fourth.task.cancelled()
