"""The bound on prepared images: requests wait in order, and a cancelled one holds nothing."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.engine.threads import (
    LONG_THREADS,
    SHORT_CHARACTERS,
    ImageMemoryLimit,
    TokenizerThreads,
    size_of_prompt,
    split,
)
from frameworks.generation.types import Conversation, Message
from tests.support.loops import HANGS_AFTER_S, in_loop, settle, task


class Holder:
    """A request that holds bytes until `end` is set."""

    def __init__(self, budget: ImageMemoryLimit, nbytes: int) -> None:
        self.has_begun = False
        self.end = asyncio.Event()
        self.task = task(self._run(budget, nbytes))

    async def _run(self, budget: ImageMemoryLimit, nbytes: int) -> None:
        await budget.hold(nbytes)
        try:
            self.has_begun = True
            await self.end.wait()
        finally:
            budget.release(nbytes)


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


LONG_TEXT = 1_000_000


@pytest.fixture
def threads() -> Iterator[TokenizerThreads]:
    threads = TokenizerThreads()
    yield threads
    threads.close()


@given(st.lists(st.integers(0, 200_000), max_size=60) | st.integers(0, 5000).map(lambda count: [30] * count))
def test_pieces_are_bounded_and_cover_list(sizes: list[int]) -> None:
    pieces = list(split(sizes))
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    assert pieces[-1].stop == len(sizes)
    for piece in pieces:
        assert piece.characters <= 16 * 1024 or piece.stop - piece.start == 1
        assert piece.stop - piece.start <= 256


def test_size_of_prompt_counts_characters_and_messages() -> None:
    assert size_of_prompt("abc") == size_of_prompt((1, 2, 3)) == 3
    assert size_of_prompt(Conversation((Message("user", "abc"), Message("user", "")))) == 3 + 2 * 64


@in_loop
async def test_short_work_passes_long_work(threads: TokenizerThreads) -> None:
    may_end = threading.Event()
    held = [threads.run(LONG_TEXT, may_end.wait, HANGS_AFTER_S) for _ in range(LONG_THREADS + 3)]
    assert await threads.run(SHORT_CHARACTERS, lambda: "short") == "short"
    assert not any(each.done() for each in held)
    may_end.set()
    assert all(await asyncio.gather(*held))


@in_loop
async def test_short_list_is_one_piece_in_short_lane(threads: TokenizerThreads) -> None:
    def name(start: int, stop: int) -> tuple[str, int, int]:
        return threading.current_thread().name, start, stop

    [(thread, start, stop)] = await threads.run_pieces([100] * 10, name)
    assert (thread.startswith("tokenize-short"), start, stop) == (True, 0, 10)
    [(thread, _, stop)] = await threads.run_pieces([20_000], name)
    assert (thread.startswith("tokenize-long"), stop) == (True, 1)
    assert len(await threads.run_pieces([], name)) == 1


@in_loop
async def test_pieces_of_two_lists_take_turns(threads: TokenizerThreads) -> None:
    begun: list[str] = []
    may_end = threading.Event()

    async def run(list_name: str) -> list[tuple[int, int]]:
        def work(start: int, stop: int) -> tuple[int, int]:
            begun.append(list_name)
            assert may_end.wait(HANGS_AFTER_S)
            return start, stop

        return await threads.run_pieces([32 * 1024] * 8, work)

    both = [asyncio.create_task(run(name)) for name in "ab"]
    await asyncio.sleep(0)
    may_end.set()
    results = await asyncio.gather(*both)
    assert results == [[(i, i + 1) for i in range(8)]] * 2
    assert begun.index("b") <= LONG_THREADS, "the second list does not wait for the end of the first"


@in_loop
async def test_first_error_in_order_is_raised(threads: TokenizerThreads) -> None:
    later_failed = threading.Event()

    def fail(start: int, stop: int) -> None:
        if start == 0:
            assert later_failed.wait(HANGS_AFTER_S)
        else:
            later_failed.set()
        raise ValueError(start)

    with pytest.raises(ValueError, match=r"^0$"):
        await threads.run_pieces([60_000, 60_000, 60_000], fail)


@in_loop
async def test_pieces_after_cancellation_never_run(threads: TokenizerThreads) -> None:
    begun: list[int] = []
    may_end = threading.Event()
    has_begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(start: int, stop: int) -> None:
        begun.append(start)
        loop.call_soon_threadsafe(has_begun.set)
        assert may_end.wait(HANGS_AFTER_S)

    task = asyncio.create_task(threads.run_pieces([60_000] * 9, work))
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    await asyncio.gather(*(threads.run(LONG_TEXT, lambda: None) for _ in range(LONG_THREADS)))
    assert len(begun) <= LONG_THREADS
