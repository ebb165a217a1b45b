"""Bytes that no HTTP library sends: the server answers or closes the connection, and serves the next."""

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ngh2
import pytest

from tests.e2e.load import batches, batches_since
from tests.e2e.server import WAIT_S, RunningServer, wait_until

BODY = b'{"model_name": "float32", "input_data": [1, 2]}'
HEAD = b"POST /infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
TEXT = "the engine waits in its shed for the turntable " * 4
MANY_TEXTS = json.dumps({"text": [f"{i} {TEXT}" for i in range(3000)]}).encode()


@pytest.fixture(scope="module", autouse=True)
def goes_on(server: RunningServer) -> Iterator[None]:
    yield
    assert server.infer("float32", input_data=[1, 2])["output_data"] == [1, 2]
    assert server.sample("roundhouse_inflight") == 0
    server.check_log()


@contextmanager
def connected(server: RunningServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
        yield connection


def answers(connection: socket.socket, silent_s: float = 1.0) -> bytes:
    """Read until the server closes the connection, or sends nothing for `silent_s`."""
    connection.settimeout(silent_s)
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except (TimeoutError, ConnectionResetError):
        pass
    return received


def head_of(connection: socket.socket) -> bytes:
    """Read the head of one response."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        # One by one: the next response may be behind this one.
        byte = connection.recv(1)
        assert byte, head
        head += byte
    return head


def one_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one response by its content-length; return status, headers and body."""
    head = head_of(connection)
    first, *lines = head.removesuffix(b"\r\n\r\n").decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = b""
    while (missing := int(headers["content-length"]) - len(body)) > 0:
        part = connection.recv(missing)
        assert part, body
        body += part
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n",
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x5a" * 500,  # a TLS hello
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /infer HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /infer HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
        b"POST /infer HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST /infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\nhello\r\n",
        b"POST /infer HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rx",
        b"GET " + b"/a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
    ],
)
def test_invalid_http_gets_error_and_close(nonsense: bytes, server: RunningServer) -> None:
    with connected(server) as connection:
        try:
            connection.sendall(nonsense)
            status, headers, body = one_answer(connection)
        except (BrokenPipeError, ConnectionResetError):
            return  # the server closed the connection within a long head
        assert status == 400
        assert (headers["content-type"], headers["connection"]) == ("application/json", "close")
        assert headers["server-timing"].startswith("decode;dur=")
        error = json.loads(body)["error"]
        assert error.keys() == {"code", "message", "request_id"}
        assert (error["code"], error["request_id"]) == ("invalid_input", headers["x-request-id"])
        assert answers(connection) == b""


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nx", b"GET / HTTP/1.1\r\nx: "])
def test_endless_head_is_cut_off(start: bytes, server: RunningServer) -> None:
    with connected(server) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(start + b"y" * 20_000_000)


