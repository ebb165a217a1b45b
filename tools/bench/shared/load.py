"""Send load that wrk cannot: many different texts, bursts, and a steady rate independent of the answers."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

from extensions.load_test.connection import Connection as HttpConnection
from extensions.load_test.connection import Response, ServerAddress

_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A status, and the seconds from the planned start of the request to the last byte of its answer."""

    status: int
    took_s: float


class Connection:
    """One persistent HTTP connection to a port of this machine, for one request at a time."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self.answer = Response()
        """The last one. Its headers have names in small letters."""

    @classmethod
    async def to(cls, port: int) -> "Connection":
        return cls(await HttpConnection.connect(ServerAddress("127.0.0.1", port, "bench", "", None)))

    async def ask(self, request: bytes) -> int:
        """Return the status of the complete answer. Raises TimeoutError if it hangs."""
        async with asyncio.timeout(_LIMIT_S):
            self.answer = await self._connection.send(request)
        return self.answer.status

    @property
    def body(self) -> bytes:
        """The body of the last answer."""
        return self.answer.body

    def close(self) -> None:
        self._connection.close()


def request_of(path: str, body: bytes, key: str | None = None) -> bytes:
    """Return the bytes of a POST, with a key if the server requires one."""
    authorization = "" if key is None else f"authorization: Bearer {key}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{authorization}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def closed_loop(port: int, requests: Sequence[bytes], connections: int, count: int, warm: int = 0) -> float:
    """Return the seconds for `count` answers; each connection sends its next request after an answer.

    The clock starts at the answer number `warm`, and with 0 at the first request. The requests come round again and
    again: where `count` is a multiple of their number, those in flight at the start and at the end are the same ones.
    """
    coming = cycle(requests)
    answered_s: list[float] = []
    total = warm + count
    asked = 0

    async def ask_on(connection: Connection) -> None:
        nonlocal asked
        # With a warm-up the other callers continue until the last counted answer, so the load stays the same.
        while len(answered_s) < total if warm else asked < total:
            asked += 1
            status = await connection.ask(next(coming))
            if status != 200:
                raise RuntimeError(f"a request was answered {status}")
            answered_s.append(time.perf_counter())

    opened = await asyncio.gather(*(Connection.to(port) for _ in range(connections)))
    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in opened:
            group.create_task(ask_on(connection))
    for connection in opened:
        connection.close()
    return answered_s[total - 1] - (answered_s[warm - 1] if warm else started_s)


# asyncio rounds timers up to milliseconds, and the kernel adds to them.
_TIMER_GRAIN_S = 0.0015


async def open_loop(port: int, request: bytes, per_second: float, goes_on: Callable[[int], bool]) -> list[Answered]:
    """Send at a steady rate, independent of the answers, while `goes_on(number sent)` is true.

    Times are counted from when a request is due. Timers of the loop are late by up to a millisecond, which is not the
    server's: the last part of each wait polls the sockets.
    """
    # In turns: the server closes a connection that sends no head for ten seconds.
    idle = deque(await asyncio.gather(*(Connection.to(port) for _ in range(64))))
    everyone = list(idle)
    answers: list[Answered] = []

    async def ask(due_s: float) -> None:
        if idle:
            connection = idle.popleft()
        else:
            connection = await Connection.to(port)
            everyone.append(connection)
        status = await connection.ask(request)
        answers.append(Answered(status, time.perf_counter() - due_s))
        idle.append(connection)

    started_s = time.perf_counter()
    sent = 0
    async with asyncio.TaskGroup() as group:
        while goes_on(sent):
            due_s = started_s + sent / per_second
            while (early_s := due_s - time.perf_counter()) > 0:  # noqa: ASYNC110 - time passes without an event
                await asyncio.sleep(max(0.0, early_s - _TIMER_GRAIN_S))
            group.create_task(ask(due_s))
            sent += 1
    for connection in everyone:
        connection.close()
    return answers
