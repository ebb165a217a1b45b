"""Pinned host memory, from which a GPU copies asynchronously."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from frameworks.types import Array
from memory.tensor_pool import TensorPool, TensorTooLarge

PINNED = "pinned"
"""The name of this memory in the tensor pool."""


class PinnedBuffers:
    """See memory.buffers.BufferSource. The driver needs milliseconds to allocate one, so they must be reused."""

    def make(self, size_bytes: int) -> Array:
        """Raises MemoryError if the driver has no more."""
        try:
            # The array keeps the tensor alive. CUDA aligns to a page.
            pinned: Array = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        except RuntimeError as error:
            raise MemoryError(f"no pinned memory of {size_bytes} bytes: {error}") from error
        return pinned


@contextmanager
def pinned_arrays(pool: TensorPool | None) -> Iterator[Callable[[tuple[int, ...], np.dtype[Any]], Array]]:
    """Provide a numpy.empty whose arrays are pinned if such memory is available; they end with the block.

    Copies from them must be complete by then.
    """
    with ExitStack() as leases:

        def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            if pool is not None:
                try:
                    return leases.enter_context(pool.lease(shape, dtype, PINNED)).array
                except (TensorTooLarge, MemoryError):
                    pass
            return np.empty(shape, dtype)

        yield empty
