"""How a model's thread waits for something to do."""

import queue
from collections.abc import Callable
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)

REST_AFTER_S = 0.05
"""With nothing to do for so long, a model rests."""

Message = TypeVar("Message")


def next_of(messages: "queue.SimpleQueue[Message]", rest: Callable[[], None]) -> Message:
    """Waits for a message; after a moment without any `rest` is called, once."""
    try:
        return messages.get(timeout=REST_AFTER_S)
    except queue.Empty:
        pass
    try:
        rest()
    except Exception:
        log.exception("a model did not rest")
    return messages.get()
