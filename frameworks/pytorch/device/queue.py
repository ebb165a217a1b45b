"""The queue of a device: copies and launches in their order."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

_NO_GUARD = nullcontext()


def current(device: torch.device) -> AbstractContextManager[None]:
    """Launch kernels on this device within the block: Triton does so on the current one, and models have several."""
    guard: AbstractContextManager[None] = torch.cuda.device(device) if device.type == "cuda" else _NO_GUARD
    return guard


class Mark(Protocol):
    """A point of a queue."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""
        ...


class DeviceQueue(Protocol):
    """A stream: launches and copies run in their order, at any time after the call and before a later mark is passed.

    A copy reads its source then: the host changes pinned memory only behind a mark.
    """

    def run(self, launch: Callable[[], object]) -> None:
        """Launch kernels whose tensors exist already."""
        ...

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy between pinned memory and the device."""
        ...

    def mark(self) -> Mark:
        """Mark the end of all that was given so far."""
        ...

    def catch_up(self) -> None:
        """Let operators of torch follow all that was given so far. They are launched at once."""
        ...


class StreamQueue:
    """The current CUDA stream. The host sleeps while it waits. On another device every call is complete at its end."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"

    def run(self, launch: Callable[[], object]) -> None:
        """As DeviceQueue.run."""
        launch()

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As DeviceQueue.copy."""
        target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        """As DeviceQueue.mark."""
        if not self._is_cuda:
            return _Passed()
        mark = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        mark.record()
        return mark

    def catch_up(self) -> None:
        """As DeviceQueue.catch_up."""


class _Passed:
    def synchronize(self) -> None:
        pass


class PinnedTable:
    """Values that the host writes and copies to a device: the same buffers each time.

    `host` and `device`: tensors of one shape and dtype.
    """

    def __init__(self, size: tuple[int, ...], dtype: torch.dtype, device: torch.device, queue: DeviceQueue) -> None:
        self.host = torch.zeros(size, dtype=dtype, pin_memory=device.type == "cuda")
        self.device = torch.zeros(size, dtype=dtype, device=device)
        self._queue = queue
        self._copied: Mark | None = None

    def wait(self) -> None:
        """Wait until the last copy is complete; the host may then write again."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None

    def send(self, size: int) -> None:
        """Copy the first `size` rows to the device."""
        self._queue.copy(self.host[:size], self.device[:size])
        self._copied = self._queue.mark()
