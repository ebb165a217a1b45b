"""HTTP as other clients speak it: offers of another protocol, HEAD, paths with a slash at the end, trailers."""

import json
import shutil
import socket
import subprocess

import pytest

from tests.e2e.server import RunningServer
from tests.e2e.test_raw_sockets import BODY, REQUEST, connected, head_of, one_answer

H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
OFFERS = {
    "h2c": H2C,
    "other": b"connection: upgrade\r\nupgrade: foo\r\n",
    "capitals": b"Upgrade: x\r\nConnection: UPGRADE\r\n",
}
HIDDEN = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"


def request(fields: bytes, body: bytes, start: bytes = b"POST /infer") -> bytes:
    """Return a request of HTTP/1.1; `fields` are its header lines."""
    return start + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" + fields + b"\r\n" + body


def assert_answered(connection: socket.socket) -> None:
    """Check that the next response is that of BODY."""
    status, _, body = one_answer(connection)
    assert (status, json.loads(body)["output_data"]) == (200, [1, 2])


class TestUpgrade:
    @pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
    @pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
    def test_offer_is_ignored_and_body_read(self, offer: bytes, is_chunked: bool, server: RunningServer) -> None:
        if is_chunked:
            sent = request(offer + b"transfer-encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
        else:
            sent = request(offer + b"content-length: %d\r\n" % len(BODY), BODY)
        with connected(server) as connection:
            connection.sendall(sent * 2 + REQUEST)
            for _ in range(3):
                assert_answered(connection)
            for byte in sent:
                connection.sendall(bytes([byte]))
            assert_answered(connection)

    def test_request_hidden_in_body_is_not_answered(self, server: RunningServer) -> None:
        sent = request(b"connection: upgrade\r\nupgrade: foo\r\ncontent-length: %d\r\n" % len(HIDDEN), HIDDEN)
        with connected(server) as connection:
            connection.sendall(sent + REQUEST)
            status, _, body = one_answer(connection)
            assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_json")
            assert_answered(connection)

    def test_close_beside_upgrade_still_closes(self, server: RunningServer) -> None:
        with connected(server) as connection:
            connection.sendall(request(b"connection: close, upgrade\r\nupgrade: x\r\n", b"", b"GET /health/live"))
            status, headers, _ = one_answer(connection)
            assert (status, headers["connection"]) == (200, "close")
            assert connection.recv(1) == b""

    def test_head_over_limit_refused(self, server: RunningServer) -> None:
        with connected(server) as connection:
            connection.sendall(request(b"connection: upgrade\r\nupgrade: " + b"x" * 70_000 + b"\r\n", b""))
            assert one_answer(connection)[0] == 400

    def test_connect_refused(self, server: RunningServer) -> None:
        with connected(server) as connection:
            connection.sendall(b"CONNECT x:1 HTTP/1.1\r\nhost: x:1\r\n\r\n" + REQUEST)
            status, headers, body = one_answer(connection)
            assert (status, headers["connection"]) == (400, "close")
            assert "CONNECT" in json.loads(body)["error"]["message"]

    @pytest.mark.skipif(shutil.which("curl") is None, reason="wants curl")
    def test_curl_with_http2_posts_body(self, server: RunningServer) -> None:
        command = ["curl", "--silent", "--http2", "-H", "content-type: application/json", "-d", BODY.decode()]
        done = subprocess.run([*command, f"{server.url}/infer"], capture_output=True, check=True, timeout=300)
        assert json.loads(done.stdout)["output_data"] == [1, 2]


class TestHead:
    @pytest.mark.parametrize(
        "path", ["/", "/health", "/health/live", "/metrics", "/models", "/v1/models", "/v2", "/docs"]
    )
    def test_head_answers_as_get_without_body(self, path: str, server: RunningServer) -> None:
        with connected(server) as connection:
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() + REQUEST)
            head = head_of(connection)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"\r\ncontent-length: " in head
            assert_answered(connection)

    @pytest.mark.parametrize(
        "path", ["/infer", "/v1/chat/completions", "/v2/models/float32/infer", "/nothing", "/models/x/load"]
    )
    def test_refused_head_has_no_body(self, path: str, server: RunningServer) -> None:
        with connected(server) as connection:
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() + REQUEST)
            head = head_of(connection)
            assert head.split()[1] in (b"404", b"405")
            assert_answered(connection)


@pytest.mark.parametrize("path", ["/health", "/models", "/v1/models", "/v2", "/v2/health/ready", "/models/float32"])
def test_slash_at_end_is_same_path(path: str, server: RunningServer) -> None:
    answer = server.client.get(f"{path}/", follow_redirects=False)
    assert answer.status_code == 200
    assert answer.json().keys() == server.client.get(path).json().keys()


@pytest.mark.parametrize("path", ["/infer", "/models/float32/infer"])
def test_slash_at_end_of_inference_path(path: str, server: RunningServer) -> None:
    answer = server.client.post(f"{path}/", json=json.loads(BODY))
    assert (answer.status_code, answer.json()["output_data"]) == (200, [1, 2])


def test_trailers_are_no_headers(server: RunningServer) -> None:
    chunks = b"%x\r\n%b\r\n0\r\nx-request-id: trailer\r\n\r\n" % (len(BODY), BODY)
    with connected(server) as connection:
        connection.sendall(request(b"transfer-encoding: chunked\r\n", chunks) + REQUEST)
        status, headers, _ = one_answer(connection)
        assert status == 200
        assert headers["x-request-id"] != "trailer"
        assert_answered(connection)
