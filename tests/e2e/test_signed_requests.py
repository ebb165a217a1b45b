"""Signed requests over real sockets: the signature before the body, the digest before anything is executed."""

import gzip
import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2

from app.auth.principal import Scope
from app.cli import main
from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, WAIT_S, RunningServer, free_port, serving
from tests.support.keyring import make_key, write_keys
from tests.support.models import onnx_graphs
from tests.support.signing import signed_headers

SIGNED = make_key("search", is_signed=True)
READER = make_key("search", Scope.READ, is_signed=True)
PLAIN = make_key("search")
OPERATOR = make_key("default")
PATH = "/models/vector/infer"
BODY = b'{"inputs": {"x": [1.5, 2.5]}}'
SERVICE = "/inference.GRPCInferenceService"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("signed")
    write_keys(folder / "keys.toml", SIGNED, READER, PLAIN, OPERATOR)
    config = onnx_entries(folder, {"vector": onnx_graphs.identity("float32", None)})
    config += '[auth]\nmode = "required"\n[server]\nmax_body_bytes = "64MiB"\n'
    with serving(folder, config, {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


def send(
    server: RunningServer, headers: dict[str, str], method: str = "POST", target: str = PATH, body: bytes = BODY
) -> httpx.Response:
    return server.client.request(method, target, content=body, headers={"content-type": "application/json", **headers})


def num_answered(server: RunningServer) -> int:
    """Return how many requests the model has answered."""
    headers = signed_headers(READER.text, "GET", "/models/vector")
    requests = send(server, headers, "GET", "/models/vector", b"").json()["requests"]
    count: int = requests["total"] - requests["failed"]
    return count


def assert_unauthenticated(answer: httpx.Response, reason: str) -> None:
    assert answer.status_code == 401, answer.text
    assert reason in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "unauthenticated"
    assert "www-authenticate" in answer.headers


@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
def test_signed_request_is_answered(server: RunningServer, algorithm: str) -> None:
    answer = send(server, signed_headers(SIGNED.text, "POST", PATH, BODY, algorithm=algorithm))
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"]["y"]["data"] == [1.5, 2.5]


@pytest.mark.parametrize("path", ["/models", "/v2/models/vector", "/v1/models?a=%20b&c", "/metrics", "/docs"])
def test_signed_read_is_answered(server: RunningServer, path: str) -> None:
    answer = send(server, signed_headers(READER.text, "GET", path), "GET", path, b"")
    assert answer.status_code == 200, answer.text


def test_scope_of_signed_key_is_checked(server: RunningServer) -> None:
    assert send(server, signed_headers(READER.text, "POST", PATH, BODY)).status_code == 403


def test_other_body_is_never_executed(server: RunningServer) -> None:
    before = num_answered(server)
    headers = signed_headers(SIGNED.text, "POST", PATH, BODY)
    assert_unauthenticated(send(server, headers, body=BODY.replace(b"1.5", b"9.5")), "content-digest")
    assert num_answered(server) == before


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", PATH),
        ("POST", PATH + "?a=1"),
        ("POST", "/infer"),
        ("POST", "/models/%76ector/infer"),
        ("POST", PATH + "/"),
    ],
)
def test_other_method_path_or_query_refused(server: RunningServer, method: str, target: str) -> None:
    headers = signed_headers(SIGNED.text, "POST", PATH, BODY)
    assert_unauthenticated(send(server, headers, method, target), "signature: expected")


def test_replay_refused(server: RunningServer) -> None:
    headers = signed_headers(SIGNED.text, "POST", PATH, BODY)
    assert send(server, headers).status_code == 200
    assert_unauthenticated(send(server, headers), "nonce")


def test_concurrent_replays_answered_once(server: RunningServer) -> None:
    headers = signed_headers(SIGNED.text, "POST", PATH, BODY)
    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(lambda _: send(server, headers).status_code, range(32)))
    assert sorted(statuses) == [200, *[401] * 31]


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_secret_of_signed_key_refused(server: RunningServer, name: str) -> None:
    value = f"Bearer {SIGNED.text}" if name == "authorization" else SIGNED.text
    assert_unauthenticated(send(server, {name: value}), "signed")
    headers = signed_headers(SIGNED.text, "POST", PATH, BODY) | {name: value}
    assert_unauthenticated(send(server, headers), "signed")


