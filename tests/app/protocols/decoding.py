"""Decode a body in its two steps, as the pipeline does."""

from collections.abc import Callable
from typing import Any

from app.inference.contract import NamedRequest
from app.protocols.shared.codec import Target


def decode_body(codec: Any, body: Any, target: Target, find_spec: Callable[..., Any]) -> Any:
    """Return the request. `codec`: has `read`. `find_spec`: gets the names and how to read the timeout."""
    named: NamedRequest = codec.read(body, target)
    if named.model is None:
        return named.decode(None)
    return named.decode(find_spec(named.model, named.version, named.read_timeout_ms))
