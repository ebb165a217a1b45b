"""The LoRA adapters of a compiled step: their packed weights, and the rows that they change."""

import threading
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from frameworks.pytorch.generation.decoders.adapters.layers import Pair
from frameworks.pytorch.generation.decoders.decoder import AdaptableLayer

Table = np.ndarray[Any, np.dtype[np.int64]]


class CompiledAdapter(NamedTuple):
    """One adapter. `fields`: int64 [GEMMs, gemm_table.GEMM_FIELDS]. `columns`: the most of a GEMM. `kept`: the owners
    of the addresses in `fields`.
    """

    fields: Table
    columns: int
    kept: list[Any]


class CompiledAdapters:
    """The adapters of one compiled step, by id. One thread computes the steps, any thread adds and removes."""

    def __init__(self, gemms: Table, layers: Sequence[AdaptableLayer], max_rows: int) -> None:
        """`gemms`: the step's table, [GEMMs, gemm_table.GEMM_COLUMNS]. `layers`: of its GEMMs but the head, in their
        order. `max_rows`: of a step.
        """
        from frameworks.pytorch.compiled.matmul import gemm as arguments
        from frameworks.pytorch.compiled.matmul import gemm_table
        from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK

        self._arguments, self._columns, self._block = arguments, gemm_table, BLOCK
        self._gemms = own = gemms[: len(layers)]
        self._layers = layers
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self.loaded: Mapping[int, CompiledAdapter] = {}
        """By id. Replaced, never changed: a step keeps those that it began with."""
        self._address = 0
        self.present: list[int] = []
        """The adapters whose weights the table has, of the last step; the next one replaces them."""
        self._low = np.empty((0, 0, 0), dtype=np.float32)
        self._runs: list[Table] = []
        # Of all rows, and of the rows with logits: after the attention of the last layer only these are computed.
        self._changes = np.zeros((2, max_rows), dtype=np.int64)
        self._of_selected = np.array([layer.selects_rows for layer in layers])
        # Gate and up have the same rows, so they are computed together.
        own[:, gemm_table.GEMM] = np.arange(len(layers))
        own[:, gemm_table.NUM_FUSED] = 1
        own[gemm_table.GATE :: gemm_table.GEMMS_OF_LAYER, gemm_table.NUM_FUSED] = 2
        own[:, gemm_table.LOW_ROWS] = max_rows
        for each, changes in zip((~self._of_selected, self._of_selected), self._changes, strict=True):
            own[each, arguments.ARE_CHANGED] = changes.ctypes.data
        widest = -(-int(own[:, arguments.OUTPUTS].max()) // BLOCK) * BLOCK
        self._deltas = np.empty((2, max_rows, widest), dtype=np.float32)

    def add(self, adapter_id: int, pairs: Mapping[str, Pair]) -> None:
        """Add an adapter; all have one dtype. `pairs`: of the modules. Compiles, unless the code is in the cache."""
        from frameworks.pytorch.compiled.matmul.lora import region_address

        packed = self._packed(pairs)
        address = region_address(next(iter(pairs.values())).a.dtype)
        with self._lock:
            self._address = address
            self.loaded = {**self.loaded, adapter_id: packed}

    def remove(self, adapter_id: int) -> None:
        """Forget an adapter, which no sequence has."""
        with self._lock:
            self.loaded = {each: packed for each, packed in self.loaded.items() if each != adapter_id}

    def prepare(
        self, adapter_ids: Sequence[int], counts: Sequence[int], logit_counts: Sequence[int]
    ) -> list[CompiledAdapter]:
        """Write the adapters of a step's parts to its table. `adapter_ids`: of each part, 0 for none. `counts`: its
        rows. `logit_counts`: its rows with logits.

        Returns the adapters: their weights have to be kept until the step has been computed.
        """
        present = sorted({each for each in adapter_ids if each})
        adapters = [self.loaded[each] for each in present]
        if present != self.present:
            self._set_adapters(adapters)
            self.present = present
        if present:
            by_id = dict(zip(present, adapters, strict=True))
            of_gemms = ((~self._of_selected, counts), (self._of_selected, logit_counts))
            self._runs = [
                self._set_rows(each, changes, adapter_ids, of_parts, by_id)
                for (each, of_parts), changes in zip(of_gemms, self._changes, strict=True)
            ]
        return adapters

    def _set_adapters(self, adapters: Sequence[CompiledAdapter]) -> None:
        columns, own = self._columns, self._gemms
        has = np.zeros(len(own), dtype=np.bool_)
        for adapter in adapters:
            has |= adapter.fields[:, columns.A] != 0
        gate, up = (slice(each, None, columns.GEMMS_OF_LAYER) for each in (columns.GATE, columns.UP))
        has[gate] |= has[up]
        own[:, columns.ADAPTING] = np.where(has, self._address, 0)
        own[up, columns.ADAPTING] = 0
        own[:, self._arguments.DELTAS] = np.where(has, self._deltas[0].ctypes.data, 0)
        own[up, self._arguments.DELTAS] = np.where(has[gate], self._deltas[1].ctypes.data, 0)
        most = max((adapter.columns for adapter in adapters), default=0)
        self._low = np.empty((2, self._max_rows, most), dtype=np.float32)
        own[:, columns.LOW], own[:, columns.LOW_COLUMNS] = self._low.ctypes.data, most

    def _set_rows(
        self,
        which: "np.ndarray[Any, np.dtype[np.bool_]]",
        changes: Table,
        adapter_ids: Sequence[int],
        counts: Sequence[int],
        adapters: Mapping[int, CompiledAdapter],
    ) -> Table:
        """Write the rows of each adapter for some GEMMs; return the runs, int64 [runs, 3]. `changes`: of the rows."""
        columns, own = self._columns, self._gemms
        changed = np.repeat(np.array(adapter_ids, dtype=np.int64), counts)
        changes[: len(changed)] = changed
        found, end = [], 0
        for adapter_id, parts in groupby(zip(adapter_ids, counts, strict=True), key=lambda part: part[0]):
            start, end = end, end + sum(count for _, count in parts)
            if adapter_id and end > start:
                found.append((start, end, adapters[adapter_id].fields.ctypes.data))
        runs = np.array(found, dtype=np.int64)
        own[which, columns.RUNS], own[which, columns.NUM_RUNS] = runs.ctypes.data, len(found)
        return runs

    def _packed(self, pairs: Mapping[str, Pair]) -> CompiledAdapter:
        columns = self._columns
        fields = np.zeros((len(self._layers), columns.GEMM_FIELDS), dtype=np.int64)
        kept: list[Any] = []
        for own, layer in zip(fields, self._layers, strict=True):
            found = [(pairs.get(name), outputs) for name, outputs in layer.modules]
            if not any(pair is not None for pair, _ in found):
                continue
            a, pieces, b = self._packed_matrices(found)
            kept += [a, pieces, b]
            own[columns.A], own[columns.A_COLUMNS], own[columns.PIECES] = a.data_ptr(), len(a), pieces.ctypes.data
        return CompiledAdapter(fields, int(fields[:, columns.A_COLUMNS].max()), kept)

    def _packed_matrices(self, modules: Sequence[tuple[Pair | None, int]]) -> tuple[torch.Tensor, Table, torch.Tensor]:
        """Return A [columns, inputs], the pieces and the blocks of B of one GEMM. `modules`: with their outputs."""
        at_once = self._columns.COLUMNS_AT_ONCE
        some = [pair for pair, _ in modules if pair is not None]
        ranks = sum(pair.a.shape[1] for pair in some)
        a = some[0].a.new_zeros(-(-ranks // at_once) * at_once, len(some[0].a))
        torch.cat([pair.a.t() for pair in some], out=a[:ranks])
        b, pieces = self._packed_b(modules)
        return a, pieces, b

    def _packed_b(self, modules: Sequence[tuple[Pair | None, int]]) -> tuple[torch.Tensor, Table]:
        """Return the blocks of B one after the other, and the pieces. A block has the columns of its modules."""
        columns, block = self._columns, self._block
        spans = _spans(modules)
        pieces = np.zeros((-(-sum(outputs for _, outputs in modules) // block), columns.PIECE_FIELDS), dtype=np.int64)
        blocks: list[torch.Tensor] = []
        for index, piece in enumerate(pieces):
            start, end = index * block, (index + 1) * block
            own = [span for span in spans if span.first < end and span.end > start]
            if not own:
                continue
            count = sum(len(span.b) for span in own)
            weights = own[0].b.new_zeros(count, block)
            for span in own:
                first, column = max(span.first, start), span.column - own[0].column
                part = span.b[:, first - span.first : end - span.first]
                weights[column : column + len(part), first - start : first - start + part.shape[1]] = part
            piece[columns.FIRST_COLUMN], piece[columns.NUM_COLUMNS] = own[0].column, count
            blocks.append(weights)
        b = torch.cat(blocks)
        counts = pieces[:, columns.NUM_COLUMNS]
        pieces[:, columns.B] = b.data_ptr() + (np.cumsum(counts) - counts) * block * b.element_size()
        return b, pieces


class _Span(NamedTuple):
    """Outputs of a GEMM from `first` to before `end`: of `b` [rank, outputs] and the columns of A from `column` on."""

    first: int
    end: int
    column: int
    b: torch.Tensor


def _spans(modules: Sequence[tuple[Pair | None, int]]) -> list[_Span]:
    found: list[_Span] = []
    first = column = 0
    for pair, outputs in modules:
        if pair is not None:
            found.append(_Span(first, first + outputs, column, pair.b))
            column += len(pair.b)
        first += outputs
    return found
