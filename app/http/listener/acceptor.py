"""Accept the connections of a listening socket, all that wait in one round of the event loop.

libuv accepts one connection in a round, and a round serves a request of every open connection. A thousand clients that
connect together would wait for a thousand rounds, while those that were accepted are served again and again.
"""

import asyncio
import socket
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

ACCEPTED_IN_ROUND = 1024
"""Limit of the connections that are accepted in one round of the loop: so many that a full backlog takes two."""
# As asyncio waits. Without file descriptors an accept fails at once, and the socket stays readable.
_PAUSE_S = 1.0


class Acceptor:
    """Hand each accepted connection to a protocol of its own. Owned by the event loop.

    It has the methods of asyncio's Server that uvicorn calls.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """`listener`: a listening socket, which `close` closes."""
        self._loop = loop
        self._listener = listener
        self._make_protocol = make_protocol
        self._opening: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Accept connections from now on."""
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more connections; those that are open stay open."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is None:
            self._loop.remove_reader(self._listener)
        else:
            self._pause.cancel()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Return when every accepted connection has its protocol."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept what waits."""
        for _ in range(ACCEPTED_IN_ROUND):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except (InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                log.warning("connections cannot be accepted", reason=error.strerror, pause_s=_PAUSE_S)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE_S, self._resume)
                return
            task: asyncio.Task[object] = self._loop.create_task(
                self._loop.connect_accepted_socket(self._make_protocol, connection)
            )
            self._opening.add(task)
            task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[object]) -> None:
        self._opening.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            # Often a client that has disconnected.
            log.debug("an accepted connection was lost", reason=str(error))
