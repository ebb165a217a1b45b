"""Whole runs against servers on loopback that answer late, wrongly or not at all."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from extensions.load_test import connection
from extensions.load_test.connection import address_of
from extensions.load_test.http_calls import HttpClient
from extensions.load_test.inputs.bodies import RequestContent
from extensions.load_test.report import result
from extensions.load_test.run import LoadPlan, LoadRun
from extensions.load_test.target import LoadTarget, RequestWriter

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nserver-timing: compute;dur=3\r\n\r\n{}"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


def responding(response: bytes, closes: bool = False) -> Answer:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(response)
            await writer.drain()
            if closes:
                return

    return respond


def target_at(port: int) -> LoadTarget:
    return LoadTarget(address_of(f"http://127.0.0.1:{port}", None), "native", "m", "/models/m/infer", {})


def run_of(plan: LoadPlan, port: int, is_streamed: bool = False) -> LoadRun:
    target = target_at(port)
    writer = RequestWriter(target.address, lambda *_: {"x-key": "k"}, is_signed=False)
    return LoadRun(plan, HttpClient(target, writer, plan.timeout_s), [RequestContent(b"{}", is_streamed)])


async def served(answer: Answer, work: Callable[[int], Awaitable[None]]) -> None:
    """Run `work(port)` against a server whose connections are handled by `answer`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        await work(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def gone(plan: LoadPlan, answer: Answer, is_streamed: bool = False) -> LoadRun:
    """Return a run that has ended."""
    runs = []

    async def work(port: int) -> None:
        runs.append(run_of(plan, port, is_streamed))
        await runs[0].go()

    asyncio.run(served(answer, work))
    return runs[0]


def closed_loop(requests: int, **more: float) -> LoadPlan:
    return LoadPlan(rate=None, concurrency=2, duration_s=None, requests=requests, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plan",
    [closed_loop(25), LoadPlan(rate=2000, concurrency=None, duration_s=None, requests=25, connections=3)],
    ids=["closed", "open"],
)
def test_run_sends_exactly_the_requests(plan: LoadPlan) -> None:
    run = gone(plan, responding(OK))
    assert (run.sent, run.tally.succeeded, run.tally.failed, run.ended_by) == (25, 25, 0, "requests")
    assert run.connections.opened <= 3
    assert run.tally.server_timings["compute"].count == 25


@pytest.mark.parametrize("rate", [None, 50.0])
def test_run_ends_after_duration(rate: float | None) -> None:
    plan = LoadPlan(rate=rate, concurrency=None if rate else 2, duration_s=0.2, warmup_s=0.1)
    run = gone(plan, responding(OK))
    assert run.ended_by == "duration"
    assert run.sent == run.tally.succeeded > 0


def test_slow_server_delays_all_planned_requests() -> None:
    is_first = True

    async def stall_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal is_first
        while True:
            await read_request(reader)
            if is_first:
                is_first = False
                await asyncio.sleep(0.3)
            writer.write(OK)

    plan = LoadPlan(rate=1000, concurrency=None, is_poisson=False, connections=1, duration_s=None, requests=20)
    run = gone(plan, stall_once)
    # Only one request was sent before the pause, but all of them were planned: none of them is shown as fast.
    assert run.tally.succeeded == 20
    assert run.tally.latency.min_s >= 0.3 - 0.02


def test_requests_without_free_connection_are_not_sent() -> None:
    async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    plan = LoadPlan(rate=1000, concurrency=None, is_poisson=False, connections=2, duration_s=0.1, timeout_s=0.2)
    run = gone(plan, hang)
    assert (run.sent, run.tally.failures) == (2, {(0, "timeout"): 2})
    assert run.tally.not_sent == 98
    warnings = result(run, plan, target_at(1), 0.0, "")["warnings"]
    assert "98 planned requests were not sent" in " ".join(warnings)
    assert "No request succeeded." in warnings


@pytest.mark.parametrize(
    ("response", "failure"),
    [
        (b"", (0, "connection_closed")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", (0, "incomplete_response")),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", (0, "incomplete_response")),
        (b"nonsense\r\n\r\n", (0, "invalid_response")),
        pytest.param(b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000, (0, "response_too_large"), id="long header"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, (0, "response_too_large"), id="many headers"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 4_000_000, (0, "response_too_large"), id="long body"),
        (b'HTTP/1.1 503 x\r\n\r\n{"error": {"code": "overloaded"}}', (503, "overloaded")),
        (b'HTTP/1.1 503 x\r\n\r\n{"error": {"code": "\\u001b[2J"}}', (503, "?[2J")),
        (b'HTTP/1.1 400 x\r\n\r\n{"error": "bad"}', (400, "error")),
        (b"HTTP/1.1 302 x\r\nlocation: /\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", (302, "error")),
    ],
)
def test_wrong_response_is_a_failure(
    response: bytes, failure: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_BODY_BYTES", 1_000_000)
    run = gone(closed_loop(3), responding(response, closes=True))
    assert run.tally.failures == {failure: 3}
    assert run.tally.succeeded == 0


@pytest.mark.parametrize(
    ("events", "failure"),
    [
        (b'data: {"text": "a"}\n\n', (200, "incomplete_stream")),
        (b'data: {"error": {"code": "draining"}}\n\ndata: [DONE]\n\n', (200, "draining")),
        (b"data: nonsense\n\n", (0, "invalid_stream")),
        (b"{}", (200, "incomplete_stream")),
    ],
)
def test_wrong_stream_is_a_failure(events: bytes, failure: tuple[int, str]) -> None:
    run = gone(closed_loop(2), responding(b"HTTP/1.1 200 OK\r\n\r\n" + events, closes=True), is_streamed=True)
    assert run.tally.failures == {failure: 2}


def test_closed_connections_are_opened_again() -> None:
    response = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    run = gone(closed_loop(10), responding(response, closes=True))
    assert (run.tally.succeeded, run.connections.opened) == (10, 10)
    assert run.connections.closed_by_server >= 8


def test_interim_response_is_skipped() -> None:
    run = gone(closed_loop(2), responding(b"HTTP/1.1 103 Early Hints\r\na: b\r\n\r\n" + OK))
    assert run.tally.succeeded == 2


def test_dead_server_is_asked_with_delays() -> None:
    async def work(port: int) -> None:
        # Nothing listens on the port of a server that is closed.
        dead = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        unused = dead.sockets[0].getsockname()[1]
        dead.close()
        assert unused != port
        run = run_of(LoadPlan(rate=None, concurrency=4, duration_s=0.5), unused)
        await run.go()
        assert run.tally.failures.keys() == {(0, "connection_failed")}
        # Delays of 50, 100, 200 and 400 ms, after which all four try again.
        assert 4 <= run.connections.failed <= 20
        assert "Errno" in run.tally.messages[0, "connection_failed"]
        warnings = result(run, LoadPlan(rate=None, concurrency=4), target_at(unused), 0.0, "")["warnings"]
        assert f"{run.tally.failed} requests had no connection." in " ".join(warnings)

    asyncio.run(served(responding(OK), work))


def test_interrupt_ends_with_result_so_far() -> None:
    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        received.set()
        await reader.read()

    async def work(port: int) -> None:
        run = run_of(LoadPlan(rate=None, concurrency=1, duration_s=None), port)
        going = asyncio.create_task(run.go())
        await received.wait()
        run.interrupt()
        await going
        assert (run.tally.succeeded, run.unanswered, run.ended_by) == (1, 1, "interrupt")

    received = asyncio.Event()
    asyncio.run(served(answer_one, work))


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://u:p@h", "http://h?q", "http://h:99999", "http://h\r\nx: y", "h:80"]
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="--url: expected"):
        address_of(url, None)


def test_prefix_and_port_come_from_url() -> None:
    address = address_of("http://[::1]/a/b/", None)
    assert (address.host, address.port, address.authority, address.prefix) == ("::1", 80, "[::1]", "/a/b")
