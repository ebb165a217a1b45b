"""Trials of rows that share a run: their inputs, and the comparison with the outputs of the same rows alone."""

from typing import Any

import numpy as np

from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, TensorType, Value, ValueSpec

Tolerance = tuple[float, float, float]
"""Relative to each number, absolute, relative to the largest number of the output."""

# A larger batch adds in another order, and results are rounded as finely as the dtype.
_FINE: Tolerance = (1e-4, 1e-5, 0)
_COARSE: dict[str, Tolerance] = {"bfloat16": (5e-2, 1e-2, 0), "float16": (1e-2, 1e-3, 0)}
# The steps of quantized values depend on the run's largest value, which may be a neighbour's.
_QUANTIZED: Tolerance = (0, 0, 5e-2)


_MAX_ORDINARY = 1000.0


def reason_not_batchable(spec: ModelSpec) -> str | None:
    """Return None if the declared shapes allow rows of several requests in one run, else the reason."""
    given = trial_inputs(spec)
    if spec.state is not None:
        if spec.state.rows_axis:
            return f'the rows of input "{spec.state.rows_input}" are not its first dimension'
        # Scalars, which have no shape: steps with equal ones share a batch.
        given = [declared for declared in given if declared.shape]
    for declared in given:
        if not isinstance(declared.type, TensorType) or not declared.shape or declared.shape[0] != -1:
            return f'input "{declared.name}" has no free first dimension'
    for declared in spec.outputs:
        if isinstance(declared.type, TensorType) and (not declared.shape or declared.shape[0] != -1):
            return f'output "{declared.name}" has no free first dimension'
    return None if given else "the graph has no inputs"


def trial_inputs(spec: ModelSpec) -> list[ValueSpec]:
    """Return the inputs that a trial needs: the required ones, and the mask, which the server would make."""
    mask = spec.sequence.mask if spec.sequence else None
    return [declared for declared in spec.inputs if declared.required or (mask and declared.name == mask.name)]


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


def ordinary_pad_value(pad_value: float) -> float:
    """Return the number beside which a trial's values lie. A very large padding value is meant never to take effect."""
    return pad_value if abs(pad_value) <= _MAX_ORDINARY else 0


def find_sequence_axes(apart: list[dict[str, Value]], lengths: list[int]) -> dict[str, tuple[int, ...]]:
    """Return for each output the axes whose size is the row's own length."""
    first, second = apart
    as_long: dict[str, tuple[int, ...]] = {}
    for name, one in first.items():
        other = second[name]
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.ndim == other.ndim:
            axes = tuple(a for a in range(1, one.ndim) if [one.shape[a], other.shape[a]] == lengths)
            as_long |= {name: axes} if axes else {}
    return as_long


def tolerance_of(spec: ModelSpec, output: str) -> Tolerance:
    """Return how far an output may be off: by the coarser of its own and the model's main dtype."""
    if spec.quantization is not None:
        return _QUANTIZED
    dtypes = f"{spec.dtype} {spec.outputs_by_name[output].type}"
    return next((tolerance for dtype, tolerance in _COARSE.items() if dtype in dtypes), _FINE)


def text_tolerance(spec: ModelSpec, is_quantized: bool = False) -> Tolerance:
    """Return how far the rows of texts may be off, relative to the largest number of each.

    `is_quantized`: whether the model's own files quantize it.
    """
    relative = _QUANTIZED[2] if is_quantized or spec.quantization is not None else _COARSE.get(spec.dtype, _FINE)[0]
    return (0, 0, relative)


def is_close(one: Value, other: Value, tolerance: Tolerance) -> bool:
    """Return whether two values of an output are equal within the tolerance."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and _are_arrays_close(one, other, tolerance)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            _is_item_close(item, single, tolerance) for item, single in zip(one, other, strict=True)
        )
    return False


def _is_item_close(item: Any, single: Any, tolerance: Tolerance) -> bool:
    """Compare items of a sequence: ZipMap's maps of scores, or tensors."""
    if isinstance(item, dict) and isinstance(single, dict):
        return item.keys() == single.keys() and all(_is_item_close(item[key], single[key], tolerance) for key in item)
    first, second = np.asarray(item), np.asarray(single)
    return first.shape == second.shape and _are_arrays_close(first, second, tolerance)


def _are_arrays_close(one: Array, other: Array, tolerance: Tolerance) -> bool:
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    relative, absolute, of_largest = tolerance
    finite = np.abs(other[np.isfinite(other)].astype(np.float64)) if of_largest else np.zeros(0)
    absolute += of_largest * float(finite.max(initial=0))
    return bool(np.allclose(one.astype(np.float64), other.astype(np.float64), relative, absolute, equal_nan=True))
