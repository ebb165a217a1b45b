"""Whether rows of different callers may share a run of a graph: its shapes must allow it and a trial must show it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from frameworks.errors import RoundhouseError
from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, TensorType, Value, ValueSpec

# Sums are taken in another order in a larger batch.
_RELATIVE_TOLERANCE = 1e-4
_ABSOLUTE_TOLERANCE = 1e-5

Run = Callable[[dict[str, Value]], dict[str, Value]]


def why_not_batched(spec: ModelSpec, shapes: dict[str, tuple[int, ...]], run: Run) -> str | None:
    """None if a batch of two rows gives what two runs of one row give; else why batching is off.

    `shapes`: a shape for each required input that the graph runs with. `run` runs the graph on all its outputs.
    """
    required = [declared for declared in spec.inputs if declared.required]
    for declared in required:
        if not isinstance(declared.type, TensorType) or not declared.shape or declared.shape[0] != -1:
            return f'input "{declared.name}" has no free first dimension'
    for declared in spec.outputs:
        if isinstance(declared.type, TensorType) and (not declared.shape or declared.shape[0] != -1):
            return f'output "{declared.name}" has no free first dimension'
    if not required:
        return "it takes no input"
    random = np.random.default_rng(0)
    one, two = ({d.name: _random_row(d, shapes[d.name], random) for d in required} for _ in range(2))
    try:
        apart = [run(dict(rows)) for rows in (one, two)]
        together = run({name: np.concatenate([one[name], two[name]]) for name in one})
    except RoundhouseError as error:
        return f"a trial with two rows failed: {error.message}"
    for name, value in together.items():
        if not _is_both(value, apart[0][name], apart[1][name]):
            return f'output "{name}" of two rows differs from that of each by itself'
    return None


def _random_row(declared: ValueSpec, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    assert isinstance(declared.type, TensorType)
    row_shape = (1, *shape[1:])
    dtype = NUMPY_DTYPES[declared.type.dtype]
    if dtype.kind == "f":
        return random.random(row_shape).astype(dtype)
    zeros_and_ones = random.integers(0, 2, row_shape)
    return zeros_and_ones.astype(str).astype(object) if dtype.kind == "O" else zeros_and_ones.astype(dtype)


def _is_both(together: Value, first: Value, second: Value) -> bool:
    """Whether a batch's output is the rows of the two single ones, one after the other."""
    if isinstance(together, np.ndarray) and isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        if together.ndim == 0 or first.ndim == 0 or (len(together), len(first), len(second)) != (2, 1, 1):
            return False
        return first.shape[1:] == second.shape[1:] == together.shape[1:] and _is_close(
            together, np.concatenate([first, second])
        )
    if isinstance(together, list) and isinstance(first, list) and isinstance(second, list):
        return (len(together), len(first), len(second)) == (2, 1, 1) and all(
            _is_item_close(item, single) for item, single in zip(together, first + second, strict=True)
        )
    return False


def _is_item_close(item: Any, single: Any) -> bool:
    """Items of a sequence: ZipMap's maps of scores, or tensors."""
    if isinstance(item, dict) and isinstance(single, dict):
        return item.keys() == single.keys() and all(_is_item_close(item[key], single[key]) for key in item)
    first, second = np.asarray(item), np.asarray(single)
    return first.shape == second.shape and _is_close(first, second)


def _is_close(one: Array, other: Array) -> bool:
    if one.dtype.kind == "f":
        return bool(np.allclose(one, other, _RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE, equal_nan=True))
    return bool(np.array_equal(one, other))
