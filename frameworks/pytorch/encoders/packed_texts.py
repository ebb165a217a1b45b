"""Run the texts of a batch without padding, one behind the other in one row of tokens.

The layers of a transformer compute each token by itself, except for attention. So they take the tokens of all texts as
one row, and attention gets the boundaries of the texts. The pooling and the heads see padded states again. Text
Embeddings Inference packs texts the same way.

Short batches are replayed as graphs: the host then launches all layers at once.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import structlog
import torch

from frameworks.core.errors import RoundhouseError
from frameworks.pytorch.device.graphs import Captured, Graphs, capture_buckets
from frameworks.pytorch.device.queue import DeviceQueue, PinnedTable
from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.pytorch.encoder_layers.token_rows import TokenRow
from frameworks.pytorch.encoders.packed_layers import PackedLayers, Run, running
from frameworks.scheduling.merging.comparison import Tolerance, is_close
from frameworks.text.padding import PaddedTokens
from frameworks.types import Array, TokenBatch

log = structlog.get_logger(__name__)

# The host needs 1 to 2 ms to launch 12 layers. A GPU computes so many tokens of BERT-base in about that time: larger
# batches gain nothing by a graph.
_MAX_GRAPH_TOKENS = 2048
_SMALL_BUCKETS = (16, 32, 64)
_STEPS_PER_DOUBLING = 4
# A text of a trial has so many tokens more than the window of a layer.
_TOKENS_BEYOND_WINDOW = 64

RunTexts = Callable[[TokenBatch], Array]


class PackedTexts:
    """The runs of one model, for all its instances. They are padded until `try_out` has found the same rows without."""

    def __init__(
        self,
        layers: PackedLayers,
        device: torch.device,
        queue: DeviceQueue,
        graphs: Graphs | None,
        max_texts: int,
        max_tokens: int,
    ) -> None:
        """`max_texts`: of a graph. `max_tokens`: of a text."""
        self.is_used = False
        self._reason = "none: each text runs alone, as the model has no padding token"
        if layers.reason is not None:
            self._reason = f"none: texts are padded, as {layers.reason}"
        self._layers = layers
        self._device = device
        self._queue = queue
        self._graphs = graphs
        self._max_texts = max_texts
        self._max_tokens = max_tokens
        self._first_position = 0
        self._is_tried = layers.reason is not None
        self._trial, self._lock = threading.Lock(), threading.Lock()
        self._tables: _GraphTables | None = None
        self._captured: dict[int, Captured] = {}

    @property
    def size_bytes(self) -> int:
        """Return the memory of the device that the graphs hold, and their tables."""
        if self._tables is None or self._graphs is None:
            return 0
        return self._tables.size_bytes + self._graphs.size_bytes

    @property
    def graphs(self) -> str | None:
        """Return which runs are graphs, or why none is, as ModelSpec.graphs."""
        if self._layers.are_compiled:
            return None
        return f"up to {self.max_graph_tokens} tokens" if self._captured else self._reason

    @property
    def max_graph_tokens(self) -> int:
        """Return the tokens of the largest graph, of all its texts; 0 without graphs."""
        return max(self._captured, default=0)

    def try_out(self, token_ids: list[list[int]], pad_token_id: int, run: RunTexts, tolerance: Tolerance) -> None:
        """Use the runs without padding if the texts get the same rows, and capture their graphs. Only the first call
        does.

        `token_ids`: of texts of different lengths. `run`: returns a row for each text.
        """
        with self._trial:
            if self._is_tried:
                return
            self._is_tried = True
            reason = self._reason_not_used(token_ids, pad_token_id, run, tolerance)
            if reason is not None:
                self._reason = f"none: texts are padded, as {reason}"
                log.warning("texts are padded on the device", reason=reason)
                return
            self._reason = "none: the device has no graphs"
            if self._graphs is not None:
                self._capture(self._graphs)

    def _reason_not_used(
        self, token_ids: list[list[int]], pad_token_id: int, run: RunTexts, tolerance: Tolerance
    ) -> str | None:
        """Return None where texts get the same rows without padding, and use it; else the reason."""
        reason = self._difference(token_ids, run, tolerance)
        window = self._layers.largest_window
        if window is None:
            reason = "their attention is the model's own"
        elif reason is not None:
            # RoBERTa counts its positions from the padding token on.
            self._first_position = pad_token_id + 1
            if self._difference(token_ids, run, tolerance) is None:
                reason = None
        longest = max(token_ids, key=len)
        if reason is None and window is not None and window >= len(longest):
            more = min(self._max_tokens, window + _TOKENS_BEYOND_WINDOW)
            reason = self._difference([(longest * more)[:more], *token_ids], run, tolerance)
        self.is_used = reason is None
        return reason

    def _difference(self, token_ids: list[list[int]], run: RunTexts, tolerance: Tolerance) -> str | None:
        """Return None where texts in one row of tokens get the rows that each has alone; else a reason."""
        self.is_used = False
        alone = [run(TokenBatch([ids]))[0] for ids in token_ids]
        self.is_used = True
        try:
            together = run(TokenBatch(token_ids))
        except (*RUN_ERRORS, RoundhouseError) as error:
            return str(error).partition("\n")[0]
        if all(is_close(one, other, tolerance) for one, other in zip(together, alone, strict=True)):
            return None
        return "their rows differ without padding"

    @contextmanager
    def running(self, tokens: PaddedTokens) -> Iterator[None]:
        """Let the model compute these texts in this thread, without padding if it can."""
        num_tokens = int(tokens.attention_mask.sum())
        packs = self.is_used and tokens.all_attended and num_tokens > 0
        states = partial(self._padded_states, tokens) if packs else None
        with running(Run(states, is_padded=num_tokens < tokens.attention_mask.size)):
            yield

    def _padded_states(self, tokens: PaddedTokens) -> torch.Tensor:
        """Return the last states [texts, longest, size]. Those of padding are of any token."""
        values, starts = _values_of(tokens, self._first_position)
        texts, longest = tokens.input_ids.shape
        bucket = self._bucket_of(texts, values.shape[1])
        if bucket is None:
            row = TokenRow(self._sent(values), self._sent(starts), longest)
            if values.shape[1] == texts * longest:
                return self._layers.states(row).view(texts, longest, -1)
            return _unpacked(self._layers.states(row), row.starts, texts, longest)
        assert self._tables is not None
        # All threads share the tables and the states of the graphs.
        with self._lock:
            self._tables.fill(bucket, values, starts)
            replay, states = self._captured[bucket]
            self._queue.run(replay)
            self._queue.catch_up()
            return _unpacked(states, self._tables.row(bucket).starts, texts, longest)

    def _sent(self, values: Array) -> torch.Tensor:
        """Copy values to the device without a wait. torch keeps the pinned memory until the copy is complete."""
        host = torch.from_numpy(values)
        return host.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else host

    def _bucket_of(self, texts: int, tokens: int) -> int | None:
        if texts > self._max_texts or tokens > self.max_graph_tokens:
            return None
        return min(bucket for bucket in self._captured if bucket >= tokens)

    def _capture(self, graphs: Graphs) -> None:
        """Capture the graphs of all buckets; where a run cannot be captured, note the reason."""
        buckets = buckets_of(min(_MAX_GRAPH_TOKENS, self._max_texts * self._max_tokens))
        tables = _GraphTables(self._device, self._max_texts, self._max_tokens, buckets, self._queue)
        try:
            captured = capture_buckets(graphs, buckets, lambda bucket: partial(self._layers.states, tables.row(bucket)))
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            self._reason = f"none: {reason}"
            log.warning("texts run without graphs", reason=reason)
            return
        self._tables, self._captured = tables, captured
        log.info("texts run as graphs", max_tokens=self.max_graph_tokens, graph_bytes=self.size_bytes)


class _GraphTables:
    """The tokens of a run, in pinned memory and on the device. All buckets use the same buffers."""

    def __init__(
        self, device: torch.device, max_texts: int, max_tokens: int, buckets: list[int], queue: DeviceQueue
    ) -> None:
        self._max_tokens = max_tokens
        # Texts of padding fill a bucket; none is longer than a text.
        most_padding = max(bucket - below for below, bucket in zip([0, *buckets], buckets, strict=False))
        self._num_starts = max_texts + 1 + -(-most_padding // max_tokens)
        self._table = PinnedTable((3 * buckets[-1] + self._num_starts,), torch.int32, device, queue)
        self._host: Array = self._table.host.numpy()

    @property
    def size_bytes(self) -> int:
        return self._table.device.nbytes

    def row(self, bucket: int) -> TokenRow:
        """Return what all runs of a bucket read."""
        starts, values = self._table.device[: self._num_starts], self._table.device[self._num_starts :]
        return TokenRow(values[: 3 * bucket].view(3, bucket), starts, min(bucket, self._max_tokens))

    def fill(self, bucket: int, values: Array, starts: Array) -> None:
        """Copy the tokens of a run. Behind them are texts of padding."""
        num_starts, tokens = len(starts), values.shape[1]
        self._table.wait()
        own, table = self._host[: self._num_starts], self._host[self._num_starts :][: 3 * bucket].reshape(3, bucket)
        own[:num_starts] = starts
        more = np.arange(1, self._num_starts - num_starts + 1)
        own[num_starts:] = np.minimum(tokens + more * self._max_tokens, bucket)
        table[:, :tokens] = values
        table[:, tokens:] = 0
        self._table.send(self._num_starts + 3 * bucket)


def buckets_of(max_tokens: int) -> list[int]:
    """Return the numbers of tokens that have a graph: 16, 32, 64, then four for each doubling, then `max_tokens`."""
    found = list(_SMALL_BUCKETS)
    while found[-1] < max_tokens:
        start = found[-1]
        found += [start + start * each // _STEPS_PER_DOUBLING for each in range(1, _STEPS_PER_DOUBLING + 1)]
    return [each for each in found if each < max_tokens] + [max_tokens]


def _values_of(tokens: PaddedTokens, first_position: int) -> tuple[Array, Array]:
    """Return the ids, positions and types of the tokens, int32 [3, tokens], and where each text starts, int32
    [texts + 1], with the end of the last.
    """
    is_token = tokens.attention_mask.astype(bool)
    starts = np.zeros(len(is_token) + 1, np.int32)
    np.cumsum(is_token.sum(axis=1), out=starts[1:])
    values = np.zeros((3, int(starts[-1])), np.int32)
    values[0] = tokens.input_ids[is_token]
    values[1] = np.broadcast_to(np.arange(is_token.shape[1]) + first_position, is_token.shape)[is_token]
    if tokens.token_type_ids is not None:
        values[2] = tokens.token_type_ids[is_token]
    return values, starts


def _unpacked(states: torch.Tensor, starts: torch.Tensor, texts: int, longest: int) -> torch.Tensor:
    """Return the states of the tokens of each text, [texts, longest, size]. Those of padding are of any token."""
    rows = starts[:texts, None] + torch.arange(longest, dtype=torch.int32, device=starts.device)
    found = states.index_select(0, rows.clamp_(max=len(states) - 1).flatten())
    return found.view(texts, longest, states.shape[-1])
