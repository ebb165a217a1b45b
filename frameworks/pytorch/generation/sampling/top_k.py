"""Compute argmax and top-k of the rows of a batch, and find argmax that rounding may change.

On the CPU NumPy is 5 to 30 times as fast as torch.
"""

from collections.abc import Iterable

import numpy as np
import torch

_POSITION_BITS = 32
# Differences between kernels for different numbers of rows, in ULP of the largest logit.
_ROUNDINGS = {torch.float32: 256, torch.float16: 4, torch.bfloat16: 2}


def argmax_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the argmax of each row, int64 [rows], the first of equal values, and the maximum, [rows] of its dtype.

    NaN counts as the largest value. `rows`: [rows, columns].
    """
    if not _uses_numpy(rows):
        values, positions = rows.max(dim=-1)
        return positions, values
    array = rows.numpy()
    found = array.argmax(axis=-1)
    return torch.from_numpy(found), torch.from_numpy(array[np.arange(len(array)), found])


def _count_from(rows: torch.Tensor, least: torch.Tensor) -> list[int]:
    """Return how many values of each row are at least its value in `least`.

    `rows`: [rows, columns], `least`: [rows] of the same dtype.
    """
    if not _uses_numpy(rows):
        counts: list[int] = (rows >= least[:, None]).sum(dim=-1).tolist()
        return counts
    return [int(np.count_nonzero(of_row)) for of_row in rows.numpy() >= least.numpy()[:, None]]


def top_values(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` largest values of each row, descending: [rows, count], of the rows' dtype."""
    columns = rows.shape[-1]
    if not _uses_numpy(rows):
        if count == columns:
            return rows.sort(dim=-1, descending=True).values
        return rows.topk(count, dim=-1).values
    array = rows.numpy()
    if count < columns:
        array = np.partition(array, columns - count, axis=-1)[:, columns - count :]
    return torch.from_numpy(np.sort(array, axis=-1)[:, ::-1].copy())


def top_positions(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return the positions of the `count` largest values of each row, descending; equal values by position.

    `rows`: float32 [rows, columns] without NaN; int64 [rows, count].
    """
    columns = rows.shape[-1]
    if not _uses_numpy(rows):
        # All keys differ, so every device returns the same ones in any search order.
        last = columns - 1
        from_last = torch.arange(last, -1, -1, device=rows.device)
        keys = (_to_ordered_integers(rows) << _POSITION_BITS) + from_last
        return last - (keys.topk(count, dim=-1).values & ((1 << _POSITION_BITS) - 1))
    array = rows.numpy()
    smallest = np.partition(array, columns - count, axis=-1)[:, columns - count]
    found = np.empty((len(array), count), np.int64)
    for row, floor, positions in zip(array, smallest, found, strict=True):
        candidates = np.flatnonzero(row >= floor)
        positions[:] = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
    return torch.from_numpy(found)


def find_nth_equal(rows: torch.Tensor, values: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
    """Return the position of each row's value, after `earlier` equal ones.

    `rows` [rows, columns], `values` [rows] of the same dtype, `earlier` int64 [rows]; int64 [rows]. For a row without
    such a position, some position of the row.
    """
    if not _uses_numpy(rows):
        passed = (rows == values[:, None]).cumsum(dim=-1) <= earlier[:, None]
        return passed.sum(dim=-1).clamp_(max=rows.shape[-1] - 1)
    equal = rows.numpy() == values.numpy()[:, None]
    positions = equal.argmax(axis=-1)
    for row in np.flatnonzero(earlier.numpy()):
        found = np.flatnonzero(equal[row])
        positions[row] = found[min(int(earlier[row]), len(found) - 1)] if len(found) else 0
    return torch.from_numpy(positions)


def _to_ordered_integers(rows: torch.Tensor) -> torch.Tensor:
    """Convert float32 to int64 of the same order: the bits of negative floats are in reverse order."""
    bits = (rows + 0.0).view(torch.int32)  # makes -0.0 equal to 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()


def _uses_numpy(rows: torch.Tensor) -> bool:
    return rows.device.type == "cpu"


class TieCheck:
    """The rows of a batch that are checked for near ties. `rows`: the greedy ones."""

    def __init__(self, rows: Iterable[int]) -> None:
        self._rows = list(rows)
        self.found: set[int] = set()
        """The rows whose two largest logits differ by less than the rounding."""

    def find(self, values: torch.Tensor, maxima: torch.Tensor, logits_dtype: torch.dtype) -> None:
        """Fill in `found`. `values`: float32 [all rows, vocabulary]; `maxima`: their maxima, float32 [all rows]."""
        if not self._rows:
            return
        if len(self._rows) < len(values):
            index = torch.tensor(self._rows, device=values.device)
            values, maxima = values.index_select(0, index), maxima.index_select(0, index)
        tolerance = maxima.abs() * (_ROUNDINGS[logits_dtype] * torch.finfo(logits_dtype).eps)
        counts = _count_from(values, maxima - tolerance)
        self.found.update(row for row, count in zip(self._rows, counts, strict=True) if count > 1)
