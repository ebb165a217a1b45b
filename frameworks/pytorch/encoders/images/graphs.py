"""Runs of images as graphs of a device: one launch for all layers."""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import structlog
import torch

from frameworks.pytorch.device.graphs import Captured, Graphs, buckets_of, capture_buckets
from frameworks.pytorch.device.queue import DeviceQueue, PinnedTable
from frameworks.types import Array

log = structlog.get_logger(__name__)

# Larger runs take the device longer than the host needs to launch their layers.
_MAX_GRAPH_IMAGES = 32

Rows = Callable[[torch.Tensor], torch.Tensor]
"""From pixels, float32 [images, 3, height, width], to a row for each image."""


class ImageGraphs:
    """The graphs of one model, for all its instances."""

    def __init__(self, device: torch.device, queue: DeviceQueue, graphs: Graphs, max_images: int) -> None:
        """`max_images`: of a run."""
        self._device = device
        self._queue = queue
        self._graphs = graphs
        self._buckets = buckets_of(min(max_images, _MAX_GRAPH_IMAGES))
        self._reason = "none: they were not captured"
        self._is_tried = False
        self._lock = threading.Lock()
        self._pixels: PinnedTable | None = None
        self._captured: dict[int, Captured] = {}

    def __str__(self) -> str:
        """Which runs are graphs, or why none is, as ModelSpec.graphs."""
        return f"up to {self._buckets[-1]} images" if self._captured else self._reason

    @property
    def size_bytes(self) -> int:
        """Return the memory of the device that the graphs hold, and their pixels."""
        return self._graphs.size_bytes + self._pixels.device.nbytes if self._pixels is not None else 0

    def capture(self, rows: Rows, shape: tuple[int, ...]) -> None:
        """Capture the graphs of all buckets; where a run cannot be captured, note the reason. Only the first call does.

        `shape`: of the pixels of an image.
        """
        with self._lock:
            if self._is_tried:
                return
            self._is_tried = True
            pixels = PinnedTable((self._buckets[-1], *shape), torch.float32, self._device, self._queue)
            try:
                captured = capture_buckets(
                    self._graphs, self._buckets, lambda bucket: partial(rows, pixels.device[:bucket])
                )
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                self._reason = f"none: {reason}"
                log.warning("images run without graphs", reason=reason)
                return
            self._pixels, self._captured = pixels, captured
            log.info("images run as graphs", max_images=self._buckets[-1], graph_bytes=self.size_bytes)

    def computes(self, images: int) -> bool:
        """Return whether a graph computes a run of so many images."""
        return bool(self._captured) and 0 < images <= self._buckets[-1]

    def rows(self, pixels: Array) -> torch.Tensor:
        """Compute a run; return a tensor on the device with a row for each image. `pixels`: float32 [images, …]."""
        images = len(pixels)
        bucket = next(each for each in self._buckets if each >= images)
        assert self._pixels is not None
        # All threads share the pixels and the rows of the graphs.
        with self._lock:
            self._pixels.wait()
            # Images behind them are those of an earlier run: a row depends on its own alone.
            np.copyto(self._pixels.host.numpy()[:images], pixels)
            self._pixels.send(images)
            replay, rows = self._captured[bucket]
            self._queue.run(replay)
            self._queue.catch_up()
            return rows[:images].clone()
