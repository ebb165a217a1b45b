"""All bodies in progress are counted against `[server] max_buffered_bytes`, over HTTP and gRPC."""

import gzip
import json
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.grpc.messages import INFERENCE_SERVICE, ModelInferRequest
from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, RunningServer, assert_refused, free_port, serving, wait_until
from tests.e2e.test_raw_sockets import connected, one_answer
from tests.e2e.triton_clients import refusal, triton_client
from tests.support.models import onnx_graphs

MIB = 1024 * 1024
CONFIG = '[server]\nmax_body_bytes = "40MiB"\nmax_buffered_bytes = "64MiB"\n'
GAUGE = "roundhouse_buffered_bytes"
INFER = "/v2/models/m/infer"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Start a server with a small bound, by `python -m app`: its memory is measured."""
    folder = tmp_path_factory.mktemp("counted")
    config = CONFIG + onnx_entries(folder, {"m": onnx_graphs.identity("float32", ("n", "m"))})
    with serving(folder, config, {GRPC_PORT: free_port()}, is_fork=False) as server:
        server.wait_ready()
        answer = server.post(INFER, gzip.compress(zeros(1000)), **headers_of(zeros(1000)))
        assert answer.status_code == 200
        yield server
        assert_nothing_is_held(server)


def zeros(count: int) -> bytes:
    """Return the JSON of an infer request, padded to 200 bytes, and `count` floats behind it."""
    tensor = {"name": "x", "shape": [1, count], "datatype": "FP32", "parameters": {"binary_data_size": 4 * count}}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    return json.dumps({"inputs": [tensor], "outputs": outputs}).encode().ljust(400) + bytes(4 * count)


def headers_of(_: bytes) -> dict[str, str]:
    return {"inference-header-content-length": "400", "content-encoding": "gzip"}


def head(size: int, path: str = INFER, *lines: str) -> bytes:
    first = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", f"content-length: {size}"]
    return "\r\n".join([*first, *lines]).encode() + b"\r\n\r\n"


def assert_nothing_is_held(server: RunningServer) -> None:
    wait_until(lambda: server.sample(GAUGE) == 0)


@contextmanager
def half_sent(server: RunningServer, size: int, sent: int) -> Iterator[socket.socket]:
    """Send a part of a body, which the server counts."""
    before = server.sample(GAUGE)
    with connected(server) as connection:
        connection.sendall(head(size) + bytes(sent))
        wait_until(lambda: server.sample(GAUGE) == before + sent)
        yield connection


def resident_peak(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
class TestMemory:
    def test_gzip_bombs_are_refused_within_bound(self, counted: RunningServer) -> None:
        bomb = gzip.compress(zeros(9 * MIB))
        assert len(bomb) < 64 * 1024
        before = psutil.Process(counted.process.pid).memory_info().rss

        def send(_: int) -> httpx.Response:
            return httpx.post(counted.url + INFER, content=bomb, headers=headers_of(b""), timeout=120)

        with half_sent(counted, 40 * MIB, 39 * MIB), ThreadPoolExecutor(5) as clients:
            answers = list(clients.map(send, range(5)))
            assert [answer.status_code for answer in answers] == [503] * 5
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
            assert all("server.max_buffered_bytes" in answer.json()["error"] for answer in answers)
        assert_nothing_is_held(counted)
        # The bound, and as much again for copies in the step that makes or joins them.
        assert resident_peak(counted) - before < 2 * 64 * MIB
        assert counted.sample("roundhouse_rejected_total", reason="overloaded") >= 5

    def test_half_sent_bodies_are_refused_beyond_bound(self, counted: RunningServer) -> None:
        with ExitStack() as stack:
            held = [stack.enter_context(half_sent(counted, 30 * MIB, 20 * MIB)) for _ in range(2)]
            for _ in range(4):
                connection = stack.enter_context(connected(counted))
                connection.sendall(head(30 * MIB) + bytes(100))
                status, headers, body = one_answer(connection)
                assert (status, headers["retry-after"]) == (503, "1")
                assert b"server.max_buffered_bytes" in body
            assert counted.sample(GAUGE) == 40 * MIB
            # Small requests are answered.
            assert counted.infer("m", input_data=[[1.0, 2.0]])["output_data"] == [[1, 2]]
            held[0].close()
            wait_until(lambda: counted.sample(GAUGE) == 20 * MIB)
        assert_nothing_is_held(counted)


def test_chunked_body_beyond_bound_is_refused(counted: RunningServer) -> None:
    with half_sent(counted, 40 * MIB, 39 * MIB), connected(counted) as connection:
        lines = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(lines)
        chunk = b"%x\r\n%b\r\n" % (MIB, bytes(MIB))
        for _ in range(30):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
        assert one_answer(connection)[0] == 503
    assert_nothing_is_held(counted)


def test_declared_length_alone_holds_nothing(counted: RunningServer) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connected(counted)).sendall(head(40 * MIB))
        body = zeros(5 * MIB)
        answer = counted.post(INFER, body, **{"inference-header-content-length": "400"})
        assert answer.status_code == 200
    assert_nothing_is_held(counted)


def test_largest_body_is_served_alone(counted: RunningServer) -> None:
    body = zeros(10 * MIB - 100)
    for encoded, headers in ((body, {}), (gzip.compress(body), {"content-encoding": "gzip"})):
        answer = counted.post(INFER, encoded, **headers, **{"inference-header-content-length": "400"})
        assert answer.status_code == 200, answer.text
    text = json.dumps({"input_data": [[0] * (4 * MIB)]}, separators=(",", ":")).encode()
    assert counted.post("/models/m/infer", text).status_code == 200
    assert_nothing_is_held(counted)


TENSOR = zeros(MIB)
LENGTH = "inference-header-content-length: 400"
REQUESTS = {
    "answered": head(len(TENSOR), INFER, LENGTH) + TENSOR,
    "invalid json": head(MIB) + b"[" * MIB,
    "unknown model": head(MIB, "/v2/models/none/infer") + bytes(MIB),
    "unknown model in body": head(MIB, "/infer") + b'{"model_name": "none", "input_data": [1]}'.ljust(MIB),
    "false gzip": head(MIB, INFER, "content-encoding: gzip") + bytes(MIB),
    "truncated gzip": head(500, INFER, "content-encoding: gzip") + gzip.compress(TENSOR)[:500],
    "too large": head(41 * MIB) + bytes(MIB),
    "too large gzip": head(len(TENSOR), INFER, "content-encoding: gzip", LENGTH) + TENSOR,
    "management": head(60_000, "/models") + b"[" * 60_000,
    "not found": head(MIB, "/nothing") + bytes(MIB),
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(REQUESTS)), st.sampled_from([1.0, 0.99, 0.5, 0.01]), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=25)
def test_count_returns_to_zero(counted: RunningServer, requests: list[tuple[str, float, bool]]) -> None:
    with ExitStack() as stack:
        for name, share, is_reset in requests:
            connection = stack.enter_context(connected(counted))
            data = REQUESTS[name]
            try:
                connection.sendall(data[: round(len(data) * share)])
                if share == 1.0 and not is_reset:
                    one_answer(connection)
            except (BrokenPipeError, ConnectionResetError):
                continue  # refused before all of it was read
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
    assert_nothing_is_held(counted)


@contextmanager
def slow_reader(server: RunningServer) -> Iterator[socket.socket]:
    """Connect with a receive buffer that takes little of a response."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connection.settimeout(120)
        connection.connect(("127.0.0.1", server.port))
        yield connection


