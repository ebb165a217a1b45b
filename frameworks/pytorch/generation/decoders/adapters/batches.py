"""Group the rows of a step by adapter, so that few matmuls compute all of them."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from frameworks.pytorch.generation.weights.linear import whole_rows

# An adapter with more rows has matmuls of its own: they take longer than the calls.
_MAX_BATCHED_ROWS = 8
# Up to this factor, padding rows are computed along: one batch is faster than several.
_MAX_IDLE_ROWS = 2


class Run(NamedTuple):
    """Adjacent rows of one adapter, from `start` to before `end`."""

    adapter: int
    start: int
    end: int


class Batch(NamedTuple):
    """Adjacent rows of a step, and the adjacent adapters of a stack that they are multiplied with.

    `start`, `num_rows`: the rows. `first`, `adapters`: the adapters. `gather`: int64 [adapters * width], the rows of
    each adapter and padding rows; None if each adapter has equally many rows. `scatter`: int64 [num_rows], the position
    of each row in `gather`.
    """

    start: int
    num_rows: int
    first: int
    adapters: int
    gather: torch.Tensor | None
    scatter: torch.Tensor | None


class _StackedRun(NamedTuple):
    """A Run. `position`: of its adapter in a stack."""

    position: int
    start: int
    end: int


def runs_of(adapters: Iterable[int], counts: Iterable[int], device: torch.device) -> list[Run]:
    """Return the rows with an adapter. `adapters`: of each sequence, 0 for none. `counts`: its rows.

    Long runs are split, so that matmuls have few different sizes, as for `padded_rows`.
    """
    runs: list[Run] = []
    end = 0
    for adapter, parts in groupby(zip(adapters, counts, strict=True), key=itemgetter(0)):
        start, end = end, end + sum(count for _, count in parts)
        while adapter and start < end:
            size = whole_rows(end - start, device)
            runs.append(Run(adapter, start, start + size))
            start += size
    return runs


def batches_of(runs: Iterable[Run], adapter_ids: Sequence[int], device: torch.device) -> list[Batch]:
    """Return the batches for a stack of these adapters, in the order of the rows."""
    positions = {adapter_id: position for position, adapter_id in enumerate(adapter_ids)}
    groups: list[list[_StackedRun]] = []
    width = 0
    for adapter, start, end in runs:
        position = positions.get(adapter)
        if position is None:
            continue
        wider = max(width, end - start)
        if groups and groups[-1][-1].end == start and groups[-1][-1].position < position and wider <= _MAX_BATCHED_ROWS:
            first = groups[-1][0]
            if (position - first.position + 1) * wider <= _MAX_IDLE_ROWS * (end - first.start):
                groups[-1].append(_StackedRun(position, start, end))
                width = wider
                continue
        groups.append([_StackedRun(position, start, end)])
        width = end - start
    return [_batch(group, device) for group in groups]


def _batch(group: Sequence[_StackedRun], device: torch.device) -> Batch:
    first, start = group[0].position, group[0].start
    adapters, count = group[-1].position - first + 1, group[-1].end - start
    width = max(run.end - run.start for run in group)
    if adapters * width == count:
        return Batch(start, count, first, adapters, None, None)
    gather = np.full(adapters * width, start)
    scatter = np.concatenate(
        [np.arange(run.end - run.start) + (run.position - first) * width for run in group], dtype=np.int64
    )
    gather[scatter] = np.arange(start, start + count)
    return Batch(
        start, count, first, adapters, torch.from_numpy(gather).to(device), torch.from_numpy(scatter).to(device)
    )
