"""Check the shapes of tensors against the limits of numpy and against the shapes that a model declares."""

from math import prod
from typing import Any

from app.protocols.shared.json.body import describe_type
from frameworks.core.errors import InvalidInput
from frameworks.types import Array

MAX_RANK = 32
_MAX_ELEMENTS = 2**40
_MAX_SHOWN_CHARACTERS = 100


def read_sizes(sizes: Any, field: str) -> tuple[int, ...]:
    """Check a shape from a request, a list of Python's integers. Raises InvalidInput where no tensor can have it."""
    if not isinstance(sizes, list) or len(sizes) > MAX_RANK or not all(type(d) is int and d >= 0 for d in sizes):
        raise InvalidInput(field, f"expected a list of at most {MAX_RANK} integers of 0 or more, got {_given(sizes)}")
    # numpy multiplies the sizes even where one of them is 0 and the tensor is empty.
    if prod(max(1, d) for d in sizes) >= _MAX_ELEMENTS:
        raise InvalidInput(field, f"expected fewer than {_MAX_ELEMENTS} elements, got the shape {sizes}")
    return tuple(sizes)


def _given(sizes: Any) -> str:
    if not isinstance(sizes, list):
        return describe_type(sizes)
    # The text of a long list would take longer than the request.
    return str(sizes)[:_MAX_SHOWN_CHARACTERS] if len(sizes) <= MAX_RANK else f"more than {MAX_RANK}"


def check_shape(shape: tuple[int, ...], declared: tuple[int, ...] | None, field: str) -> None:
    """Raises InvalidInput where a shape does not match the declared one (-1 is free; None matches every shape)."""
    if declared is None:
        return
    if len(shape) != len(declared) or any(d not in (-1, size) for size, d in zip(shape, declared, strict=True)):
        raise InvalidInput(field, f"expected shape {list(declared)} (-1 is free), got {list(shape)}")


def reshape_flat(flat: Array, declared: tuple[int, ...], batch_size: int | None, field: str = "input_data") -> Array:
    """Reshape a flat list to the declared shape.

    One free dimension is computed from the number of values. With several, `batch_size` (default 1) fixes the first,
    and at most one other is computed. Raises InvalidInput where the number of values does not match.
    """
    shape = list(declared)
    if declared[0] == -1 and (batch_size is not None or declared.count(-1) > 1):
        shape[0] = batch_size or 1
    free = [i for i, size in enumerate(shape) if size == -1]
    expects = f"the model expects {list(declared)} (-1 is free)"
    if len(free) > 1:
        raise InvalidInput(field, f"expected a nested list, got a flat one; {expects}, which a flat list does not give")
    known = 1
    for size in shape:
        known *= size if size != -1 else 1
    if free:
        if known == 0 or flat.size % known:
            raise InvalidInput(field, f"expected a multiple of {known} values, got {flat.size}; {expects}")
        shape[free[0]] = flat.size // known
    elif known != flat.size:
        raise InvalidInput(field, f"expected {known} values for shape {shape}, got {flat.size}; {expects}")
    if batch_size is not None and shape[0] != batch_size:
        raise InvalidInput("batch_size", f"expected {shape[0]}, the rows of {field}, got {batch_size}; {expects}")
    return flat.reshape(shape)
