"""What a tensor's shape may be: within what numpy and a model can hold, and as the model declares it."""

from math import prod
from typing import Any

from frameworks.errors import InvalidInput

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
