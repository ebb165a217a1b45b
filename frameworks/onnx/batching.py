"""Decide at warm-up whether rows of several requests may share a run: by the graph's shapes, and by a trial."""

from collections.abc import Callable

import numpy as np

from frameworks.batches.comparison import Tolerance, is_close, reason_not_batchable, tolerance_of, trial_inputs
from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, TensorType, Value, ValueSpec

Run = Callable[[dict[str, Value]], dict[str, Value]]


def reason_not_batched(spec: ModelSpec, shapes: dict[str, tuple[int, ...]], run: Run) -> str | None:
    """Return None if a batch of two rows gives the same as two runs of one row; else why batching is off.

    `shapes`: a shape that the graph runs with, for each of its `trial_inputs`. `run`: runs it on all its outputs.
    Raises what the graph raises for made-up rows.
    """
    if (because := reason_not_batchable(spec)) is not None:
        return because
    random = np.random.default_rng(0)
    one, two = ({d.name: random_row(d, shapes[d.name], random) for d in trial_inputs(spec)} for _ in range(2))
    apart = [run(dict(rows)) for rows in (one, two)]
    together = run({name: np.concatenate([one[name], two[name]]) for name in one})
    for name, value in together.items():
        if not _is_both(value, apart[0][name], apart[1][name], tolerance_of(spec, name)):
            return f'output "{name}" of two rows differs from its single runs'
    return None


def _is_both(together: Value, first: Value, second: Value, tolerance: Tolerance) -> bool:
    """Return whether a batch's output is the rows of the two single runs, in order."""
    if isinstance(together, np.ndarray) and isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        if together.ndim == 0 or first.ndim == 0 or (len(together), len(first), len(second)) != (2, 1, 1):
            return False
        return first.shape[1:] == second.shape[1:] and is_close(together, np.concatenate([first, second]), tolerance)
    if isinstance(together, list) and isinstance(first, list) and isinstance(second, list):
        return (len(first), len(second)) == (1, 1) and is_close(together, first + second, tolerance)
    return False


def random_row(
    declared: ValueSpec,
    shape: tuple[int, ...],
    random: np.random.Generator,
    side: int = 0,
    pad_value: float = 0,
) -> Array:
    """Return one row of a tensor: floats from 0 to 1, integers 0 and 1, which every embedding table has.

    `side` -1: below `pad_value` by up to 2 instead, 1: above it, where the dtype has such numbers; a graph may refuse
    them.
    """
    assert isinstance(declared.type, TensorType)
    row_shape = (1, *shape[1:])
    dtype = NUMPY_DTYPES[declared.type.dtype]
    if dtype.kind == "f":
        floats = random.random(row_shape)
        return (floats if not side else pad_value + side * 2 * floats).astype(dtype)
    integers = random.integers(0, 2, row_shape)
    if side and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        integers = np.clip(int(pad_value) + side * (1 + integers), max(limits.min, -(2**62)), min(limits.max, 2**62))
    return integers.astype(str).astype(object) if dtype.kind == "O" else integers.astype(dtype)
