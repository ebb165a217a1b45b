"""Decode steps as graphs: the host launches a step of any number of layers at once.

A captured graph holds the launches of a step with the addresses of their tensors. So the numbers of a step are copied
to the same buffers before each replay, and there is a graph for each of a few numbers of texts, with padding behind
them. vLLM (Kwon et al., 2023) does the same.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frameworks.core.progress import phase, step
from frameworks.pytorch.generation.decoders.decoder import Decoder
from frameworks.pytorch.generation.decoders.device_queue import DeviceQueue, PinnedTable, SampledIds
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.decoders.step_layout import StepLayout
from frameworks.pytorch.generation.decoders.step_tables import StepTables
from frameworks.scheduling.steps.sequence import StepPart

_HOST_READS = frozenset({"_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal", "masked_select"})
_COPIES = frozenset({"_to_copy", "copy_"})
_SMALL_BUCKETS = (1, 2, 4)
_BUCKET_STEP = 8
# Token ids, positions, blocks, offsets, lengths and sources, a row each; the block table follows.
_ROWS = 6


class Graphs(Protocol):
    """Captures what a device computes."""

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        """Return a function that computes it again with the same tensors, and the tensor of its results.

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

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
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


class _OnDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
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


class GraphSteps:
    """The decode steps of one decoder. Used by one thread."""

    def __init__(
        self, decoder: Decoder, graphs: Graphs, queue: DeviceQueue, sampled: SampledIds, max_blocks: int
    ) -> None:
        """`sampled`: has an id for each text of a step. `max_blocks`: of a text. The decoder's attention reads
        StepLayout.tables.
        """
        self._decoder = decoder
        self._graphs = graphs
        self._queue = queue
        self._sampled = sampled
        max_texts = len(sampled.ids)
        self._tables = _DecodeTables(sampled.ids.device, max_texts, max_blocks, queue)
        self._buckets = buckets_of(max_texts)
        self._captured: dict[int, tuple[Callable[[], object], torch.Tensor]] = {}

    def capture(self) -> None:
        """Capture the graphs of all buckets. Raises RuntimeError where a step cannot be captured."""
        phase("capturing graphs", len(self._buckets), "graphs")
        self._tables.fill(1, [])
        with torch.inference_mode(), _OnDevice():  # type: ignore[no-untyped-call]
            self._compute(self._tables.layout(1))
        # The largest first: the others fit its memory.
        for texts in reversed(self._buckets):
            layout = self._tables.layout(texts)
            self._tables.fill(texts, [])
            with torch.inference_mode():
                self._captured[texts] = self._graphs.capture(partial(self._compute, layout))
            step()

    def _compute(self, layout: StepLayout) -> torch.Tensor:
        assert layout.tables is not None
        self._sampled.fill_in(layout.token_ids, layout.tables.sources)
        return self._decoder.logits(layout)

    @property
    def size_bytes(self) -> int:
        """Return the memory of the device that the graphs hold, and their tables."""
        return self._graphs.size_bytes + self._tables.size_bytes

    @property
    def max_texts(self) -> int:
        """Return the texts of the largest graph."""
        return self._buckets[-1]

    def computes(self, parts: Sequence[StepPart]) -> bool:
        """Return whether a graph computes a step: decodes without adapters."""
        if len(parts) > self._buckets[-1]:
            return False
        for part in parts:
            if part.num_tokens != 1 or part.num_logits != 1 or part.sequence.request.adapter_id:
                return False
        return True

    def logits(self, parts: Sequence[StepPart]) -> torch.Tensor:
        """Compute a step of decodes; return logits [parts, vocabulary], valid until the next step."""
        texts = next(each for each in self._buckets if each >= len(parts))
        self._tables.fill(texts, parts)
        replay, result = self._captured[texts]
        self._queue.run(replay)
        return result[: len(parts)]


def graphs_of(device: torch.device) -> Graphs | None:
    """Return what captures graphs of a device; None where nothing does."""
    return CudaGraphs(device) if device.type == "cuda" else None


def buckets_of(max_texts: int) -> list[int]:
    """Return the numbers of texts that have a graph: 1, 2, 4, then the multiples of 8, then `max_texts`."""
    found = [*_SMALL_BUCKETS, *range(_BUCKET_STEP, max_texts, _BUCKET_STEP)]
    return [each for each in found if each < max_texts] + [max_texts]


class _DecodeTables:
    """The numbers of a step, in pinned memory and on the device. All buckets use the same buffers."""

    def __init__(self, device: torch.device, max_texts: int, max_blocks: int, queue: DeviceQueue) -> None:
        self._max_blocks = max_blocks
        self._table = PinnedTable(((_ROWS + max_blocks) * max_texts,), torch.int32, device, queue)
        self._numbers = self._table.host.numpy()

    @property
    def size_bytes(self) -> int:
        return self._table.device.nbytes

    def layout(self, texts: int) -> StepLayout:
        """Return the layout of all steps of so many texts."""
        values = self._table.device
        rows = values[: _ROWS * texts].view(_ROWS, texts)
        # Transposed, so that the blocks in use are together, and one copy brings them.
        table = values[_ROWS * texts : (_ROWS + self._max_blocks) * texts].view(-1, texts).t()
        token_ids, positions, blocks, offsets, lengths, sources = rows.unbind()
        order = torch.arange(texts, dtype=torch.int32, device=rows.device)
        return StepLayout(
            token_ids=token_ids,
            positions=positions,
            num_tokens=texts,
            logit_rows=order,
            num_logits=texts,
            num_decodes=texts,
            tables=StepTables(
                token_ids,
                positions,
                blocks,
                offsets,
                order,
                lengths,
                sources,
                table,
                most_blocks=self._max_blocks,
                prefills=None,
            ),
        )

    def fill(self, texts: int, parts: Sequence[StepPart]) -> None:
        """Copy the numbers of a step of decodes. Rows behind them have no token and no block."""
        self._table.wait()
        starts = np.array([part.start for part in parts], dtype=np.int32)
        rows = self._numbers[: _ROWS * texts].reshape(_ROWS, texts)
        rows[:] = 0
        rows[2] = rows[5] = -1
        if parts:
            own = rows[:, : len(parts)]
            own[0] = [part.token_ids[0] for part in parts]
            own[1], own[3], own[4] = starts, starts % BLOCK_TOKENS, starts + 1
            own[2] = [part.sequence.blocks[part.start // BLOCK_TOKENS] for part in parts]
            own[5] = [part.sequence.unread_row for part in parts]
        ends = starts // BLOCK_TOKENS + 1
        used = int(ends.max(initial=0))
        table = self._numbers[_ROWS * texts : (_ROWS + used) * texts].reshape(used, texts)
        for column, (part, end) in enumerate(zip(parts, ends.tolist(), strict=True)):
            table[:end, column] = part.sequence.blocks[:end]
        self._table.send((_ROWS + used) * texts)
