"""Long bodies and responses: read and written off the event loop, with the same bytes and the same messages."""

import json
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from app.protocols.shared.codec import LONG_BYTES, LONG_ELEMENTS
from frameworks.types import NUMPY_DTYPES
from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.gates import RunGate
from tests.e2e.load import QUESTION, ROW, callers, slow_model, wait_for_inflight
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.e2e.test_raw_sockets import HEAD, connected, one_answer
from tests.support.models import onnx_graphs

COUNT = 200_000
NUMBERS = orjson.dumps(np.random.default_rng(2).standard_normal(COUNT).astype(np.float32), option=16)
assert len(NUMBERS) > 2_000_000
assert COUNT > LONG_ELEMENTS
# Many short arrays take the slow path of the decoder, which looks at each: a second or so. Compiled code reads
# them in milliseconds, if the array is near the begin of the body.
ARRAYS = b'{"input_data":' + b" " * 2000 + b"[" + b",".join([b"[1]"] * 1_500_000) + b"]}"


def output_of(answer: bytes, field: bytes) -> bytes:
    """Return the JSON of a field whose value is an array of numbers, as it stands in the response."""
    found = re.search(rb'"%s":(\[[^"]*\])' % field, answer)
    assert found is not None
    return found[1]


def json_of(array: Any) -> bytes:
    """Write the array in one call, as a short response is written."""
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize("shape", [(COUNT,), (COUNT // 50, 50), (1, COUNT), (COUNT, 1), (20, 100, 100)])
def test_long_tensor_returned_unchanged(shape: tuple[int, ...], server: RunningServer) -> None:
    array = np.array(orjson.loads(NUMBERS), np.float32).reshape(shape)
    body = b'{"input_data":%s}' % json_of(array)
    assert len(body) > LONG_BYTES
    answer = server.post("/models/float32/infer", body)
    assert answer.status_code == 200
    assert output_of(answer.content, b"output_data") == json_of(array)
    assert answer.json()["output_shape"] == list(shape)
    named = server.post("/models/float32/infer", b'{"inputs":{"x":%s}}' % json_of(array))
    assert output_of(named.content, b"data") == json_of(array)


def test_nan_in_long_response_is_null(server: RunningServer) -> None:
    x = np.arange(-3, COUNT - 3, dtype=np.float32)
    outputs = server.post("/models/log/infer", b'{"inputs":{"x":%s}}' % json_of(x))
    with np.errstate(all="ignore"):
        wanted = np.log(x)
    for dtype in ("float32", "float64"):
        came = outputs.json()["outputs"][dtype]["data"]
        assert came[:5] == [None, None, None, None, 0]
        np.testing.assert_allclose(np.array(came[4:], NUMPY_DTYPES[dtype]), wanted[4:], rtol=1e-6)


def test_long_response_to_short_request(server: RunningServer) -> None:
    texts = [f"text {i}" for i in range(2 * LONG_ELEMENTS // 384)]
    together = server.infer("minilm-onnx", text=texts)["embeddings"]
    assert len(together) * len(together[0]) > LONG_ELEMENTS
    alone = [server.infer("minilm-onnx", text=text)["embeddings"][0] for text in texts[::40]]
    assert np.abs(np.array(together[::40]) - np.array(alone)).max() < 1e-5


def body_of(numbers: bytes, before: bytes = b'"input_data":', behind: bytes = b"") -> bytes:
    return b"{%s[%s]%s}" % (before, numbers, behind)


WRONG: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a word": ("float32", lambda n: body_of(n + b",oops")),
    "no end": ("float32", lambda n: body_of(n)[:-2]),
    "two ends": ("float32", lambda n: body_of(n) + b"}"),
    "no UTF-8": ("float32", lambda n: body_of(n, behind=b',"text":"\xff"')),
    "not the model's length": ("digits", lambda n: body_of(n + b",1" * 7)),
    "ragged": ("free-nm", lambda n: body_of(b"[%s],[1]" % n)),
    "a string among numbers": ("float32", lambda n: body_of(n + b',"a"')),
    "too large for the dtype": ("int8", lambda n: body_of(b",".join([b"1"] * n.count(b",")) + b",300")),
    "an unknown field": ("float32", lambda n: body_of(n, behind=b',"input_dat":1')),
    "a field twice": ("float32", lambda n: body_of(n, behind=b',"input_data":[1]')),
    "two questions": ("float32", lambda n: body_of(n, behind=b',"text":"a"')),
    "no such model": ("flaot32", body_of),
    "no such output": ("float32", lambda n: body_of(n, behind=b',"outputs":["z"]')),
    "a bad option": ("float32", lambda n: body_of(n, behind=b',"priority":10')),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_of_long_bodies_equal_short_ones(what: str, server: RunningServer) -> None:
    model, make = WRONG[what]
    messages = []
    for numbers in (b"1.5,2.5,3.5", NUMBERS[1:-1]):
        body = make(numbers)[:1] + b'"model_name":"%s",' % model.encode() + make(numbers)[1:]
        answer = server.post("/infer", body)
        assert 400 <= answer.status_code < 500, answer.text
        error = answer.json()["error"]
        # Positions and lengths differ.
        messages.append((answer.status_code, error["code"], re.sub(r"\d+", "#", error["message"])))
    assert len(make(NUMBERS[1:-1])) > LONG_BYTES
    assert messages[0] == messages[1]


def test_others_answered_while_long_body_is_read(server: RunningServer) -> None:
    # A machine may be busy with something else just then; a server that reads without a pause never passes.
    wait_until(lambda: are_others_answered(server))


def are_others_answered(server: RunningServer) -> bool:
    """Send a long body; return whether no other request meanwhile waited for all of it."""
    with connected(server) as connection:
        connection.settimeout(WAIT_S)
        started_s = time.monotonic()
        connection.sendall(
            HEAD.replace(b"/infer", b"/models/int16/infer") + b"content-length: %d\r\n\r\n" % len(ARRAYS)
        )
        connection.sendall(ARRAYS)
        waits_s = []
        connection.setblocking(False)
        while True:
            asked_s = time.monotonic()
            assert server.infer("float32", input_data=[1])["output_data"] == [1]
            waits_s.append(time.monotonic() - asked_s)
            try:
                connection.recv(1, socket.MSG_PEEK)
                break
            except BlockingIOError:
                assert time.monotonic() - started_s < WAIT_S
        took_s = time.monotonic() - started_s
        connection.settimeout(WAIT_S)
        assert one_answer(connection)[0] == 200
    return len(waits_s) > 5 and max(waits_s) < took_s / 2


def is_answered(connection: socket.socket) -> bool:
    """Whether the first bytes of a response have arrived."""
    return bool(select.select([connection], [], [], 0)[0])


def test_client_disconnects_while_long_body_is_read(server: RunningServer) -> None:
    head = HEAD.replace(b"/infer", b"/models/int16/infer") + b"content-length: %d\r\n\r\n" % len(ARRAYS)
    for _ in range(2):
        with connected(server) as connection:
            connection.sendall(head + ARRAYS)
            wait_until(lambda: server.sample("roundhouse_inflight") >= 1 or is_answered(connection))
    wait_until(lambda: server.sample("roundhouse_inflight") == 0)
    assert server.inflight("int16") == 0
    assert server.infer("int16", input_data=[1, 2])["output_data"] == [1, 2]
    server.check_log()


@pytest.mark.extended
@pytest.mark.parametrize("drain_s", [5, 0.1], ids=["within the drain's time", "past it"])
def test_stop_while_long_body_is_read(drain_s: float, start: Start, tmp_path: Path) -> None:
    entries = onnx_entries(tmp_path, {"x": onnx_graphs.identity("int16", None)})
    server = start(f"[server]\ndrain_timeout_s = {drain_s}\n{entries}").wait_ready()
    with connected(server) as connection:
        connection.settimeout(WAIT_S)
        head = HEAD.replace(b"/infer", b"/models/x/infer") + b"content-length: %d\r\n\r\n" % len(ARRAYS)
        connection.sendall(head + ARRAYS)
        wait_until(lambda: server.sample("roundhouse_inflight") == 1 or is_answered(connection))
        server.process.send_signal(signal.SIGTERM)
        status, _, body = one_answer(connection)
        assert status in (200, 503), body[:200]
        if status == 503:
            assert json.loads(body)["error"]["code"] in ("draining", "unloaded")
    server.wait_stopped(0)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunGate]]:
    """Start a server that runs one request to `slow` at a time, and return its gate."""
    folder = tmp_path_factory.mktemp("bounded")
    entry, gate = slow_model(folder)
    with serving(folder, f"{entry}max_concurrent_requests = 1\n{DIGITS}", gated=True) as server:
        yield server.wait_ready(), gate


@pytest.fixture
def full(bounded: tuple[RunningServer, RunGate]) -> Iterator[tuple[RunningServer, RunGate]]:
    """Keep `slow` busy with a request that the gate holds; it must succeed in the end."""
    server, gate = bounded
    with callers(server, 1) as many, gate.closed():
        first = many.ask("slow", **QUESTION)
        wait_for_inflight(server, 1)
        yield server, gate
        assert not first.done()
        gate.open()
        assert first.result().json()["output_data"] == ROW


class TestEarlyReject:
    """The model is named at the beginning of a long body, and has no room."""

    @pytest.mark.parametrize("framing", ["chunked", "content-length"])
    def test_refused_before_rest_is_sent(self, framing: str, full: tuple[RunningServer, RunGate]) -> None:
        beginning = b'{"input_data":[1,2,3,4],"priority":5,"model_name" : "slow","text":["' + b"x" * 2000
        rest = b"x" * 100_000 + b'"]}'
        if framing == "chunked":
            head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
            parts = [b"%x\r\n%s\r\n" % (len(part), part) for part in (beginning, rest)]
            parts[1] += b"0\r\n\r\n"
        else:
            head = HEAD + b"content-length: %d\r\n\r\n" % len(beginning + rest)
            parts = [beginning, rest]
        with connected(full[0]) as connection:
            connection.sendall(head + parts[0])
            status, headers, body = one_answer(connection)
            assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded")
            assert "max_concurrent_requests" in json.loads(body)["error"]["message"]
            assert int(headers["retry-after"]) >= 1
            # The rest of the body is not read as the next request.
            connection.sendall(parts[1])
            other = b'{"model_name": "digits", "input_data": [%s]}' % b",".join([b"0"] * 64)
            connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(other) + other)
            assert one_answer(connection)[0] == 200

    @pytest.mark.parametrize(
        "beginning",
        [
            b'{"outputs":["\\"model_name\\":\\"slow\\""],',
            b'{"outputs":["\\\\\\"model_name\\\\\\":\\\\\\"slow\\\\\\" \\"model_name\\": \\"slow\\""],',
            b'{"outputs":["model_name", "slow"],',
            b'{"outputs":["model_name"], "version": "slow",',
        ],
    )
    def test_name_within_string_is_no_model(self, beginning: bytes, full: tuple[RunningServer, RunGate]) -> None:
        rest = b'"model_name":"digits","input_data":[%s]}' % b",".join([b"0"] * 64)
        with connected(full[0]) as connection:
            connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(beginning + rest) + beginning)
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(WAIT_S)
            connection.sendall(rest)
            status, _, body = one_answer(connection)
            assert (status, json.loads(body)["error"]["code"]) != (503, "overloaded")

    def test_long_body_for_other_model_is_read(self, full: tuple[RunningServer, RunGate]) -> None:
        server, _ = full
        body = {"model_name": "digits", "input_data": [[0.123456789] * 64] * 2000}
        assert len(json.dumps(body)) > LONG_BYTES
        assert server.client.post("/infer", json=body).json()["output_shape"] == [2000]
        answer = server.client.post("/infer", json=body | {"model_name": "slow"})
        assert_refused(answer, 503, "overloaded", "max_concurrent")
