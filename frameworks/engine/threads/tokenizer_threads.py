"""Run work on texts off the event loop, so that short work never waits for long work."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from math import inf
from typing import NamedTuple, TypeVar, TypeVarTuple

from frameworks.core.cpus import usable_cpus
from frameworks.generation.types import Conversation, Message, Prompt

SHORT_CHARACTERS = 16 * 1024
"""Work up to this size takes about 20 ms."""
_PIECE_CHARACTERS = SHORT_CHARACTERS
_MAX_COUNTED = 32 * 1024
# Text after text, besides the characters of each.
_CHARACTERS_PER_TEXT = 64
LONG_THREADS = min(8, max(2, usable_cpus() // 2))
"""A GPU needs several to keep up with it. More would leave too few CPUs to the models, and memory has a bound too."""

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class WorkChunk(NamedTuple):
    """A part of a list, and the work of its elements in characters."""

    start: int
    stop: int
    characters: int


class TokenizerThreads:
    """One thread for short work and a few for long work. Each is a queue: what arrives first is done first.

    Tokenizers release the interpreter's lock, and use no threads of their own.
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(1, thread_name_prefix="tokenize-short")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="tokenize-long")

    def run(
        self, characters: float, work: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> "asyncio.Future[Result]":
        """Return the future of `work(*arguments)`. `characters`: its size, as the number of characters to tokenize."""
        threads = self._short if characters <= SHORT_CHARACTERS else self._long
        return asyncio.get_running_loop().run_in_executor(threads, work, *arguments)

    async def run_pieces(self, sizes: Iterable[int], work: Callable[[int, int], Result]) -> list[Result]:
        """Return the results of `work(start, stop)` for bounded pieces of a list, in order.

        `sizes`: in characters, of each element. A request has at most LONG_THREADS pieces in the queue, so that the
        pieces of several requests take turns. Raises the error of the first piece that fails.
        """
        pieces = split(sizes)
        running = list(islice(pieces, LONG_THREADS))
        if len(running) == 1:
            [piece] = running
            return [await self.run(piece.characters, work, piece.start, piece.stop)]
        results: list[Result] = []
        while running:
            futures = [self.run(inf, work, piece.start, piece.stop) for piece in running]
            # All of them end, so that the first error in the order of the list is raised.
            for outcome in await asyncio.gather(*futures, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                results.append(outcome)
            running = list(islice(pieces, LONG_THREADS))
        return results

    def close(self) -> None:
        """End the threads; queued work is dropped."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


def size_of_prompt(prompt: Prompt) -> int:
    """Return the work of a prompt, in characters."""
    if isinstance(prompt, Conversation):
        return len(prompt.tools) + sum(map(_size_of_message, prompt.messages))
    return len(prompt)


def _size_of_message(message: Message) -> int:
    calls = sum(len(call.arguments) + _CHARACTERS_PER_TEXT for call in message.tool_calls)
    return len(message.content) + len(message.reasoning) + calls + _CHARACTERS_PER_TEXT


def split(sizes: Iterable[int]) -> Iterator[WorkChunk]:
    """Return pieces of about equal work; one piece for an empty list. Lazy: a list may have 100,000 elements."""
    start, stop, total = 0, 0, 0
    for size in sizes:
        # Of a long text only a part is tokenized.
        own = min(size, _MAX_COUNTED) + _CHARACTERS_PER_TEXT
        if total and total + own > _PIECE_CHARACTERS:
            yield WorkChunk(start, stop, total)
            start, total = stop, 0
        stop += 1
        total += own
    yield WorkChunk(start, stop, total)
