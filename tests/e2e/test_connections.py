"""Clients that are silent or slow: their connections end in time, and the requests of others are answered."""

import json
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from app.server.http_server import connections_within_limit
from tests.e2e.configs import DIGITS
from tests.e2e.conftest import Start
from tests.e2e.load import QUESTION, callers, slow_model, wait_for_inflight
from tests.e2e.server import WAIT_S, RunningServer, serving, wait_until
from tests.e2e.test_raw_sockets import connected, one_answer

TIMEOUT_S = 1
BODY = json.dumps({"input_data": [0] * 64}).encode()
HEAD = b"POST /models/digits/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
SILENT, TRICKLING, CALLERS = 500, 50, 4


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with short timeouts, which tests reach over `established` connections."""
    config = f"[server]\nheader_timeout_s = {TIMEOUT_S}\nbody_timeout_s = {TIMEOUT_S}\n{DIGITS}"
    with serving(tmp_path_factory.mktemp("impatient"), config + '[logging]\nrequests = "all"\n') as running:
        yield running.wait_ready()
        assert running.sample("roundhouse_inflight") == 0
        running.check_log()


def established(server: RunningServer) -> socket.socket:
    """Return a connection whose first request is answered: from then on a whole head is in time on any machine."""
    while True:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
        with suppress(BrokenPipeError, ConnectionResetError, AssertionError):
            connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            if one_answer(connection)[0] == 200:
                return connection
        connection.close()


def closed(server: RunningServer, reason: str) -> float:
    return server.sample("roundhouse_connections_closed_total", reason=reason)


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


class Crowd:
    """Silent connections, and others that send a byte of a head at a time until they are closed."""

    def __init__(self, server: RunningServer, stack: ExitStack) -> None:
        self.silent = self._connect(server, stack, SILENT)
        self.trickling = self._connect(server, stack, TRICKLING)

    def _connect(self, server: RunningServer, stack: ExitStack, count: int) -> list[socket.socket]:
        address = ("127.0.0.1", server.port)
        return [stack.enter_context(socket.create_connection(address, timeout=WAIT_S)) for _ in range(count)]

    def trickle(self) -> list[bytes]:
        """Send until all are answered; return the answers."""
        answers = dict.fromkeys(self.trickling, b"")
        with selectors.DefaultSelector() as selector:
            for connection in self.trickling:
                selector.register(connection, selectors.EVENT_READ)
            head = iter(HEAD + b"x: " + b"y" * 60_000)
            while selector.get_map():
                for key, _ in selector.select(0.02):
                    assert isinstance(key.fileobj, socket.socket)
                    answers[key.fileobj] = read_answer(key.fileobj)
                    selector.unregister(key.fileobj)
                byte = bytes([next(head)])
                for key in list(selector.get_map().values()):
                    assert isinstance(key.fileobj, socket.socket)
                    send_unless_closed(key.fileobj, byte)
        return list(answers.values())


def read_answer(connection: socket.socket) -> bytes:
    """Read until the connection is closed. A byte that was sent behind the answer resets it."""
    received = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


def send_unless_closed(connection: socket.socket, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


def test_crowd_of_slow_clients_starves_no_request(impatient: RunningServer) -> None:
    assert connections_within_limit(2 * (SILENT + TRICKLING)) >= SILENT + TRICKLING
    before = closed(impatient, "header_timeout")
    stop = threading.Event()
    with ExitStack() as stack:
        crowd = Crowd(impatient, stack)
        answered: list[int] = []

        def call() -> None:
            with established(impatient) as connection:
                request = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
                count = 0
                while not stop.is_set():
                    connection.sendall(request)
                    assert one_answer(connection)[0] == 200
                    count += 1
                answered.append(count)

        threads = [threading.Thread(target=call) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            answers = crowd.trickle()
            assert [read_to_end(connection) for connection in crowd.silent] == [b""] * SILENT
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert len(answered) == CALLERS
        assert all(answered)
    assert all(answer == b"" or answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n") for answer in answers)
    assert any(answers), "a byte behind the answer may reset a connection, but hardly all"
    assert closed(impatient, "header_timeout") >= before + SILENT + TRICKLING
    wait_until(lambda: impatient.sample("roundhouse_connections") <= 1 + CALLERS)


def test_half_heads_get_408_and_close(impatient: RunningServer) -> None:
    with ExitStack() as stack:
        half: list[socket.socket] = []
        for part in (b"P", HEAD, HEAD + b"x: "):
            half.append(stack.enter_context(established(impatient)))
            half[-1].sendall(part)
        for connection in half:
            status, headers, body = one_answer(connection)
            error = json.loads(body)["error"]
            assert (status, headers["connection"], error["code"]) == (408, "close", "request_timeout")
            assert error["request_id"] == headers["x-request-id"]
            assert headers["server-timing"].startswith("decode;dur=")
            assert "server.header_timeout_s" in error["message"]
            assert read_to_end(connection) == b""


NATIVE, OPENAI = {"code", "message", "request_id"}, {"code", "message", "type", "param"}
FORMS = {
    "/infer": NATIVE,
    "/v1/embeddings": OPENAI,
    "/v2/models/digits/infer": None,
    "/models": NATIVE,
    "/models/digits/load": NATIVE,
}
"""Keys of the error of each path; None: it is the message alone."""


@pytest.mark.extended
def test_half_bodies_get_408_and_close(impatient: RunningServer) -> None:
    before = closed(impatient, "body_timeout")
    framings = (b"content-length: 5000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n5\r\n")
    with ExitStack() as stack:
        half: list[tuple[str, socket.socket]] = []
        for path in FORMS:
            head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % path.encode()
            for framing in framings:
                half.append((path, stack.enter_context(established(impatient))))
                half[-1][1].sendall(head + framing + b'{"inp')
        for path, connection in half:
            status, headers, body = one_answer(connection)
            assert (status, headers["connection"]) == (408, "close")
            error = json.loads(body)["error"]
            message = error if FORMS[path] is None else error["message"]
            assert message.startswith(f"body: expected 65536 bytes in each {TIMEOUT_S} s (server.body_timeout_s)")
            if FORMS[path] is not None:
                assert error.keys() == FORMS[path]
                assert error["code"] == "request_timeout"
            assert read_to_end(connection) == b""
    assert closed(impatient, "body_timeout") == before + len(half)
    for path in FORMS:
        assert impatient.wait_for_log("request", status=408, path=path)["code"] == "request_timeout"


@pytest.mark.extended
def test_slow_body_holds_no_place(start: Start) -> None:
    config = f"{DIGITS}max_concurrent_requests = 1\n[scheduling]\nmax_concurrent_requests = 1\n"
    server = start(config).wait_ready()
    slow: Sequence[bytes] = (HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY[:10], BODY[10:])
    with connected(server) as first, connected(server) as second:
        for connection in (first, second):
            connection.sendall(slow[0])
        wait_until(lambda: server.sample("roundhouse_inflight") == 2)
        assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]
        assert server.client.post("/models/digits/load").status_code == 200
        for connection in (first, second):
            connection.sendall(slow[1])
            assert one_answer(connection)[0] == 200
    wait_until(lambda: server.sample("roundhouse_inflight") == 0)


@pytest.mark.extended
def test_full_server_refuses_body_at_its_end(start: Start, tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path)
    server = start(f"{DIGITS}{entry}[scheduling]\nmax_concurrent_requests = 1\n", gated=True).wait_ready()
    with connected(server) as connection, callers(server, 1) as many, gate.closed():
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY[:10])
        wait_until(lambda: server.sample("roundhouse_inflight") == 1)
        first = many.ask("slow", **QUESTION)
        wait_for_inflight(server, 1)
        connection.sendall(BODY[10:])
        status, _, body = one_answer(connection)
        assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded")
        gate.open()
        assert first.result().status_code == 200
    wait_until(lambda: server.sample("roundhouse_inflight") == 0)


@pytest.mark.extended
def test_connections_beyond_bound_are_refused(start: Start) -> None:
    server = start(f"[server]\nmax_connections = 3\n{DIGITS}").wait_ready()
    with connected(server), connected(server):
        wait_until(lambda: server.sample("roundhouse_connections") == 3)
        with httpx.Client(base_url=server.url, verify=False) as fourth:
            wait_until(lambda: refused(fourth))
        assert closed(server, "max_connections") >= 1
        assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]
    wait_until(lambda: server.sample("roundhouse_connections") == 1)
    with httpx.Client(base_url=server.url, verify=False) as again:
        assert again.get("/health/live").status_code == 200


def refused(client: httpx.Client) -> bool:
    """Whether the answer was read; a request that arrives after it resets the connection."""
    try:
        answer = client.get("/health/live")
    except httpx.TransportError:
        return False
    assert (answer.status_code, answer.headers["connection"], answer.headers["retry-after"]) == (503, "close", "1")
    assert answer.json()["error"]["code"] == "overloaded"
    assert "server.max_connections" in answer.json()["error"]["message"]
    return True
