"""Streams over real sockets: bytes on the wire, persistent connections, slow and stopped readers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from app.http import sse
from app.http.listener import clocks
from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.listener.protocol import BoundedHttpProtocol
from frameworks.core.errors import Overloaded
from frameworks.generation.types import TextDelta
from tests.app.protocols.generating import Endless, EndpointHarness, ScriptedGeneration, events_of
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, settle, soon

PATH = "/models/writer/infer"
PIECES = [TextDelta(0, f"{i} ") for i in range(50)] + [TextDelta(0, "", "stop")]


class SmallBuffers(BoundedHttpProtocol):
    """The system's buffers are small; the default is millions of bytes."""

    limits = Connections(ConnectionBounds())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


@asynccontextmanager
async def serving(harness: EndpointHarness) -> AsyncIterator[tuple[str, int]]:
    """Serve the harness and yield its address. All connections are closed at the end."""
    config = uvicorn.Config(harness.app, interface="asgi3", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SmallBuffers(config, state, {}), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
        await soon(lambda: not state.tasks and not state.connections)
    finally:
        server.close()


@asynccontextmanager
async def open_stream(address: tuple[str, int], **body: object) -> AsyncIterator[socket.socket]:
    """A connection with a requested stream that the test reads."""
    content = json.dumps({"prompt": "a", "stream": True} | body).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, address)
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        await loop.sock_sendall(connection, head.encode() + content)
        yield connection


async def read_all(connection: socket.socket) -> bytes:
    """Return the bytes until the connection or the stream ends."""
    received = b""
    loop = asyncio.get_running_loop()
    while not received.endswith(b"\r\n0\r\n\r\n") and (chunk := await loop.sock_recv(connection, 2**16)):
        received += chunk
    return received


@in_loop
async def test_connection_carries_several_streams() -> None:
    harness = EndpointHarness(ScriptedGeneration())
    async with serving(harness) as (host, port), httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        for _ in range(3):
            harness.generation = ScriptedGeneration(*PIECES)
            async with client.stream("POST", PATH, json={"prompt": "a", "stream": True}) as answer:
                assert answer.headers["transfer-encoding"] == "chunked"
                assert "content-length" not in answer.headers
                events = events_of(await answer.aread())
            assert "".join(event["text"] for event in events[:-1]) == "".join(piece.text for piece in PIECES)
            assert events[-1] == "[DONE]"
            whole = await client.post(PATH, json={"prompt": "a"})
            assert whole.json()["finish_reason"] == "stop"
    assert harness.observer.requests == {("writer", "1", 200, ""): 6}


@in_loop
async def test_reset_connection_cancels_text() -> None:
    harness = EndpointHarness(ScriptedGeneration(TextDelta(0, "a"), asyncio.Event()))
    async with serving(harness) as address:
        async with open_stream(address) as connection:
            await asyncio.get_running_loop().sock_recv(connection, 2**16)
            assert harness.version.references
        await soon(lambda: harness.generation.is_closed)
    harness.check_completed(499)


@in_loop
async def test_stopped_reader_loses_connection_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "STALL_S", 0.1)
    harness = EndpointHarness(Endless())
    async with serving(harness) as address, open_stream(address):
        await soon(lambda: harness.observer.inflight == 1)
        await soon(lambda: harness.observer.inflight == 0)
    harness.check_completed(499)


@in_loop
async def test_slow_reader_gets_whole_stream() -> None:
    text = "x" * 1000
    harness = EndpointHarness(ScriptedGeneration(*[TextDelta(0, text)] * 500, TextDelta(0, "", "stop")))
    async with serving(harness) as address, open_stream(address) as connection:
        received = b""
        stall_checks = 0
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += await asyncio.get_running_loop().sock_recv(connection, 5000)
            if len(received) > (stall_checks + 1) * 100_000:
                stall_checks += 1
                pass_time(clocks.STALL_S)
                await settle()
        connection.close()
    assert stall_checks > 3
    assert received.count(text.encode()) == 500
    assert b"data: [DONE]\n\n" in received
    harness.check_completed(200)


class TestDeadline:
    """The deadline of a request holds until its last byte is read."""

    @in_loop
    async def test_resumed_reader_gets_the_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "LAST_EVENT_S", HANGS_AFTER_S)
        monkeypatch.setattr(clocks, "STALL_S", 10 * HANGS_AFTER_S)
        harness = EndpointHarness(generation := Endless())
        generation.deadline_s = asyncio.get_running_loop().time() + HANGS_AFTER_S
        async with serving(harness) as address, open_stream(address) as connection:
            await soon(lambda: harness.observer.inflight == 1)
            await settle()
            assert not generation.is_closed
            pass_time(HANGS_AFTER_S)
            await soon(lambda: generation.is_closed)
            received = await read_all(connection)
            connection.close()
        assert b'data: {"error":{"code":"deadline_exceeded","message":"the text was not generated and read' in received
        assert b"[DONE]" not in received
        harness.check_completed(200)

    @in_loop
    async def test_stopped_reader_loses_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "LAST_EVENT_S", 0.1)
        harness = EndpointHarness(
            generation := ScriptedGeneration(*[TextDelta(0, "x" * 200_000)] * 9, TextDelta(0, "", "stop"))
        )
        generation.deadline_s = asyncio.get_running_loop().time() + HANGS_AFTER_S
        async with serving(harness) as address, open_stream(address) as connection:
            await soon(lambda: harness.observer.inflight == 1)
            await settle()
            pass_time(HANGS_AFTER_S)
            await soon(lambda: harness.observer.inflight == 0)
            received = await read_all(connection)
        assert b"[DONE]" not in received
        harness.check_completed(200)


class TestGivenUp:
    """Streams whose text was aborted because the reader was slow."""

    ERROR = Overloaded("the reader is 1024 tokens behind", retry_after_s=1)

    @in_loop
    async def test_resumed_reader_gets_the_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "LAST_EVENT_S", HANGS_AFTER_S)
        harness = EndpointHarness(generation := Endless())
        async with serving(harness) as address, open_stream(address) as connection:
            await asyncio.sleep(0.05)
            generation.error = self.ERROR
            received = await read_all(connection)
            connection.close()
        assert b'data: {"error":{"code":"overloaded","message":"the reader is 1024 tokens behind"' in received
        assert b"[DONE]" not in received
        harness.check_completed(200)

    @in_loop
    async def test_stopped_reader_loses_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "LAST_EVENT_S", 0.1)
        harness = EndpointHarness(ScriptedGeneration(TextDelta(0, "x" * 200_000), self.ERROR))
        async with serving(harness) as address, open_stream(address) as connection:
            await soon(lambda: harness.observer.inflight == 1)
            await soon(lambda: harness.observer.inflight == 0)
            received = await read_all(connection)
        assert received.startswith(b"HTTP/1.1 200 OK")
        assert b"error" not in received
        harness.check_completed(200)