def test_plain_key_cannot_sign(server: RunningServer) -> None:
    assert_unauthenticated(send(server, signed_headers(PLAIN.text, "POST", PATH, BODY)), "marked signed")
    assert send(server, PLAIN.headers).status_code == 200


def test_signature_is_checked_before_the_body(server: RunningServer) -> None:
    """The server answers although the body never arrives."""
    headers = signed_headers(SIGNED.text, "POST", PATH, BODY, created=1)
    lines = {"host": "127.0.0.1", "content-type": "application/json", "content-length": "1000000", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        connection.sendall(f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("length", [1000, 100_000, 1_000_000])
def test_long_body_is_checked(server: RunningServer, length: int) -> None:
    body = json.dumps({"inputs": {"x": [0.5] * length}}).encode()
    assert send(server, signed_headers(SIGNED.text, "POST", PATH, body), body=body).status_code == 200
    headers = signed_headers(SIGNED.text, "POST", PATH, body)
    assert_unauthenticated(send(server, headers, body=body[:-4] + b"1]}}"), "content-digest")


def test_digest_of_compressed_body_is_as_sent(server: RunningServer) -> None:
    for target, body in (
        ("/v2/models/vector/infer", b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}]}'),
        (PATH, BODY),
        ("/models/vector/load", b"{}"),
    ):
        packed = gzip.compress(body)
        for signed, status in ((packed, 200), (body, 401)):
            headers = signed_headers(SIGNED.text, "POST", target, signed) | {"content-encoding": "gzip"}
            assert send(server, headers, target=target, body=packed).status_code == status


def test_body_in_chunks_is_checked(server: RunningServer) -> None:
    for body, status in ((BODY, 200), (BODY + b" ", 401)):
        headers = signed_headers(SIGNED.text, "POST", PATH, BODY) | {"content-type": "application/json"}
        answer = server.client.post(PATH, content=iter([body[:10], body[10:]]), headers=headers)
        assert answer.status_code == status


def test_order_with_other_body_is_not_executed(server: RunningServer) -> None:
    target = "/models/vector/unload"
    body = b'{"version": "1"}'
    for sent in (b'{"version": "2"}', b"", b"{}"):
        headers = signed_headers(SIGNED.text, "POST", target, body)
        assert_unauthenticated(send(server, headers, target=target, body=sent), "content-digest")
    bodiless = signed_headers(SIGNED.text, "POST", target)
    assert_unauthenticated(send(server, bodiless, target=target, body=body), "content-digest")
    headers = signed_headers(READER.text, "GET", "/models/vector")
    assert send(server, headers, "GET", "/models/vector", b"").json()["state"] == "ready"


def test_signed_order_is_executed(server: RunningServer) -> None:
    for order, state in (("unload", "unloaded"), ("load", "ready")):
        target = f"/models/vector/{order}"
        for body in (b"", b"{}"):
            answer = send(server, signed_headers(SIGNED.text, "POST", target, body), target=target, body=body)
            assert answer.status_code == 200, answer.text
        headers = signed_headers(READER.text, "GET", "/models/vector")
        assert send(server, headers, "GET", "/models/vector", b"").json()["state"] == state


def test_covered_header_is_checked(server: RunningServer) -> None:
    further = [("@authority", f"127.0.0.1:{server.port}"), ("content-type", "application/json")]
    headers = signed_headers(SIGNED.text, "POST", PATH, BODY, further=further)
    assert send(server, headers).status_code == 200
    headers = signed_headers(SIGNED.text, "POST", PATH, BODY, further=further)
    assert_unauthenticated(send(server, headers | {"content-type": "application/jsonl"}), "signature: expected")


