"""Graphs of a device: launches that are captured once, with the addresses of their tensors, and replayed as one."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frameworks.core.progress import phase, step

_HOST_READS = frozenset({"_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal", "masked_select"})
_COPIES = frozenset({"_to_copy", "copy_"})
_SMALL_BUCKETS = (1, 2, 4)
_BUCKET_STEP = 8


Captured = tuple[Callable[[], object], torch.Tensor]
"""A function that computes a run again with the same tensors, and the tensor of its results."""


class Graphs(Protocol):
    """Captures what a device computes."""

    def capture(self, compute: Callable[[], torch.Tensor]) -> Captured:
        """Return the captured run.

        Runs it once before. Raises RuntimeError for what cannot be captured, as a wait for the device.
        """
        ...

    @property
    def size_bytes(self) -> int:
        """Return the memory of the device that the graphs hold, with their results."""
        ...


class CudaGraphs:
    """Graphs of a CUDA device, which share their memory: one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()
        self.size_bytes = 0

    def capture(self, compute: Callable[[], torch.Tensor]) -> Captured:
        """As Graphs.capture."""
        with torch.cuda.device(self._device):
            current, stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                compute()  # compiles kernels, and makes the workspaces of libraries
            current.wait_stream(stream)
            torch.cuda.empty_cache()
            reserved = torch.cuda.memory_reserved()
            graph = torch.cuda.CUDAGraph()
            # Threads of other models may use the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                result = compute()
            # The memory of the capture stays with the pool of the graphs.
            self.size_bytes += max(0, torch.cuda.memory_reserved() - reserved)
        return graph.replay, result


class OnDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises RuntimeError for an operator by which the host waits for the device, or copies to it.

    A capture would fail there, and might leave the device's allocator in the middle of it, so this comes before. Only
    this thread is affected.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _HOST_READS:
            raise RuntimeError(f"a step waits for the device: {name}")
        result = func(*args, **(kwargs or {}))
        if name in _COPIES and len({each.device for each in (*args, result) if isinstance(each, torch.Tensor)}) > 1:
            raise RuntimeError("a step copies between host and device")
        return result


def capture_buckets(
    graphs: Graphs, buckets: Sequence[int], compute_of: Callable[[int], Callable[[], torch.Tensor]]
) -> dict[int, Captured]:
    """Return a captured graph for each bucket, ascending sizes of a run. Counts them as steps of the current work.

    `compute_of`: makes the buffers of a bucket ready, and returns what computes its run. Raises RuntimeError where a
    run cannot be captured.
    """
    phase("capturing graphs", len(buckets), "graphs")
    captured: dict[int, Captured] = {}
    with torch.inference_mode():
        compute = compute_of(buckets[0])
        with OnDevice():  # type: ignore[no-untyped-call]
            compute()
        # The largest first: the others fit its memory.
        for bucket in reversed(buckets):
            captured[bucket] = graphs.capture(compute_of(bucket))
            step()
    return captured


def graphs_of(device: torch.device) -> Graphs | None:
    """Return what captures graphs of a device; None where nothing does."""
    return CudaGraphs(device) if device.type == "cuda" else None


def buckets_of(max_rows: int) -> list[int]:
    """Return the numbers of texts or images that have a graph: 1, 2, 4, then the multiples of 8, then `max_rows`."""
    found = [*_SMALL_BUCKETS, *range(_BUCKET_STEP, max_rows, _BUCKET_STEP)]
    return [each for each in found if each < max_rows] + [max_rows]
