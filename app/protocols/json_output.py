"""Convert values of models to what orjson writes. NaN and infinities become null."""

from typing import Any

import numpy as np
import orjson

from frameworks.types import Array, Value

DIRECT_ELEMENTS = 16 * 1024
"""orjson writes this many numbers in well under a millisecond."""


def to_json_value(value: Value) -> Any:
    """Convert to arrays that orjson accepts, lists, objects with string keys, and scalars."""
    if isinstance(value, np.ndarray):
        return _convert_array(value)
    if isinstance(value, list):
        return [to_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    return value


def array_to_json(array: Array) -> Any:
    """Write a long C-contiguous numeric array in blocks, so that other threads can run between two of them.

    A short array is returned unchanged; orjson writes it directly.
    """
    if array.size <= DIRECT_ELEMENTS or array.ndim == 0 or len(array) < 2:
        return array
    rows = max(1, DIRECT_ELEMENTS * len(array) // array.size)
    blocks = (
        orjson.dumps(array[start : start + rows], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for start in range(0, len(array), rows)
    )
    return orjson.Fragment(b"[" + b",".join(blocks) + b"]")


def _convert_array(array: Array) -> Any:
    if array.ndim == 0:
        scalar = array.item()
        return None if isinstance(scalar, float) and not np.isfinite(scalar) else scalar
    if array.dtype.kind in "OUS":
        return array.tolist()
    return array_to_json(np.ascontiguousarray(array))
