"""Compare values that travelled between two processes: with their types, dtypes and shapes, and NaN equal to NaN."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def is_same(left: Any, right: Any) -> bool:
    """Return whether two values are of one type and of equal content. The order of dicts does not matter."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        is_number = left.dtype.kind in "fc"
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=is_number)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    if is_dataclass(left):
        return all(is_same(getattr(left, each.name), getattr(right, each.name)) for each in fields(left))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)
