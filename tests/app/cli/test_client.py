"""The command line's client against servers that are none of ours."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from app.cli.client import call

ANSWERS = {
    "/html": (502, b"<html>Bad Gateway</html>"),
    "/json": (418, b'{"error": {"code": "teapot"}}'),
    "/broken": (200, b"{"),
    "/latin": (500, b"\xe9" * 1000),
    "/fine/a%20b%3Fc": (200, b'{"ok": true}'),
}


class Other(BaseHTTPRequestHandler):
    """Answers as ANSWERS says."""

    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's own name
        """Says nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_answers_of_every_kind(url: str) -> None:
    assert call(url + "/", "GET", "/fine/a b?c") == (200, {"ok": True})
    assert call(url, "GET", "/json") == (418, {"error": {"code": "teapot"}})
    status, answer = call(url, "GET", "/html")
    assert (status, answer["error"]) == (502, {"code": "not_roundhouse", "message": "<html>Bad Gateway</html>"})
    status, answer = call(url, "GET", "/latin")
    assert (status, answer["error"]["message"]) == (500, "\ufffd" * 500)
    status, answer = call(url, "GET", "/broken")
    assert (status, answer["error"]["code"]) == (0, "unreachable")


def test_no_server_at_all() -> None:
    for address in (
        "http://127.0.0.1:1",
        "http://no.such.host.invalid",
        "file:///etc/passwd",
        "http://[",
        "http://a:b",
    ):
        status, answer = call(address, "GET", "/models")
        assert (status, answer["error"]["code"]) == (0, "unreachable")
        assert address in answer["error"]["message"]
