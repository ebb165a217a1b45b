"""Decode a body in its two steps, as the pipeline does."""

from collections.abc import Callable
from typing import Any

import numpy as np

from app.inference.contract import NamedRequest
from app.protocols.shared.codec import Target
from frameworks.types import Value


def decode_body(codec: Any, body: Any, target: Target, find_spec: Callable[..., Any]) -> Any:
    """Return the request. `codec`: has `read`. `find_spec`: gets the names and how to read the timeout."""
    named: NamedRequest = codec.read(body, target)
    if named.model is None:
        return named.decode(None)
    return named.decode(find_spec(named.model, named.version, named.read_timeout_ms))


def same(one: Value, other: Value) -> bool:
    """Whether values have equal types, shapes and bits."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
