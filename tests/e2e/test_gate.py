"""Requests to a server with keys: what refusals look like, what they leave behind, and what the logs say."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc
import tritonclient.utils

from app.auth.principal import Scope
from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, WAIT_S, RunningServer, assert_refused, free_port, serving, wait_until
from tests.support.keyring import MadeKey, make_key, write_keys
from tests.support.models import onnx_graphs

KEY = make_key("search")
READER = make_key("search", Scope.READ)
EXPIRED = make_key("search", lifetime_s=5)
UNKNOWN = make_key("search")
BODY = json.dumps({"input_data": [1.0, 2.0]}).encode()
INFER = "/models/vector/infer"
HEAD = b"POST /models/vector/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keyed")


@pytest.fixture(scope="module")
def keyed(folder: Path) -> Iterator[RunningServer]:
    write_keys(folder / "keys.toml", KEY, READER, EXPIRED)
    config = onnx_entries(folder, {"vector": onnx_graphs.identity("float32", None)})
    config += '[logging]\nrequests = "all"\n[server]\ncors_origins = ["https://app.example.org"]\n'
    config += '[[auth.tenants]]\nname = "search"\noperator = true\n'
    with serving(folder, config, {GRPC_PORT: free_port()}) as server:
        yield server.wait_ready()
        server.check_log()


def infer(server: RunningServer, key: MadeKey | None = None, **headers: str) -> httpx.Response:
    return server.post(INFER, BODY, **({} if key is None else key.headers), **headers)


@contextmanager
def connected(server: RunningServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
        yield connection


def received(connection: socket.socket, until: bytes = b"") -> bytes:
    """Read to the end of the connection, or until the bytes have arrived."""
    content = b""
    while not (until and until in content) and (part := connection.recv(65536)):
        content += part
    return content


@pytest.mark.parametrize(
    "path", ["/infer", "/v1/embeddings", "/v2/models/vector/infer", "/metrics", "/absent", "/docs/a/b"]
)
def test_refusal_has_the_protocols_form(keyed: RunningServer, path: str) -> None:
    for key, status in ((None, 401), (UNKNOWN, 401), (EXPIRED, 401)):
        answer = keyed.client.get(path, headers={} if key is None else key.headers)
        assert answer.status_code == status
        assert answer.headers["www-authenticate"].startswith("Bearer ")
    if not path.startswith(("/v1", "/v2")):
        assert answer.json()["error"]["code"] == "unauthenticated"


def test_both_headers_are_accepted(keyed: RunningServer) -> None:
    assert infer(keyed, KEY).json()["output_data"] == [1.0, 2.0]
    assert infer(keyed, None, **{"x-api-key": KEY.text}).status_code == 200
    assert infer(keyed, KEY, **{"x-api-key": KEY.text}).status_code == 200
    assert_refused(infer(keyed, KEY, **{"x-api-key": READER.text}), 401, "unauthenticated", "got another")


def test_missing_scope_is_named(keyed: RunningServer) -> None:
    message = assert_refused(infer(keyed, READER), 403, "forbidden")
    assert message == "scope: expected a key with scope infer, got read; use another key"


def test_head_of_refusal_has_no_body(keyed: RunningServer) -> None:
    answer = keyed.client.head("/models")
    assert (answer.status_code, answer.content) == (401, b"")
    assert keyed.client.head("/models", headers=KEY.headers).status_code == 200
    assert keyed.client.head("/health/live").status_code == 200


def test_key_in_query_is_refused_and_not_logged(keyed: RunningServer) -> None:
    answer = keyed.client.get(f"/models?api_key={KEY.text}", headers=KEY.headers)
    assert_refused(answer, 401, "unauthenticated", "send it as header")
    assert keyed.client.get(f"/health/live?key={KEY.text}").status_code == 200


def test_preflight_of_allowed_origin_needs_no_key(keyed: RunningServer) -> None:
    asked = {"origin": "https://app.example.org", "access-control-request-method": "POST"}
    answer = keyed.client.options(INFER, headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, asked["origin"])
    assert keyed.client.options(INFER, headers=asked | {"origin": "https://other.example.org"}).status_code == 403
    assert keyed.client.options(INFER, headers={"origin": asked["origin"]}).status_code == 401


def test_page_of_allowed_origin_reads_the_refusal(keyed: RunningServer) -> None:
    answer = infer(keyed, None, origin="https://app.example.org")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "https://app.example.org")
    assert infer(keyed, None, origin="https://other.example.org").status_code == 403


def test_unread_body_closes_the_connection(keyed: RunningServer) -> None:
    """The body of a refused request is not awaited, and its bytes are no request."""
    with connected(keyed) as connection:
        connection.sendall(HEAD + b"content-length: 100000\r\n\r\nGET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1") == 1


def test_continue_is_not_sent_to_refused_requests(keyed: RunningServer) -> None:
    with connected(keyed) as connection:
        connection.sendall(HEAD + b"content-length: 9\r\nexpect: 100-continue\r\n\r\n")
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_request_behind_a_refused_one_is_answered(keyed: RunningServer) -> None:
    """The whole body of the first has arrived, so the connection stays open."""
    refused = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    accepted = HEAD + b"x-api-key: %b\r\ncontent-length: %d\r\n\r\n" % (KEY.text.encode(), len(BODY)) + BODY
    with connected(keyed) as connection:
        connection.sendall(refused + accepted + refused)
        statuses = []
        answer = b""
        for _ in range(3):
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(65536)
            head, _, answer = answer.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            while len(answer) < length:
                answer += connection.recv(65536)
            answer = answer[length:]
            statuses.append(head.split()[1])
    assert statuses == [b"401", b"200", b"401"]


@pytest.mark.extended
def test_revoked_key_stops_on_open_connections(keyed: RunningServer, folder: Path) -> None:
    key = make_key("search")
    write_keys(folder / "keys.toml", KEY, READER, EXPIRED, key)
    wait_until(lambda: infer(keyed, key).status_code == 200)
    lines = "".join(f"{name}: {value}\r\n" for name, value in key.headers.items())
    head = f"POST {INFER} HTTP/1.1\r\nhost: localhost\r\n{lines}content-type: application/json\r\n"
    request = f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY

    def repeated() -> bytes:
        connection.sendall(request)
        return received(connection, b"}").split()[1]

    with (
        httpx.Client(base_url=keyed.url) as client,
        connected(keyed) as connection,
        grpc.insecure_channel(f"127.0.0.1:{keyed.grpc_port}") as channel,
    ):
        assert client.get("/models", headers=key.headers).status_code == 200
        live: Any = channel.unary_unary("/inference.GRPCInferenceService/ServerLive", None, None)
        assert live(b"", metadata=key.metadata)
        # A head that the connection repeats is not parsed again, but its key is checked.
        assert [repeated() for _ in range(3)] == [b"200"] * 3
        write_keys(folder / "keys.toml", KEY, READER, EXPIRED)
        wait_until(lambda: client.get("/models", headers=key.headers).status_code == 401)
        with pytest.raises(grpc.RpcError) as raised:
            live(b"", metadata=key.metadata)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert live(b"", metadata=KEY.metadata)
        assert repeated() == b"401"


@pytest.mark.extended
def test_repeated_bad_keys_are_slowed(keyed: RunningServer) -> None:
    """From one address; its valid keys are answered at once."""
    slowest_s = 0.0
    for _ in range(12):
        started_s = time.perf_counter()
        assert infer(keyed, UNKNOWN).status_code == 401
        slowest_s = max(slowest_s, time.perf_counter() - started_s)
        assert infer(keyed, KEY).status_code == 200
    assert slowest_s >= 0.5


def test_failures_are_counted_by_reason(keyed: RunningServer) -> None:
    def counted(reason: str) -> float:
        page = keyed.client.get("/metrics", headers=READER.headers).text
        lines = [line for line in page.splitlines() if f'auth_failures_total{{reason="{reason}"}}' in line]
        return float(lines[0].split()[-1]) if lines else 0.0

    before = {reason: counted(reason) for reason in ("missing", "unknown", "expired", "scope", "query")}
    infer(keyed)
    infer(keyed, UNKNOWN)
    infer(keyed, EXPIRED)
    infer(keyed, READER)
    keyed.client.get("/models?key=1")
    assert {reason: counted(reason) for reason in before} == {reason: count + 1 for reason, count in before.items()}


def test_request_log_has_tenant_and_key(keyed: RunningServer) -> None:
    assert infer(keyed, KEY, **{"x-request-id": "with-key"}).status_code == 200
    line = keyed.wait_for_log("request", WAIT_S, request_id="with-key")
    assert (line["tenant"], line["key_id"]) == ("search", KEY.key.key_id)
    assert infer(keyed, UNKNOWN, **{"x-request-id": "bad-key"}).status_code == 401
    line = keyed.wait_for_log("request", WAIT_S, request_id="bad-key")
    assert (line["status"], line["code"]) == (401, "unauthenticated")
    assert not {"tenant", "key_id"} & line.keys()


def test_manage_calls_have_an_audit_line(keyed: RunningServer) -> None:
    who = {"tenant": "search", "key_id": KEY.key.key_id}
    keyed.client.post("/models/vector/load", headers=KEY.headers | {"x-request-id": "load"})
    assert keyed.wait_for_log("audit", WAIT_S, request_id="load").items() >= {
        **who, "action": "load", "model": "vector", "outcome": "done", "status": 200,
    }.items()  # fmt: skip
    keyed.client.delete("/models/absent", headers=KEY.headers | {"x-request-id": "delete"})
    line = keyed.wait_for_log("audit", WAIT_S, request_id="delete", outcome="model_not_found", action="delete")
    assert line["model"] == "absent"
    keyed.client.post("/models/vector/unload", headers=READER.headers | {"x-request-id": "denied"})
    line = keyed.wait_for_log("audit", WAIT_S, request_id="denied", outcome="forbidden", action="unload")
    assert line["key_id"] == READER.key.key_id
    keyed.client.post("/models", headers=KEY.headers | {"x-request-id": "register"}, content=b"{}")
    keyed.wait_for_log("audit", WAIT_S, request_id="register", action="register")
    keyed.client.get("/models", headers=KEY.headers | {"x-request-id": "list"})
    keyed.wait_for_log("request", WAIT_S, request_id="list")
    assert not keyed.events("audit", request_id="list")


def test_manage_calls_over_grpc_have_an_audit_line(keyed: RunningServer) -> None:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{keyed.grpc_port}") as client:
        client.load_model("vector", headers={"authorization": f"Bearer {KEY.text}", "x-request-id": "grpc-load"})
        line = keyed.wait_for_log("audit", WAIT_S, request_id="grpc-load", action="load")
        assert (line["tenant"], line["model"], line["outcome"]) == ("search", "vector", "done")
        with pytest.raises(tritonclient.utils.InferenceServerException, match="scope manage"):
            client.unload_model("vector", headers={"x-api-key": READER.text, "x-request-id": "grpc-denied"})
        line = keyed.wait_for_log("audit", WAIT_S, request_id="grpc-denied", action="unload")
        assert (line["key_id"], line["outcome"]) == (READER.key.key_id, "forbidden")


def test_log_holds_no_secret(keyed: RunningServer) -> None:
    """The last test of the file: all others have sent these keys in every place."""
    text = "\n".join(keyed.lines)
    for key in (KEY, READER, EXPIRED, UNKNOWN):
        assert key.text[16:] not in text
