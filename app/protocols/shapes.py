"""What a tensor's shape may be: within what numpy and a model can hold, and as the model declares it."""

from math import prod
from typing import Any

from frameworks.errors import InvalidInput
from frameworks.types import Array

MAX_RANK = 32
_MAX_ELEMENTS = 2**40


def read_sizes(sizes: Any, field: str) -> tuple[int, ...]:
    """The shape that a caller gives, as a list of Python's own values. Raises InvalidInput where no tensor has it."""
    if not isinstance(sizes, list) or len(sizes) > MAX_RANK or not all(type(d) is int and d >= 0 for d in sizes):
        raise InvalidInput(field, f"wants a list of at most {MAX_RANK} whole numbers, 0 or more")
    # numpy multiplies the sizes also where one of them is 0 and the tensor empty.
    if prod(max(1, d) for d in sizes) >= _MAX_ELEMENTS:
        raise InvalidInput(field, f"{sizes} is larger than any tensor")
    return tuple(sizes)


def check_shape(shape: tuple[int, ...], declared: tuple[int, ...] | None, field: str) -> None:
    """Raises InvalidInput where a shape does not fit the declared one (-1 is free; None fits everything)."""
    if declared is None:
        return
    if len(shape) != len(declared) or any(d not in (-1, came) for came, d in zip(shape, declared, strict=True)):
        raise InvalidInput(field, f"has shape {list(shape)}, and the model wants {list(declared)} (-1 is free)")


def reshape_flat(flat: Array, declared: tuple[int, ...], batch_size: int | None, field: str = "input_data") -> Array:
    """A flat list in the declared shape: one free dimension is solved from the count; with several, `batch_size`
    (default 1) fixes the first and at most one other is solved. Raises InvalidInput where that does not come out even.
    """
    shape = list(declared)
    if declared[0] == -1 and (batch_size is not None or declared.count(-1) > 1):
        shape[0] = batch_size or 1
    free = [i for i, size in enumerate(shape) if size == -1]
    wants = f"the model wants {list(declared)} (-1 is free)"
    if len(free) > 1:
        raise InvalidInput(field, f"{wants}; a flat list cannot say that shape: send it nested")
    known = 1
    for size in shape:
        known *= size if size != -1 else 1
    if free:
        if known == 0 or flat.size % known:
            raise InvalidInput(field, f"holds {flat.size} values, no multiple of {known}; {wants}")
        shape[free[0]] = flat.size // known
    elif known != flat.size:
        raise InvalidInput(field, f"holds {flat.size} values, and shape {shape} takes {known}; {wants}")
    if batch_size is not None and shape[0] != batch_size:
        raise InvalidInput(
            "batch_size", f"is {batch_size}, and the {flat.size} values of {field} are {shape[0]} rows; {wants}"
        )
    return flat.reshape(shape)