@pytest.mark.parametrize(
    "part", [b"P", HEAD, REQUEST[: len(HEAD) + 10], REQUEST[:-5], HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n"]
)
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_disconnect_within_request_affects_no_other(part: bytes, how: str, server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(part)
        if how == "half":
            connection.shutdown(socket.SHUT_WR)
            answers(connection)
        elif how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert server.infer("float32", input_data=[1])["output_data"] == [1]
    wait_until(lambda: server.sample("roundhouse_inflight") == 0)


def test_disconnect_within_body_counted_as_499(server: RunningServer) -> None:
    before = server.sample("roundhouse_requests_total", code="499")
    with connected(server) as connection:
        connection.sendall(REQUEST[:-5])
        wait_until(lambda: server.sample("roundhouse_inflight") == 1)
    wait_until(lambda: server.sample("roundhouse_requests_total", code="499") == before + 1)


def test_disconnect_within_admin_call_logged(server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"POST /models HTTP/1.1\r\nhost: x\r\nx-request-id: left\r\ncontent-length: 9\r\n\r\n{")
        time.sleep(0.1)
    line = server.wait_for_log("request", request_id="left")
    assert (line["status"], line["code"]) == (499, "client_gone")


def test_slow_body_is_read_to_end(server: RunningServer) -> None:
    with connected(server) as connection:
        for start in range(0, len(REQUEST), 20):
            connection.sendall(REQUEST[start : start + 20])
            time.sleep(0.01)
        status, headers, body = one_answer(connection)
    assert (status, json.loads(body)["output_data"]) == (200, [1, 2])
    assert "server-timing" in headers


def test_pipelined_requests_answered_in_order(server: RunningServer) -> None:
    with connected(server) as connection:
        bad = HEAD + b"content-length: 1\r\n\r\n{"
        not_there = b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"
        for _ in range(3):
            connection.sendall(REQUEST)
            assert one_answer(connection)[0] == 200
            connection.sendall(bad)
            assert one_answer(connection)[0] == 400
            connection.sendall(not_there)
            assert one_answer(connection)[0] == 404
        connection.sendall((REQUEST + bad) * 5 + not_there)
        wanted = b"200 400 " * 5 + b"404"
        received = b""
        while len(found := re.findall(rb"HTTP/1\.1 (\d+) ", received)) < 11:
            chunk = connection.recv(65536)
            assert chunk, received
            received += chunk
        assert b" ".join(found) == wanted


def test_early_refusal_keeps_connection_usable(server: RunningServer) -> None:
    """The refused body must not be read as the next request."""
    hidden = b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"
    smuggled = b"POST /models/none/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(hidden) + hidden
    with connected(server) as connection:
        connection.sendall(smuggled)
        time.sleep(0.1)
        connection.sendall(REQUEST)
        status, _, body = one_answer(connection)
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        status, _, body = one_answer(connection)
        assert status == 200, body


def test_expect_100_continue_answered(server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(BODY)
        assert one_answer(connection)[0] == 200


def test_http_1_0_answered_and_closed(server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert b"200 OK" in answers(connection, WAIT_S).split(b"\r\n")[0]


def test_silent_connections_block_no_request(server: RunningServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) for _ in range(200)]
    try:
        assert server.infer("float32", input_data=[1])["output_data"] == [1]
    finally:
        for connection in silent:
            connection.close()


@pytest.mark.parametrize("model", [b"minilm-onnx", b"minilm"])
def test_disconnect_drops_queued_batches(model: bytes, server: RunningServer) -> None:
    before = server.sample("roundhouse_requests_total", code="499", model=model.decode())
    ran = batches(server, model.decode())
    head = b"POST /models/%s/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (model, len(MANY_TEXTS))
    with connected(server) as connection:
        connection.sendall(head + MANY_TEXTS)
        wait_until(lambda: server.inflight(model.decode()) == 1)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    wait_until(lambda: server.sample("roundhouse_requests_total", code="499", model=model.decode()) == before + 1)
    assert server.inflight(model.decode()) == 0
    assert server.wait_for_log("request", status=499, model=model.decode())["code"] == "client_gone"
    assert len(server.infer(model.decode(), text="next")["embeddings"]) == 1
    assert batches_since(ran, server, model.decode())[1] < 3000, "the rest of the texts was dropped"


@pytest.mark.parametrize("step", [1, 7, 24, 30, 20_000])
def test_preface_of_http2_in_parts_is_found(step: int, server: RunningServer) -> None:
    """Also with a long first request behind it, and where parts of the preface arrive one by one."""
    client = ngh2.Connection(ngh2.Role.CLIENT)
    client.initiate_connection()
    body = json.dumps({"model_name": "float32", "input_data": [1.5] * 3_000}).encode()
    head = ((b":method", b"POST"), (b":path", b"/infer"), (b":scheme", b"http"), (b":authority", b"localhost"))
    client.send_data(client.send_request([*head, (b"content-type", b"application/json")]), body, end_stream=True)
    sent = client.data_to_send()
    with connected(server) as connection:
        for start in range(0, 60, step):
            connection.sendall(sent[start : min(start + step, 60)])
        connection.sendall(sent[60:])
        events: list[object] = []
        while not any(isinstance(event, ngh2.StreamClosed) for event in events):
            received = connection.recv(65_536)
            assert received
            client.receive_data(received)
            events += client.events()
            connection.sendall(client.data_to_send())
    (answer,) = (event for event in events if isinstance(event, ngh2.ResponseReceived))
    assert dict(answer.headers)[b":status"] == b"200"


def test_preface_after_a_request_is_refused(server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert one_answer(connection)[0] == 200
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert one_answer(connection)[0] == 400
