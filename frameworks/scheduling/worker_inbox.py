"""Wait for the next message of a model's thread, and report when the thread becomes idle."""

import queue
from collections.abc import Callable
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)

IDLE_AFTER_S = 0.05
"""Seconds without work after which a model is idle."""

Message = TypeVar("Message")


def next_message(messages: "queue.SimpleQueue[Message]", on_idle: Callable[[], None]) -> Message:
    """Wait for a message. `on_idle` is called once, after IDLE_AFTER_S without one."""
    try:
        return messages.get(timeout=IDLE_AFTER_S)
    except queue.Empty:
        pass
    try:
        on_idle()
    except Exception:
        log.exception("on_idle of a model failed")
    return messages.get()
