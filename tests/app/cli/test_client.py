"""The client of the command line against servers other than Roundhouse."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from app.cli.client import TlsOptions, call
from app.cli.parser import server_url
from tests.support.certificates import Authority, server_pair

RESPONSES = {
    "/html": (502, b"<html>Bad Gateway</html>"),
    "/json": (418, b'{"error": {"code": "teapot"}}'),
    "/broken": (200, b"{"),
    "/latin": (500, b"\xe9" * 1000),
    "/fine/a%20b%3Fc": (200, b'{"ok": true}'),
}


class OtherServer(BaseHTTPRequestHandler):
    """Sends the response of RESPONSES for the path, or its `authorization` header; `/moved` is elsewhere."""

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("location", "/authorization")
            self.end_headers()
            return
        if self.path == "/authorization":
            RESPONSES[self.path] = (200, json.dumps(self.headers["authorization"]).encode())
        status, body = RESPONSES[self.path]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's own name
        """Log nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), OtherServer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_call_decodes_json_and_reports_other_bodies(url: str) -> None:
    assert call(url + "/", "GET", "/fine/a b?c") == (200, {"ok": True})
    assert call(url, "GET", "/json") == (418, {"error": {"code": "teapot"}})
    status, response = call(url, "GET", "/html")
    assert (status, response["error"]) == (502, {"code": "not_roundhouse", "message": "<html>Bad Gateway</html>"})
    status, response = call(url, "GET", "/latin")
    assert (status, response["error"]["message"]) == (500, "\ufffd" * 500)
    status, response = call(url, "GET", "/broken")
    assert (status, response["error"]["code"]) == (0, "unreachable")


def test_call_sends_key_to_this_server_only(url: str) -> None:
    assert call(url, "GET", "/authorization", api_key="rh_key") == (200, "Bearer rh_key")
    assert call(url, "GET", "/authorization") == (200, None)
    assert call(url, "GET", "/moved", api_key="rh_key") == (200, None)


@pytest.mark.parametrize("key", ["a b", "a\r\nx: y", "schlüssel"])
def test_invalid_key_is_not_sent(url: str, key: str) -> None:
    status, response = call(url, "GET", "/authorization", api_key=key)
    assert (status, response["error"]["code"]) == (0, "invalid_key")
    assert key not in response["error"]["message"]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8390", "http://127.0.0.1:8390"),
        ("localhost", "http://localhost"),
        ("[::1]:80/models", "http://[::1]:80/models"),
        ("https://a", "https://a"),
        ("file:///a", "file:///a"),
        ("a b", "a b"),
    ],
)
def test_address_without_scheme_is_http(text: str, url: str) -> None:
    assert server_url(text) == url


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1:1", "no connection: nothing listens there; start the server, or name another address"),
        ("http://no.such.host.invalid", "a host name that is not known; name another one"),
    ],
)
def test_reason_has_no_name_of_python(address: str, reason: str) -> None:
    _, response = call(address, "GET", "/models")
    assert response["error"]["message"] == f"--url: expected a Roundhouse server at {address}, got {reason}"


def test_unknown_authority_names_cacert(tmp_path: Path) -> None:
    files = server_pair(Authority()).write(tmp_path, "server")
    with HTTPServer(("127.0.0.1", 0), OtherServer) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        # The handshake fails in the accept.
        server.timeout = 10
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        _, response = call(f"https://127.0.0.1:{server.server_port}", "GET", "/models", tls=TlsOptions())
        thread.join()
    assert "a certificate that is not trusted (" in response["error"]["message"]
    assert response["error"]["message"].endswith("; name its authority with --cacert")


def test_call_without_server_returns_unreachable() -> None:
    for address in (
        "http://127.0.0.1:1",
        "http://no.such.host.invalid",
        "file:///etc/passwd",
        "http://[",
        "http://a:b",
    ):
        status, response = call(address, "GET", "/models")
        assert (status, response["error"]["code"]) == (0, "unreachable")
        assert address in response["error"]["message"]
