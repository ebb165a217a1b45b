"""Convert values of models to what orjson writes. NaN and infinities become null."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson

from frameworks.types import Array, Value

Item = TypeVar("Item")

# Each item may have a hundred values.
_BLOCK_ITEMS = 256

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


def list_to_json(items: Sequence[Item], describe: Callable[[Item], Any]) -> Any:
    """Describe each item. A long list is written in blocks, as `array_to_json` does."""
    if len(items) <= _BLOCK_ITEMS:
        return [describe(item) for item in items]
    return orjson.Fragment(b"[" + b",".join(_blocks(items, describe)) + b"]")


def list_to_json_string(items: Sequence[Item], describe: Callable[[Item], Any]) -> Any:
    """As `list_to_json`, for a string that holds the JSON of the list."""
    # Each block is escaped by itself: the escaped blocks make up the escaped whole.
    parts = (orjson.dumps(block.decode())[1:-1] for block in _blocks(items, describe))
    return orjson.Fragment(b'"[' + b",".join(parts) + b']"')


def _blocks(items: Sequence[Item], describe: Callable[[Item], Any]) -> Iterator[bytes]:
    for start in range(0, len(items), _BLOCK_ITEMS):
        described = [describe(item) for item in items[start : start + _BLOCK_ITEMS]]
        yield orjson.dumps(described, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _convert_array(array: Array) -> Any:
    if array.ndim == 0:
        scalar = array.item()
        return None if isinstance(scalar, float) and not np.isfinite(scalar) else scalar
    if array.dtype.kind in "OUS":
        return array.tolist()
    return array_to_json(np.ascontiguousarray(array))