def test_command_line_signs(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--url", server.url, "--api-key", SIGNED.text, "--sign"]
    assert main(["models", *options]) == 0
    assert "vector" in capsys.readouterr().out
    assert main(["infer", "vector", "--inputs", '{"x": [1.5]}', *options]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["y"]["data"] == [1.5]


@pytest.mark.parametrize("key", ["", "k" * 20, "rh_abc_def", "rh_abcdefghijk1_\xe4"])
def test_command_line_needs_key_to_sign(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--url", "http://127.0.0.1:1", "--api-key", key, "--sign"]) == 1
    assert "--api-key: expected rh_" in capsys.readouterr().err


def test_mutated_credentials_are_refused(server: RunningServer) -> None:
    source = random.Random(0)

    def mutated() -> dict[str, str]:
        headers = signed_headers(SIGNED.text, "POST", PATH, BODY)
        name = source.choice(sorted(headers))
        value = headers[name]
        start = source.randrange(len(value))
        added = source.choice(["", "!", '"!', ";a=1", ", b=:AAAA:", "=" * 2000])
        headers[name] = value[:start] + added + value[start + source.randrange(1, 5) :]
        return headers

    # Refusals of an address with many of them are delayed.
    with ThreadPoolExecutor(32) as threads:
        statuses = list(threads.map(lambda headers: send(server, headers).status_code, [mutated() for _ in range(200)]))
    assert set(statuses) == {401}


def test_refusals_are_counted(server: RunningServer) -> None:
    def num_refused() -> float:
        page = server.client.get("/metrics", headers=OPERATOR.headers).text
        name = 'roundhouse_auth_failures_total{reason="signature"} '
        return float(next(line for line in page.splitlines() if line.startswith(name)).removeprefix(name))

    send(server, signed_headers(SIGNED.text, "POST", PATH, BODY, created=1))
    before = num_refused()
    send(server, signed_headers(SIGNED.text, "POST", PATH, BODY, created=1))
    send(server, signed_headers(SIGNED.text, "POST", PATH, BODY), body=BODY + b" ")
    send(server, signed_headers(SIGNED.text, "POST", "/models", b"{}"), target="/models", body=b"{ }")
    refusal(server, "ModelInfer", [infer_message(2.5)], infer_message(1.5))
    assert num_refused() == before + 4


def infer_message(value: float) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="vector")
    message.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(value)
    serialized: bytes = message.SerializeToString()
    return serialized


def call(
    server: RunningServer, method: str, messages: list[bytes], signed: bytes, path: str | None = None
) -> list[bytes]:
    """Send the messages with a signature over `path` and the message `signed`; return the responses."""
    headers = signed_headers(SIGNED.text, "POST", path or f"{SERVICE}/{method}", signed)
    return call_with(server, method, messages, headers)


def call_with(server: RunningServer, method: str, messages: list[bytes], headers: dict[str, str]) -> list[bytes]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        send_all: Any = channel.stream_stream(f"{SERVICE}/{method}")
        return list(send_all(iter(messages), metadata=tuple(headers.items()), timeout=WAIT_S))


def refusal(server: RunningServer, *arguments: object) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        call(server, *arguments)  # type: ignore[arg-type]
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    return str(refused.value.details())


def test_signed_call_is_answered(server: RunningServer) -> None:
    message = infer_message(1.5)
    (response,) = call(server, "ModelInfer", [message], message)
    assert service_pb2.ModelInferResponse.FromString(response).model_name == "vector"


def test_call_with_other_message_refused(server: RunningServer) -> None:
    assert "content-digest" in refusal(server, "ModelInfer", [infer_message(2.5)], infer_message(1.5))


def test_call_of_other_method_refused(server: RunningServer) -> None:
    message = infer_message(1.5)
    assert "signature" in refusal(server, "ModelInfer", [message], message, f"{SERVICE}/ModelReady")


def test_long_message_is_checked(server: RunningServer) -> None:
    message = service_pb2.ModelInferRequest(model_name="vector", raw_input_contents=[bytes(400_000)])
    message.inputs.add(name="x", datatype="FP32", shape=[100_000])
    serialized = message.SerializeToString()
    assert call(server, "ModelInfer", [serialized], serialized)
    assert "content-digest" in refusal(server, "ModelInfer", [serialized], serialized[:-1] + b"\1")


def test_call_replayed_from_http_refused(server: RunningServer) -> None:
    message = infer_message(1.5)
    headers = signed_headers(SIGNED.text, "POST", f"{SERVICE}/ModelInfer", message)
    assert call_with(server, "ModelInfer", [message], headers)
    with pytest.raises(grpc.RpcError, match="nonce"):
        call_with(server, "ModelInfer", [message], headers)
    # The nonce is used for HTTP as well.
    answer = send(server, headers, target=f"{SERVICE}/ModelInfer", body=message)
    assert_unauthenticated(answer, "nonce")


def test_signed_stream_takes_one_message(server: RunningServer) -> None:
    message = infer_message(1.5)
    assert len(call(server, "ModelStreamInfer", [message], message)) == 1
    assert "content-digest" in refusal(server, "ModelStreamInfer", [infer_message(2.5)], message)
    assert "one request" in refusal(server, "ModelStreamInfer", [message, message], message)
