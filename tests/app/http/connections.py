"""Serve an application over one real connection, which closes after a short idle time."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.http.bodies import declared_length, read_body, read_body_into
from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.listener.cycle import FAST_PATH, Cycle
from app.http.listener.protocol import BoundedHttpProtocol
from app.protocols.shared.errors import ClientGone, RequestTimeout, TooLarge
from frameworks.core.errors import Overloaded
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.types import Array
from tests.support.loops import HANGS_AFTER_S, pass_time, settle, soon

IDLE_S = HANGS_AFTER_S
MAX_BYTES = 2_000_000
LEAD_BYTES = 3
SEND_BUFFERS_BYTES = (4096, 300_000)
"""Of the kernel for a connection. With the larger one it asks for more only after 200,000 bytes are read."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond after `x-wait` seconds. /short/1000: 1000 bytes by the fast path; /long/1000: by ASGI messages.

    /echo: the body of the request; /late: the same, read after `x-wait` seconds; /gathered: the same, read by
    `read_body` up to MAX_BYTES; /direct: the same, by `read_body_into` in the memory that `leased` has. /refused: 413
    before the body is read. The header `x-way` names the path that was taken. /repeated: the body, also for requests
    whose head is not parsed again, which `repeated` has.
    """
    headers = dict(scope["headers"])
    fast_path = scope["extensions"].pop(FAST_PATH)
    _, way, *size = scope["path"].split("/")
    if way == "refused":
        fast_path.respond(413, b"content-length: 0\r\n", b"")
        return
    if way == "repeated":
        fast_path.repeat = answer_again
    if way == "late":
        await asyncio.sleep(float(headers[b"x-wait"]))
        del headers[b"x-wait"]
    body = await (_gathered(scope, receive, fast_path) if way in ("gathered", "direct") else _received(receive))
    await asyncio.sleep(float(headers.get(b"x-wait", b"0")))
    answer = (
        body
        if way in ("echo", "gathered", "direct", "late", "repeated")
        else (b"%d " % int(size[0])).ljust(int(size[0]), b"x")
    )
    if way != "long" and fast_path.respond(200, b"content-length: %d\r\nx-way: short\r\n" % len(answer), answer):
        return
    lines = [(b"content-length", b"%d" % len(answer)), (b"x-way", b"long")]
    await send({"type": "http.response.start", "status": 200, "headers": lines})
    await send({"type": "http.response.body", "body": answer})


async def answer_again(cycle: Cycle) -> None:
    """Answer another request to /repeated."""
    body = cycle.take_body()
    assert body is not None
    repeated.append(body)
    await asyncio.sleep(float(dict(cycle.scope["headers"]).get(b"x-wait", b"0")))
    cycle.respond(200, b"content-length: %d\r\nx-way: again\r\n" % len(body), body)


async def _received(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        piece: bytes = message.get("body", b"")
        body += piece
        if not message.get("more_body"):
            return body


async def _gathered(scope: Scope, receive: Receive, fast_path: Any) -> bytes:
    """The body, or the reason why it was not read; `messages` counts the wake-ups of its task."""

    def counted() -> Any:
        messages.append(scope["path"])
        return receive()

    try:
        with byte_limit.hold() as hold:
            if scope["path"].startswith("/gathered"):
                return await read_body(scope, counted, MAX_BYTES, hold, None, fast_path)
            assert fast_path.receives_into
            length = declared_length(scope["headers"], MAX_BYTES, hold)
            assert length is not None
            body = await read_body_into(counted, fast_path, hold, _lease, LEAD_BYTES, length)
            return bytes(body[LEAD_BYTES:])
    except (ClientGone, Overloaded, RequestTimeout, TooLarge) as error:
        outcomes.append(type(error).__name__)
        return b"-"


def _lease(nbytes: int) -> Array:
    leased.append(np.zeros(nbytes, np.uint8))
    return leased[-1]


messages: list[str] = []
repeated: list[bytes] = []
leased: list[Array] = []
byte_limit = ByteLimit(5 * MAX_BYTES)
outcomes: list[str] = []


class Quick(BoundedHttpProtocol):
    """A protocol that closes after IDLE_S. `made`: all instances. `received_bytes`: those of requests."""

    made: "list[Quick]"
    limits: Connections
    system_bytes: int | None = None
    """Maximum bytes in the system's buffers; the default is millions."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config, ServerState(), {})
        self.timeout_keep_alive = IDLE_S
        self.received_bytes = 0
        self.made.append(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.received_bytes += len(data)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.system_bytes is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.system_bytes)


@asynccontextmanager
async def connected(
    header_timeout_s: float = 10 * IDLE_S, body_timeout_s: float = 10 * IDLE_S, max_connections: int = 10
) -> AsyncIterator[Connection]:
    """Serve one connection and yield its other end."""
    Quick.limits = Connections(ConnectionBounds(header_timeout_s, body_timeout_s, max_connections))
    Quick.made = []
    messages.clear()
    repeated.clear()
    leased.clear()
    outcomes.clear()
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    server = await asyncio.get_running_loop().create_server(lambda: Quick(config), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=2**25)
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        await server.wait_closed()
        await soon(lambda: all(each.transport.is_closing() for each in Quick.made))


def request(path: str, body: bytes = b"", *lines: str, version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "host: x", f"content-length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def answer_of(connection: Connection) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the next response."""
    reader, _ = connection
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 60)
    return int(first.split()[1]), headers, body


async def exchange(connection: Connection, *arguments: Any) -> tuple[int, dict[str, str], bytes]:
    connection[1].write(request(*arguments))
    return await answer_of(connection)


async def check_idle_time(connection: Connection) -> None:
    """Check that the server closes the connection IDLE_S after its last response, and not before."""
    pass_time(IDLE_S * 0.8)
    await settle()
    assert not Quick.made[0].transport.is_closing()
    pass_time(IDLE_S * 0.2)
    assert await asyncio.wait_for(connection[0].read(), 60) == b""
