"""Pad tensors of different lengths to share a batch, and cut the outputs back."""

from collections.abc import Callable, Sequence

import numpy as np

from frameworks.types import NUMPY_DTYPES, Array, SequenceSpec, TensorType, Value
from memory.pooled_arrays import PooledArrays


def missing_mask(inputs: dict[str, Value], sequence: SequenceSpec) -> dict[str, Value] | None:
    """Return a mask of ones for inputs without their mask; None where no mask is missing."""
    mask = sequence.mask
    if mask is None or mask.name in inputs:
        return None
    assert isinstance(mask.type, TensorType)
    declared = mask.type.shape or ()
    for name in sequence.pad_values:
        value = inputs.get(name)
        if isinstance(value, np.ndarray) and value.ndim > sequence.axis:
            shape = [size if size >= 0 else value.shape[0] for size in declared]
            shape[sequence.axis] = value.shape[sequence.axis]
            return {mask.name: np.ones(shape, NUMPY_DTYPES[mask.type.dtype])}
    return None


def pad_and_join(
    tensors: Sequence[dict[str, Value]], sequence: SequenceSpec, arrays: PooledArrays | None = None
) -> dict[str, Value]:
    """Concatenate the rows, padded to the longest; the mask marks the real elements.

    `arrays`: the pool for large tensors.
    """
    join = arrays.concatenate if arrays else np.concatenate
    if sequence.mask is not None:
        tensors = [{**inputs, **(missing_mask(inputs, sequence) or {})} for inputs in tensors]
    joined: dict[str, Value] = {}
    for name in tensors[0]:
        values = [value for inputs in tensors if isinstance(value := inputs[name], np.ndarray)]
        pad_value = sequence.pad_values.get(name)
        if pad_value is None or len({value.shape[sequence.axis] for value in values}) == 1:
            joined[name] = join(values)
        else:
            joined[name] = _padded(values, sequence.axis, pad_value, arrays.empty if arrays else np.empty)
    return joined


def cut_to_length(outputs: dict[str, Value], length: int, sequence: SequenceSpec) -> dict[str, Value]:
    """Cut the outputs of padded rows back to the length of the rows; returns views."""
    cut = dict(outputs)
    for name, axes in sequence.output_axes.items():
        value = cut.get(name)
        if isinstance(value, np.ndarray):
            cut[name] = value[tuple(slice(length) if axis in axes else slice(None) for axis in range(value.ndim))]
    return cut


def _padded(values: list[Array], axis: int, pad_value: float, empty: Callable[..., Array]) -> Array:
    longest = max(value.shape[axis] for value in values)
    shape = list(values[0].shape)
    shape[0], shape[axis] = sum(map(len, values)), longest
    padded = empty(tuple(shape), values[0].dtype)
    padded.fill(pad_value)
    between = [slice(None)] * (axis - 1)
    at = 0
    for value in values:
        padded[(slice(at, at + len(value)), *between, slice(value.shape[axis]))] = value
        at += len(value)
    return padded
