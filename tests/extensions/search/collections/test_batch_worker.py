"""The thread of a collection: which jobs share a batch."""

import asyncio
import time
from collections.abc import Callable, Coroutine

import pytest

from extensions.search.collections.batch_worker import BatchWorker

# Times the millisecond of a batch: longer than any test, and never longer than a thread can wait.
FOREVER = 1e5


class Batches:
    """Notes the sizes of batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, jobs: list[int]) -> list[int | Exception]:
        self.sizes.append(len(jobs))
        time.sleep(0.001)
        return [2 * job for job in jobs]


def with_worker(
    work: Callable[["BatchWorker[int, int]"], Coroutine[None, None, None]], gather_share: float
) -> list[int]:
    batches = Batches()

    async def run() -> None:
        worker: BatchWorker[int, int] = BatchWorker("test", batches, gather_share=gather_share)
        await work(worker)
        await worker.close()

    asyncio.run(run())
    return batches.sizes


async def together(worker: "BatchWorker[int, int]", count: int) -> list[int]:
    return await asyncio.gather(*(worker.run(job) for job in range(count)))


async def one_after_another(worker: "BatchWorker[int, int]", count: int) -> list["asyncio.Task[int]"]:
    tasks = []
    for job in range(count):
        tasks.append(asyncio.create_task(worker.run(job)))
        await asyncio.sleep(0.01)
    return tasks


def test_batch_waits_for_as_many_as_the_last() -> None:
    async def work(worker: "BatchWorker[int, int]") -> None:
        assert await together(worker, 3) == [0, 2, 4]
        tasks = await one_after_another(worker, 3)
        assert await asyncio.gather(*tasks) == [0, 2, 4]

    assert with_worker(work, FOREVER) == [3, 3]


def test_lone_caller_does_not_wait() -> None:
    async def work(worker: "BatchWorker[int, int]") -> None:
        for _ in range(3):
            assert await worker.run(2) == 4

    assert with_worker(work, FOREVER) == [1, 1, 1]


@pytest.mark.parametrize("gather_share", [0.0, 1e-3])
def test_batch_waits_no_longer_than_its_share(gather_share: float) -> None:
    async def work(worker: "BatchWorker[int, int]") -> None:
        await together(worker, 3)
        assert await worker.run(1) == 2

    assert with_worker(work, gather_share) == [3, 1]


def test_close_ends_the_wait() -> None:
    async def work(worker: "BatchWorker[int, int]") -> None:
        await together(worker, 3)
        task = asyncio.create_task(worker.run(1))
        await asyncio.sleep(0.01)
        await worker.close()
        assert await task == 2

    assert with_worker(work, FOREVER) == [3, 1]
