"""Tokenize texts, and decode and prepare images, off the event loop: bounded threads that the engines share."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar, TypeVarTuple

from frameworks.core.cpus import usable_cpus
from frameworks.generation.types import Conversation, Message, Prompt

if TYPE_CHECKING:
    from frameworks.images.processor import Array, ImageProcessor

SHORT_CHARACTERS = 16 * 1024
"""Work up to this size takes about 20 ms."""
_PIECE_CHARACTERS = SHORT_CHARACTERS
_MAX_COUNTED = 32 * 1024
# Text after text, besides the characters of each.
_CHARACTERS_PER_TEXT = 64
# From this size on the arithmetic of a response would block the loop for about a millisecond: it runs on a thread.
_MANY_NUMBERS = 64 * 1024
_NUMBERS_PER_CHARACTER = 256  # as much work as the tokenizing of one
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

    async def compute(self, size: int, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return `work(*arguments)`, computed on a thread if it handles many numbers. `size`: of its arrays."""
        if size < _MANY_NUMBERS:
            return work(*arguments)
        return await self.run(size / _NUMBERS_PER_CHARACTER, work, *arguments)

    async def run_pieces(self, sizes: Iterable[int], work: Callable[[int, int], Result]) -> list[Result]:
        """Return the results of `work(start, stop)` for bounded pieces of a list, in order.

        `sizes`: in characters, of each element. A request has at most LONG_THREADS pieces in the queue, so that the
        pieces of several requests alternate. Raises the error of the first piece that fails.
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


MAX_ROW_BYTES = 256 * 1024**2
"""The rows of about 440 images of 224 x 224 in float32: more batches than any device has in its queue."""


MAX_CONVERSATION_BYTES = 512 * 1024**2
"""The pixels of images in conversations, from before they are decoded until the texts have ended."""


class ImageMemoryLimit:
    """Bytes that requests hold from the decoding of their images to their answer. Owned by the event loop.

    Requests wait for them in the order of their arrival. A request above the bound runs alone.
    """

    def __init__(self, max_bytes: int = MAX_ROW_BYTES) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held_bytes = 0

    def try_hold(self, nbytes: int) -> bool:
        """Hold bytes if they are available and no request waits; `release` must follow. Returns whether they are."""
        if self._waiting or (self.held_bytes and self.held_bytes + nbytes > self._max_bytes):
            return False
        self.held_bytes += nbytes
        return True

    async def hold(self, nbytes: int) -> None:
        """Wait until the bytes are available, and hold them; `release` must follow."""
        if self.try_hold(nbytes):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = nbytes, granted
        self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(nbytes)
            else:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                self._grant()
            raise

    def release(self, nbytes: int) -> None:
        """Release bytes that a request holds."""
        self.held_bytes -= nbytes
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            nbytes, granted = self._waiting.popleft()
            if not granted.cancelled():
                self.held_bytes += nbytes
                granted.set_result(None)

    def _fits(self, nbytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + nbytes <= self._max_bytes


LARGE_PIXELS = 4_000_000
"""Images above are decoded one after the other: their pixels take seven bytes each while they are prepared."""
IMAGE_THREADS = min(16, max(2, usable_cpus() // 2))
"""Decoding and resizing release the interpreter's lock. Further threads would leave too few CPUs to the models."""


class ImageThreads:
    """Several threads for small images and one for large ones. Each is a queue: what arrives first is done first.

    So the decoded pixels of all requests are bounded: those of IMAGE_THREADS small images and of one large image.
    `memory`: of the prepared images.
    """

    def __init__(self) -> None:
        self.memory = ImageMemoryLimit()
        self._small = ThreadPoolExecutor(IMAGE_THREADS, thread_name_prefix="image")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="image-large")

    def run(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> "asyncio.Future[Result]":
        """Return the future of `work(*arguments)`, on a thread for small images."""
        return asyncio.get_running_loop().run_in_executor(self._small, work, *arguments)

    def prepare(self, processor: "ImageProcessor", images: Sequence[bytes]) -> "Awaitable[Array]":
        """Return a row for each file, see ImageProcessor.empty.

        Raises InvalidInput for the first damaged file that is found; its field is `image[2]`.
        """
        rows = processor.empty(len(images))
        if len(images) == 1:
            return self._prepare(processor, images[0], 0, rows)
        return self._prepare_all(processor, images, rows)

    async def _prepare_all(self, processor: "ImageProcessor", images: Sequence[bytes], rows: "Array") -> "Array":
        """Prepare several images, at most IMAGE_THREADS at a time: the images of several requests take turns."""
        indices = iter(range(len(images)))
        failures: dict[int, Exception] = {}

        async def prepare_some() -> None:
            for number in indices:
                if failures:
                    return
                try:
                    await self._prepare(processor, images[number], number, rows)
                except Exception as error:  # noqa: BLE001 - raised below
                    failures[number] = error

        await asyncio.gather(*(prepare_some() for _ in range(min(IMAGE_THREADS, len(images)))))
        if failures:
            raise failures[min(failures)]
        return rows

    def close(self) -> None:
        """End the threads; queued images are dropped."""
        for threads in (self._small, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _prepare(self, processor: "ImageProcessor", data: bytes, number: int, rows: "Array") -> "Array":
        """Write the row of one image into `rows`, and return them."""
        loop, field, row = asyncio.get_running_loop(), f"image[{number}]", rows[number]
        if not await loop.run_in_executor(self._small, _prepare_small, processor, data, field, row):
            await loop.run_in_executor(self._large, _prepare_any, processor, data, field, row)
        return rows


def _prepare_small(processor: "ImageProcessor", data: bytes, field: str, row: "Array") -> bool:
    """Prepare an image unless it is large; return whether it was prepared."""
    header = processor.check(data, field)
    if header.height * header.width > LARGE_PIXELS:
        return False
    processor.read(data, header, field, row)
    return True


def _prepare_any(processor: "ImageProcessor", data: bytes, field: str, row: "Array") -> None:
    processor.read(data, processor.check(data, field), field, row)


CONSTRAINT_THREADS = 4


class EngineThreads:
    """`tokenizers`: tokenize long texts, and compute responses of many numbers. `images`: decode and prepare images.
    `constraints`: compile constraints. `conversation_images`: bounds the images of conversations.
    """

    def __init__(self) -> None:
        self.tokenizers = TokenizerThreads()
        self.images = ImageThreads()
        self.conversation_images = ImageMemoryLimit(MAX_CONVERSATION_BYTES)
        self.constraints = ThreadPoolExecutor(CONSTRAINT_THREADS, thread_name_prefix="constrain")

    def run_task(
        self, characters: int | None, work: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> "asyncio.Future[Result]":
        """Return the future of `work(*arguments)`. `characters`: of its texts; None for work on a file."""
        if characters is None:
            return self.images.run(work, *arguments)
        return self.tokenizers.run(characters, work, *arguments)

    def close(self) -> None:
        """End the threads; queued texts, images and constraints are dropped."""
        self.tokenizers.close()
        self.images.close()
        self.constraints.shutdown(wait=False, cancel_futures=True)
