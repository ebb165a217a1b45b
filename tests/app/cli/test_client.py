"""The client of the command line against servers other than Roundhouse."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from app.cli.client import call

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
