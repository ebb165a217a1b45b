"""Bound the windows of a sound of speech before it is cut."""

from collections.abc import Mapping
from typing import Any

from frameworks.core.errors import InvalidInput
from frameworks.tasks.table import MAX_WINDOW_S

_MOST_OVERLAP = 3 / 8
"""Of a window, with each neighbour: all windows together have at most four times the samples of the sound."""


def check_windows(seconds: float, parameters: Mapping[str, Any]) -> None:
    """Check the length of a sound and of its windows, in seconds. Raises InvalidInput."""
    window_s = parameters.get("chunk_length_s")
    if window_s is None:
        if seconds > MAX_WINDOW_S:
            raise InvalidInput(
                "parameters.chunk_length_s",
                f"expected windows for a sound of more than {MAX_WINDOW_S:g} seconds, got none for {seconds:.1f}; "
                "send 30",
            )
        return
    stride_s = parameters.get("stride_length_s")
    if stride_s is not None and stride_s > window_s * _MOST_OVERLAP:
        raise InvalidInput(
            "parameters.stride_length_s",
            f"expected at most {_MOST_OVERLAP:g} of chunk_length_s, got {stride_s:g} of {window_s:g}; lower it",
        )
