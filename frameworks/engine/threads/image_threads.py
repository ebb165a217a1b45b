"""Decode and prepare images off the event loop, on a bounded number of threads."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from frameworks.core.cpus import usable_cpus
from frameworks.engine.threads.image_memory_limit import ImageMemoryLimit

if TYPE_CHECKING:
    from frameworks.images.processor import Array, ImageProcessor

LARGE_PIXELS = 4_000_000
"""Images above are decoded one after the other: their pixels take seven bytes each while they are prepared."""
IMAGE_THREADS = min(16, max(2, usable_cpus() // 2))
"""Decoding and resizing release the interpreter's lock. Further threads would leave too few CPUs to the models."""


class ImageThreads:
    """Several threads for small images and one for large ones. Each is a queue: what arrives first is done first.

    So the decoded pixels of all requests are bounded: those of IMAGE_THREADS small images and of one large image.
    `budget`: of the prepared images.
    """

    def __init__(self) -> None:
        self.budget = ImageMemoryLimit()
        self._small = ThreadPoolExecutor(IMAGE_THREADS, thread_name_prefix="image")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="image-large")

    async def prepare(self, processor: "ImageProcessor", images: Sequence[bytes]) -> "Array":
        """Return a row for each file, see ImageProcessor.empty.

        A request has at most IMAGE_THREADS images in the queue, so that the images of several requests take turns.
        Raises InvalidInput for the first damaged file that is found; its field is `image[2]`.
        """
        rows = processor.empty(len(images))
        if len(images) == 1:
            await self._prepare(processor, images[0], "image[0]", rows[0])
            return rows
        numbers = iter(range(len(images)))
        failures: dict[int, Exception] = {}

        async def prepare_some() -> None:
            for number in numbers:
                if failures:
                    return
                try:
                    await self._prepare(processor, images[number], f"image[{number}]", rows[number])
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

    async def _prepare(self, processor: "ImageProcessor", data: bytes, field: str, row: "Array") -> None:
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._small, _prepare_small, processor, data, field, row):
            await loop.run_in_executor(self._large, _prepare_any, processor, data, field, row)


def _prepare_small(processor: "ImageProcessor", data: bytes, field: str, row: "Array") -> bool:
    """Prepare an image unless it is large; return whether it was prepared."""
    header = processor.check(data, field)
    if header.height * header.width > LARGE_PIXELS:
        return False
    processor.read(data, header, field, row)
    return True


def _prepare_any(processor: "ImageProcessor", data: bytes, field: str, row: "Array") -> None:
    processor.read(data, processor.check(data, field), field, row)
