"""Decode steps as graphs: the host launches a step of any number of layers at once.

A captured graph holds the launches of a step with the addresses of their tensors. So the numbers of a step are copied
to the same buffers before each replay, and there is a graph for each of a few numbers of texts, with padding behind
them. vLLM (Kwon et al., 2023) does the same.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from frameworks.pytorch.device.graphs import Captured, Graphs, buckets_of, capture_buckets
from frameworks.pytorch.device.queue import DeviceQueue, PinnedTable
from frameworks.pytorch.generation.decoders.decoder import Decoder
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.decoders.sampled_ids import SampledIds
from frameworks.pytorch.generation.decoders.step_layout import StepLayout
from frameworks.pytorch.generation.decoders.step_tables import StepTables
from frameworks.pytorch.generation.vision.step_images import StepImages
from frameworks.scheduling.steps.sequence import StepPart

# Token ids, positions, blocks, offsets, lengths and sources, a row each; the block table follows.
_ROWS = 6


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
        self._captured: dict[int, Captured] = {}

    def capture(self) -> None:
        """Capture the graphs of all buckets. Raises RuntimeError where a step cannot be captured."""

        def compute_of(texts: int) -> Callable[[], torch.Tensor]:
            self._tables.fill(texts, [])
            return partial(self._compute, self._tables.layout(texts))

        self._captured = capture_buckets(self._graphs, self._buckets, compute_of)

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

    def logits(self, parts: Sequence[StepPart], images: StepImages | None = None) -> torch.Tensor:
        """Compute a step of decodes; return logits [parts, vocabulary], valid until the next step.

        `images`: of decodes, which have no vectors; the table has their positions.
        """
        texts = next(each for each in self._buckets if each >= len(parts))
        self._tables.fill(texts, parts)
        replay, result = self._captured[texts]
        self._queue.run(replay)
        return result[: len(parts)]


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
            own[1] = [part.start + part.sequence.rope_offset for part in parts]
            own[3], own[4] = starts % BLOCK_TOKENS, starts + 1
            own[2] = [part.sequence.blocks[part.start // BLOCK_TOKENS] for part in parts]
            own[5] = [part.sequence.unread_row for part in parts]
        ends = starts // BLOCK_TOKENS + 1
        used = int(ends.max(initial=0))
        table = self._numbers[_ROWS * texts : (_ROWS + used) * texts].reshape(used, texts)
        for column, (part, end) in enumerate(zip(parts, ends.tolist(), strict=True)):
            table[:end, column] = part.sequence.blocks[:end]
        self._table.send((_ROWS + used) * texts)
