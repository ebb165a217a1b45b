"""An ASGI application that is built in a thread for its first request: its imports take longer than those of the start.

Also ASGI's protocol for the start and the end of the parts, which need no application.
"""

import asyncio
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.types import ASGIApp, Receive, Scope, Send

Lifespan = Callable[[], AbstractAsyncContextManager[None]]
"""Returns the context that starts and stops the parts of a process."""


async def run_lifespan(lifespan: Lifespan, receive: Receive, send: Send) -> None:
    """Start the parts, and stop them when the server ends. Raises their errors, and sends them too."""
    phase = "startup"
    await receive()
    try:
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            phase = "shutdown"
            await receive()
    except BaseException:
        await send({"type": f"lifespan.{phase}.failed", "message": traceback.format_exc()})
        raise
    await send({"type": "lifespan.shutdown.complete"})


class DeferredApplication:
    """Owned by the event loop. After an error of `build` the next request builds again."""

    def __init__(self, build: Callable[[], ASGIApp], lifespan: Lifespan) -> None:
        """`build`: called in a thread. `lifespan`: of the parts of the process, which start without the application."""
        self._build = build
        self.lifespan = lifespan
        self._built: ASGIApp | None = None
        self._building: asyncio.Task[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises the errors of `build`."""
        if scope["type"] == "lifespan":
            await run_lifespan(self.lifespan, receive, send)
            return
        if self._built is None:
            self._built = await self._wait()
        await self._built(scope, receive, send)

    def built(self) -> ASGIApp:
        """Return the application. Blocks while it is built."""
        if self._built is None:
            self._built = self._build()
        return self._built

    async def _wait(self) -> ASGIApp:
        """Return the application, which one of the requests builds. One that is cancelled does not end the work."""
        building = self._building
        if building is None or (building.done() and building.exception() is not None):
            building = asyncio.get_running_loop().create_task(asyncio.to_thread(self._build))
            self._building = building
        return await asyncio.shield(building)
