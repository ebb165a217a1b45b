"""ASGI messages that a test lets a server receive."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Messages = list[dict[str, Any]]
GONE = {"type": "http.disconnect"}


def receiver(*messages: dict[str, Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Return an ASGI receive that returns these messages and then blocks, as a server does."""
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.sleep(60)
        raise AssertionError

    return receive
