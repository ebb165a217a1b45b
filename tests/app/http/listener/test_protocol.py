"""Requests and responses over real sockets: whole, in order and within their bounds."""

import asyncio
import gc
import json
from typing import Any

import pytest

from app.http.listener.cycle import Cycle
from app.http.listener.parsing import MAX_HEAD_BYTES
from tests.app.http.connections import (
    MAX_BYTES,
    Quick,
    answer_of,
    connected,
    exchange,
    messages,
    outcomes,
    request,
)
from tests.support.loops import in_loop, soon


class TestAnswers:
    @in_loop
    async def test_pipelined_requests_are_answered_in_order(self) -> None:
        ways = [("short", "0.05"), ("long", "0"), ("short", "0"), ("short", "0.02"), ("long", "0.02"), ("short", "0")]
        async with connected() as connection:
            sent = [request(f"/{way}/{100 + i}", b"body", f"x-wait: {wait}") for i, (way, wait) in enumerate(ways)]
            connection[1].write(b"".join(sent))
            for i, (way, _) in enumerate(ways):
                status, headers, body = await answer_of(connection)
                assert (status, headers["x-way"], body.split()[0]) == (200, way, b"%d" % (100 + i))
            assert (await exchange(connection, "/echo", b"after all of them"))[2] == b"after all of them"

    @in_loop
    @pytest.mark.parametrize("way", ["short", "long"])
    @pytest.mark.parametrize(
        ("version", "lines"), [("1.1", ["connection: close"]), ("1.0", []), ("1.1", ["Connection: Close"])]
    )
    async def test_connection_close_header_closes_after_response(
        self, way: str, version: str, lines: list[str]
    ) -> None:
        async with connected() as connection:
            connection[1].write(request(f"/{way}/5", b"", *lines, version=version))
            status, headers, body = await answer_of(connection)
            assert (status, headers["x-way"], headers["connection"], len(body)) == (200, way, "close", 5)
            assert await asyncio.wait_for(connection[0].read(), 60) == b""
            assert not Quick.limits.closed.total(), "closed at once, not by a timer"

    @in_loop
    @pytest.mark.parametrize("size", [2, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 3_000_000])
    async def test_response_of_any_size_arrives_whole(self, size: int) -> None:
        async with connected() as connection:
            for _ in range(2):
                _, headers, body = await exchange(connection, f"/short/{size}")
                assert (headers["x-way"], body) == ("short", (b"%d " % size).ljust(size, b"x"))

    @in_loop
    async def test_body_of_any_size_arrives_whole(self) -> None:
        async with connected() as connection:
            for size in (0, 1, 16 * 1024, 70_000, 1_000_000):
                body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
                assert (await exchange(connection, "/echo", body))[2] == body

    @in_loop
    @pytest.mark.parametrize("path", ["/short/5", "/long/5", "/echo"])
    async def test_request_is_freed_without_collection(self, path: str) -> None:
        async with connected() as connection:
            gc.collect()
            gc.disable()
            try:
                for _ in range(5):
                    await exchange(connection, path, b"body")
                # Not isinstance: deprecated objects of other tests warn when they are asked for their class.
                kept = [each for each in gc.get_objects() if type(each) is Cycle]
            finally:
                gc.enable()
            assert len(kept) == 1, "the connection keeps its last request"

    @in_loop
    async def test_long_body_is_gathered(self) -> None:
        async with connected() as connection:
            for size in (1, 70_000, MAX_BYTES, 600_000):
                body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
                messages.clear()
                assert (await exchange(connection, "/gathered", body))[2] == body
                assert len(messages) <= 2
                assert (await exchange(connection, "/echo", b"between"))[2] == b"between"

    @in_loop
    async def test_gathered_body_excludes_next_request(self) -> None:
        pieces = [b"a" * 100_000, b"b", b"c" * 100_000, b"d" * 7]
        whole = request("/gathered", b"".join(pieces))
        chunked = b"POST /gathered HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        for message in (whole, chunked):
            async with connected() as connection:
                data = message + request("/echo", b"next")
                for start in range(0, len(data), 90_000):
                    connection[1].write(data[start : start + 90_000])
                    await asyncio.sleep(0.01)
                assert (await answer_of(connection))[2] == b"".join(pieces)
                assert (await answer_of(connection))[2] == b"next"

    @in_loop
    async def test_body_is_gathered_up_to_bound(self) -> None:
        async with connected() as connection:
            connection[1].write(b"POST /gathered HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            piece = bytes(100_000)
            for _ in range(MAX_BYTES // len(piece) + 1):
                connection[1].write(b"%x\r\n%b\r\n" % (len(piece), piece))
            assert (await answer_of(connection))[2] == b"-"
            assert outcomes == ["TooLarge"]

    @in_loop
    async def test_disconnect_while_body_is_gathered(self) -> None:
        async with connected() as connection:
            connection[1].write(request("/gathered", bytes(500_000))[:-1])
            await soon(lambda: len(messages) == 2)
            connection[1].close()
            await soon(lambda: outcomes == ["ClientGone"])

    @in_loop
    async def test_unread_response_delays_next_request(self) -> None:
        """With a full socket the fast path is closed and the slow path waits."""
        size = 20_000_000
        async with connected() as connection:
            connection[1].write(request(f"/short/{size}") + request("/short/7"))
            await soon(lambda: bool(Quick.made) and Quick.made[0].flow.write_paused)
            first, second = await answer_of(connection), await answer_of(connection)
            assert (first[1]["x-way"], len(first[2])) == ("short", size)
            assert (second[1]["x-way"], second[2].split()[0]) == ("long", b"7")

    @in_loop
    async def test_nothing_is_sent_after_disconnect(self) -> None:
        async with connected() as connection:
            connection[1].write(request("/short/10", b"", "x-wait: 0.1"))
            await soon(lambda: bool(Quick.made) and Quick.made[0].cycle is not None)
            connection[1].close()
            await soon(lambda: Quick.made[0].cycle.disconnected)
            fast_path: Any = Quick.made[0].cycle
            assert fast_path.take_body() is None
            assert fast_path.respond(200, b"", b"") is False

    @in_loop
    @pytest.mark.parametrize("earlier", [False, True], ids=["at first", "after others"])
    async def test_long_head_is_refused(self, earlier: bool) -> None:
        async with connected() as connection:
            if earlier:
                assert (await exchange(connection, "/short/10"))[0] == 200
            assert (await exchange(connection, "/short/10", b"", "x: " + "y" * (MAX_HEAD_BYTES - 200)))[0] == 200
            status, headers, body = await exchange(connection, "/short/10", b"", "x: " + "y" * (MAX_HEAD_BYTES + 200))
            assert (status, headers["connection"]) == (400, "close")
            assert json.loads(body)["error"]["message"].startswith(f"headers: more than {MAX_HEAD_BYTES} bytes")
            assert await asyncio.wait_for(connection[0].read(), 60) == b""
            assert not Quick.limits.closed.total(), "closed at once, not by a timer"
