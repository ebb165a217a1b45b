"""What no HTTP library would send: the server answers it or closes, and goes on."""

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.server import RunningServer, wait_until

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
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        yield connection


def answers(connection: socket.socket) -> bytes:
    """Everything that comes until the server closes, or says nothing more for a second."""
    connection.settimeout(1.0)
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except (TimeoutError, ConnectionResetError):
        pass
    return received


def one_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer; its content-length says where it ends."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
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
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET " + b"/a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
    ],
)
def test_bad_http_is_answered_in_our_form_and_closed(nonsense: bytes, server: RunningServer) -> None:
    with connected(server) as connection:
        try:
            connection.sendall(nonsense)
            status, headers, body = one_answer(connection)
        except (BrokenPipeError, ConnectionResetError):
            return  # closed under a head that went on and on
        assert status == 400
        assert (headers["content-type"], headers["connection"]) == ("application/json", "close")
        assert headers["server-timing"].startswith("decode;dur=")
        error = json.loads(body)["error"]
        assert error.keys() == {"code", "message", "request_id"}
        assert (error["code"], error["request_id"]) == ("invalid_input", headers["x-request-id"])
        assert answers(connection) == b""


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nx", b"GET / HTTP/1.1\r\nx: "])
def test_a_head_without_end_is_cut_off(start: bytes, server: RunningServer) -> None:
    with connected(server) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(start + b"y" * 20_000_000)


@pytest.mark.parametrize(
    "part", [b"P", HEAD, REQUEST[: len(HEAD) + 10], REQUEST[:-5], HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n"]
)
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_caller_that_leaves_in_the_middle_harms_nobody(part: bytes, how: str, server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(part)
        if how == "half":
            connection.shutdown(socket.SHUT_WR)
            answers(connection)
        elif how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert server.infer("float32", input_data=[1])["output_data"] == [1]
    wait_until(lambda: server.sample("roundhouse_inflight") == 0, 5)


def test_a_caller_that_leaves_while_it_sends_is_counted_as_499(server: RunningServer) -> None:
    before = server.sample("roundhouse_requests_total", code="499")
    with connected(server) as connection:
        connection.sendall(REQUEST[:-5])
        wait_until(lambda: server.sample("roundhouse_inflight") == 1, 5)
    wait_until(lambda: server.sample("roundhouse_requests_total", code="499") == before + 1, 5)


def test_a_caller_that_leaves_an_administrators_call_is_no_bug_of_ours(server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"POST /models HTTP/1.1\r\nhost: x\r\nx-request-id: left\r\ncontent-length: 9\r\n\r\n{")
        time.sleep(0.1)
    line = server.wait_for_log("request", 5, request_id="left")
    assert (line["status"], line["code"]) == (499, "client_gone")


def test_a_body_that_comes_slowly_is_waited_for(server: RunningServer) -> None:
    with connected(server) as connection:
        for start in range(0, len(REQUEST), 20):
            connection.sendall(REQUEST[start : start + 20])
            time.sleep(0.01)
        status, headers, body = one_answer(connection)
    assert (status, json.loads(body)["output_data"]) == (200, [1, 2])
    assert "server-timing" in headers


def test_requests_down_one_connection_are_answered_in_order(server: RunningServer) -> None:
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


def test_a_refusal_before_the_body_is_read_keeps_the_connection_in_order(server: RunningServer) -> None:
    """The refused body must not be taken for the next request."""
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


def test_a_caller_that_waits_for_100_continue_gets_it(server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(BODY)
        assert one_answer(connection)[0] == 200


def test_http_1_0_is_answered_and_closed(server: RunningServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert b"200 OK" in answers(connection).split(b"\r\n")[0]


def test_many_connections_that_say_nothing_keep_nobody_out(server: RunningServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(200)]
    try:
        started_s = time.monotonic()
        assert server.infer("float32", input_data=[1])["output_data"] == [1]
        assert time.monotonic() - started_s < 2
    finally:
        for connection in silent:
            connection.close()


@pytest.mark.parametrize("model", [b"minilm-onnx", b"minilm"])
def test_a_caller_that_leaves_takes_the_batches_that_have_not_run(model: bytes, server: RunningServer) -> None:
    before = server.sample("roundhouse_requests_total", code="499", model=model.decode())
    head = b"POST /models/%s/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (model, len(MANY_TEXTS))
    with connected(server) as connection:
        connection.sendall(head + MANY_TEXTS)
        wait_until(lambda: server.inflight(model.decode()) == 1)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    # All of the texts would take far longer than this.
    wait_until(lambda: server.sample("roundhouse_requests_total", code="499", model=model.decode()) == before + 1, 5)
    assert server.inflight(model.decode()) == 0
    assert server.wait_for_log("request", 5, status=499, model=model.decode())["code"] == "client_gone"
    started_s = time.monotonic()
    assert len(server.infer(model.decode(), text="next")["embeddings"]) == 1
    assert time.monotonic() - started_s < 2
