"""Group the rows of a step by adapter, so that few products compute all of them."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from frameworks.pytorch.generation.weights.linear import whole_rows

# An adapter with more rows has products of its own: they take longer than the calls.
_MAX_BATCHED_ROWS = 8
# Up to this factor, filling rows are computed along: one batch is faster than several.
_MOST_IDLE_ROWS = 2


class Run(NamedTuple):
    """Adjacent rows of one adapter, from `start` to before `end`."""

    adapter: int
    start: int
    end: int


class Batch(NamedTuple):
    """Adjacent rows of a step, and the adjacent adapters of a stack that they are multiplied with.

    `start`, `num_rows`: the rows. `first`, `adapters`: the adapters. `taken`: int64 [adapters * width], the rows of
    each adapter and filling rows; None if each adapter has equally many rows. `places`: int64 [num_rows], the places
    of the rows in `taken`.
    """

    start: int
    num_rows: int
    first: int
    adapters: int
    taken: torch.Tensor | None
    places: torch.Tensor | None


class _PlacedRun(NamedTuple):
    """`place`: of the adapter in a stack."""

    place: int
    start: int
    end: int


def runs_of(adapters: Iterable[int], counts: Iterable[int], device: torch.device) -> list[Run]:
    """Return the rows with an adapter. `adapters`: of each text, 0 for none. `counts`: the rows of each text.

    Long runs are split, so that there are few numbers of rows, as for `padded_rows`.
    """
    runs: list[Run] = []
    end = 0
    for adapter, texts in groupby(zip(adapters, counts, strict=True), key=itemgetter(0)):
        start, end = end, end + sum(count for _, count in texts)
        while adapter and start < end:
            size = whole_rows(end - start, device)
            runs.append(Run(adapter, start, start + size))
            start += size
    return runs


def batches_of(runs: Iterable[Run], numbers: Sequence[int], device: torch.device) -> list[Batch]:
    """Return the batches for a stack of the adapters `numbers`, in the order of the rows."""
    places = {number: place for place, number in enumerate(numbers)}
    groups: list[list[_PlacedRun]] = []
    width = 0
    for adapter, start, end in runs:
        place = places.get(adapter)
        if place is None:
            continue
        wider = max(width, end - start)
        if groups and groups[-1][-1].end == start and groups[-1][-1].place < place and wider <= _MAX_BATCHED_ROWS:
            first = groups[-1][0]
            if (place - first.place + 1) * wider <= _MOST_IDLE_ROWS * (end - first.start):
                groups[-1].append(_PlacedRun(place, start, end))
                width = wider
                continue
        groups.append([_PlacedRun(place, start, end)])
        width = end - start
    return [_batch(group, device) for group in groups]


def _batch(group: Sequence[_PlacedRun], device: torch.device) -> Batch:
    first, start = group[0].place, group[0].start
    adapters, count = group[-1].place - first + 1, group[-1].end - start
    width = max(run.end - run.start for run in group)
    if adapters * width == count:
        return Batch(start, count, first, adapters, None, None)
    taken = np.full(adapters * width, start)
    places = np.concatenate(
        [np.arange(run.end - run.start) + (run.place - first) * width for run in group], dtype=np.int64
    )
    taken[places] = np.arange(start, start + count)
    return Batch(start, count, first, adapters, torch.from_numpy(taken).to(device), torch.from_numpy(places).to(device))
