"""Test that short work passes long work, and that the pieces of long lists take turns."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.engine.threads.tokenizer_threads import (
    LONG_THREADS,
    SHORT_CHARACTERS,
    TokenizerThreads,
    size_of_prompt,
    split,
)
from frameworks.generation.types import Conversation, Message
from tests.support.loops import HANGS_AFTER_S, in_loop

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
