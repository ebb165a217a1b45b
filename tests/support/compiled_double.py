"""A function to compile: it doubles one number."""

from typing import Any


def compiled_function(arguments: Any) -> None:
    """Double the first element."""
    arguments[0] = 2 * arguments[0]
