"""Runs of a graph at warm-up that show what may share a batch: the values they are given, and how answers compare."""

from collections.abc import Callable
from typing import Any

import numpy as np

from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, TensorType, Value, ValueSpec

Run = Callable[[dict[str, Value]], dict[str, Value]]
Tolerance = tuple[float, float, float]
"""Relative to each number, absolute, relative to the largest number of the output."""

# Sums are taken in another order in a larger batch, and what they are rounded to is as fine as the dtype.
_FINE: Tolerance = (1e-4, 1e-5, 0)
_COARSE: dict[str, Tolerance] = {"bfloat16": (5e-2, 1e-2, 0), "float16": (1e-2, 1e-3, 0)}
# The steps in which a run's values are rounded are as wide as its largest value makes them, a neighbour's too.
_QUANTIZED: Tolerance = (0, 0, 5e-2)


def trial_inputs(spec: ModelSpec) -> list[ValueSpec]:
    """What a trial must give: the required inputs, and the mask, which the server would make."""
    mask = spec.sequence.mask if spec.sequence else None
    return [declared for declared in spec.inputs if declared.required or (mask and declared.name == mask.name)]


def random_row(
    declared: ValueSpec,
    shape: tuple[int, ...],
    random: np.random.Generator,
    side: int = 0,
    pad_value: float = 0,
) -> Array:
    """One row of a tensor: floats from 0 to 1, whole numbers 0 and 1, which every table of embeddings has.

    `side` -1: less than `pad_value` by up to 2 instead, 1: more, where the dtype has such numbers; a graph may refuse
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


def tolerance_of(spec: ModelSpec, output: str) -> Tolerance:
    """How far an output may be off: as far as the coarser of its own and the model's main dtype makes likely."""
    if spec.quantization is not None:
        return _QUANTIZED
    dtypes = f"{spec.dtype} {spec.outputs_by_name[output].type}"
    return next((tolerance for dtype, tolerance in _COARSE.items() if dtype in dtypes), _FINE)


def is_same(one: Value, other: Value, tolerance: Tolerance) -> bool:
    """Whether two values of an output are equal within the tolerance."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and _is_close(one, other, tolerance)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            _is_item_close(item, single, tolerance) for item, single in zip(one, other, strict=True)
        )
    return False


def _is_item_close(item: Any, single: Any, tolerance: Tolerance) -> bool:
    """Items of a sequence: ZipMap's maps of scores, or tensors."""
    if isinstance(item, dict) and isinstance(single, dict):
        return item.keys() == single.keys() and all(_is_item_close(item[key], single[key], tolerance) for key in item)
    first, second = np.asarray(item), np.asarray(single)
    return first.shape == second.shape and _is_close(first, second, tolerance)


def _is_close(one: Array, other: Array, tolerance: Tolerance) -> bool:
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    relative, absolute, of_largest = tolerance
    finite = np.abs(other[np.isfinite(other)].astype(np.float64)) if of_largest else np.zeros(0)
    absolute += of_largest * float(finite.max(initial=0))
    return bool(np.allclose(one.astype(np.float64), other.astype(np.float64), relative, absolute, equal_nan=True))