def statuses(connection: socket.socket, count: int) -> list[int]:
    """Read responses, which may be large, and return their statuses."""
    found = []
    with connection.makefile("rb") as reader:
        for _ in range(count):
            first, *lines = iter(reader.readline, b"\r\n")
            found.append(int(first.split()[1]))
            size = next(int(line.split()[1]) for line in lines if line.startswith(b"content-length"))
            assert len(reader.read(size)) == size
    return found


# Of a response of 36 MiB: the system's buffers hold the rest.
LEAST_UNREAD = 26 * MIB


class TestUnread:
    ASKED = zeros(9 * MIB)

    @pytest.mark.parametrize("end", ["read", "close", "reset"])
    def test_unread_response_keeps_its_count(self, end: str, counted: RunningServer) -> None:
        with slow_reader(counted) as connection:
            connection.sendall(head(len(self.ASKED), INFER, LENGTH) + self.ASKED)
            wait_until(lambda: counted.sample(GAUGE) > LEAST_UNREAD and counted.sample("roundhouse_inflight") == 0)
            with connected(counted) as other:
                other.sendall(head(40 * MIB))
                assert one_answer(other)[0] == 503
            if end == "read":
                assert statuses(connection, 1) == [200]
                assert_nothing_is_held(counted)
            elif end == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert_nothing_is_held(counted)

    def test_response_behind_unread_one_is_counted(self, counted: RunningServer) -> None:
        size = 3 * MIB
        asked = zeros(size)
        with slow_reader(counted) as connection:
            for _ in range(2):
                connection.sendall(head(len(asked), INFER, LENGTH) + asked)
            wait_until(lambda: counted.sample(GAUGE) > 4 * size and counted.sample("roundhouse_inflight") == 1)
            assert statuses(connection, 2) == [200, 200]
        assert_nothing_is_held(counted)

    def test_bodies_behind_request_are_counted(self, counted: RunningServer) -> None:
        with slow_reader(counted) as connection:
            connection.sendall(head(len(self.ASKED), INFER, LENGTH) + self.ASKED)
            wait_until(lambda: counted.sample(GAUGE) > LEAST_UNREAD and counted.sample("roundhouse_inflight") == 0)
            unread = counted.sample(GAUGE)
            small = json.dumps({"input_data": [[1]]}).encode()
            first = head(len(small), "/models/m/infer") + small
            # The first one is answered behind the unread response; the next one waits for it.
            connection.sendall(first + head(100_000, "/models/m/infer") + bytes(100_000))
            wait_until(lambda: counted.sample(GAUGE) > unread + 20_000)
            assert statuses(connection, 3) == [200, 200, 400]
        assert_nothing_is_held(counted)


class TestGrpc:
    @staticmethod
    def ask(server: RunningServer, count: int, **options: Any) -> Any:
        from tritonclient.grpc import InferInput

        tensor = InferInput("x", [1, count], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, count), np.float32))
        with triton_client(server, "grpc") as client:
            return client.infer("m", [tensor], **options).as_numpy("y")[0]

    def test_message_is_refused_beyond_bound(self, counted: RunningServer) -> None:
        with half_sent(counted, 40 * MIB, 39 * MIB):
            with refusal("RESOURCE_EXHAUSTED", r"server\.max_buffered_bytes"):
                self.ask(counted, 5 * MIB)
            assert len(self.ask(counted, 100)) == 100
        assert len(self.ask(counted, 5 * MIB)) == 5 * MIB
        assert_nothing_is_held(counted)

    def test_largest_message_is_served_alone(self, counted: RunningServer) -> None:
        assert len(self.ask(counted, 10 * MIB - 100)) == 10 * MIB - 100
        assert_nothing_is_held(counted)


class Http2Connection:
    """A gRPC client whose window it opens itself: no library leaves a response unread."""

    _SETTINGS, _HEADERS, _DATA, _END_HEADERS, _END_STREAM, _INITIAL_WINDOW = 4, 1, 0, 4, 1, 4

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.set_window(0)

    def set_window(self, size: int) -> None:
        """Let the server send `size` bytes of each response."""
        self._send(self._SETTINGS, 0, 0, struct.pack(">HI", self._INITIAL_WINDOW, size))

    def call(self, stream: int, path: str, message: bytes, metadata: Iterable[tuple[str, str]] = ()) -> None:
        names = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers",
                 "content-type": "application/grpc", **dict(metadata)}  # fmt: skip
        # Literals without Huffman coding, as RFC 7541 has them in section 6.2.2.
        texts = [text.encode() for pair in names.items() for text in pair]
        parts = [bytes([len(text)]) + text for text in texts]
        head = b"".join(b"\0" + name + value for name, value in zip(parts[::2], parts[1::2], strict=True))
        self._send(self._HEADERS, self._END_HEADERS, stream, head)
        data = struct.pack(">BI", 0, len(message)) + message
        for start in range(0, len(data), 16_384):
            flags = self._END_STREAM if start + 16_384 >= len(data) else 0
            self._send(self._DATA, flags, stream, data[start : start + 16_384])

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._connection.sendall(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream))
        self._connection.sendall(payload)


@pytest.mark.parametrize("end", ["read", "close", "reset"])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_unread_grpc_response_keeps_its_count(method: str, end: str, counted: RunningServer) -> None:
    message = ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 5000])
    message.raw_input_contents.append(bytes(20_000))
    with socket.create_connection(("127.0.0.1", counted.grpc_port)) as connection:
        client = Http2Connection(connection)
        for i in range(3):
            client.call(2 * i + 1, f"/{INFERENCE_SERVICE}/{method}", message.SerializeToString())
        wait_until(lambda: counted.sample(GAUGE) > 60_000 and counted.sample("roundhouse_inflight") == 0)
        assert counted.sample(GAUGE) > 60_000, "the responses are not sent, although they were written"
        if end == "read":
            # The first frame of each response reaches the client, and the rest follows.
            client.set_window(65_535)
            assert connection.recv(1)
            connection.settimeout(0.05)
            wait_until(lambda: read_some(connection) and counted.sample(GAUGE) == 0)
        elif end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert_nothing_is_held(counted)


def read_some(connection: socket.socket) -> bool:
    with suppress(TimeoutError):
        connection.recv(2**20)
    return True


def test_admin_body_is_refused_beyond_bound(counted: RunningServer) -> None:
    with half_sent(counted, 40 * MIB, 40 * MIB - 1), half_sent(counted, 24 * MIB, 24 * MIB - 1):
        answer = counted.post("/models", b'{"framework": "onnx"}'.ljust(60_000))
        assert_refused(answer, 503, "overloaded", "server.max_buffered_bytes")
    assert_nothing_is_held(counted)
