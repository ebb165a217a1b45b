"""Foreign hosts and foreign pages: what a browser may be made to send to this server is refused."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.configs import EMBEDDED
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving

PAGE = "https://app.example.org"
CONFIG = f"""{EMBEDDED}
[server]
allowed_hosts = ["models.example.org"]
cors_origins = ["{PAGE}"]
"""
IMAGE = {"input_data": [0] * 64}
PATHS = [
    *(
        "/",
        "/docs",
        "/docs/swagger-ui.css",
        "/openapi.json",
        "/health",
        "/health/live",
        "/metrics",
        "/models",
        "/models/digits",
    ),
    *("/v1/models", "/v2", "/v2/models/digits", "/v2/health/ready", "/infer", "/v1/embeddings", "/nothing", "/../x"),
]
ORDERS = [
    *(("POST", f"/models/digits/{order}") for order in ("load", "unload", "rollback", "infer")),
    *(("POST", f"/v2/repository/models/digits/{order}") for order in ("load", "unload")),
    *(
        ("POST", path)
        for path in ("/models", "/infer", "/v1/embeddings", "/v2/models/digits/infer", "/v2/repository/index")
    ),
    ("DELETE", "/models/digits"),
]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("origins"), CONFIG) as running:
        yield running.wait_ready()


def ask(
    server: RunningServer, *lines: str, method: str = "GET", path: str = "/health/live", version: str = "1.1"
) -> str:
    """Send one head with exactly these header lines; return the response."""
    head = "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "connection: close", "", ""])
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        connection.sendall(head.encode("latin-1"))
        received = b""
        while part := connection.recv(65536):
            received += part
    return received.decode()


@pytest.mark.parametrize("path", PATHS)
def test_foreign_host_refused_everywhere(path: str, own: RunningServer) -> None:
    for host in ("evil.example", f"evil.example:{own.port}", "localhost.evil.example"):
        for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
            answer = ask(own, f"host: {host}", method=method, path=path)
            assert answer.startswith("HTTP/1.1 403 "), answer
            assert "location:" not in answer.lower()
            assert method == "HEAD" or "server.allowed_hosts" in answer


@pytest.mark.parametrize(
    "lines", [(), ("host: localhost", "host: localhost"), ("host: localhost", "host: evil.example")]
)
def test_request_without_one_host_refused(lines: tuple[str, ...], own: RunningServer) -> None:
    for path in ("/health/live", "/models/digits/infer"):
        answer = ask(own, *lines, path=path)
        assert answer.startswith("HTTP/1.1 400 "), answer
        assert "host: expected one Host header" in answer
        assert '"invalid_input"' in answer


def test_own_hosts_answered(own: RunningServer) -> None:
    for host in ("localhost", "127.0.0.1", f"[::1]:{own.port}", "10.9.8.7:80", "testserver", "models.example.org"):
        assert ask(own, f"host: {host}").startswith("HTTP/1.1 200 "), host
    assert ask(own, version="1.0").startswith("HTTP/1.1 200 ")


def test_no_redirect_is_built_from_headers(own: RunningServer) -> None:
    for path in (*PATHS, *(path for _, path in ORDERS)):
        for shown in (path, f"{path}/", f"/{path}", f"{path}//"):
            answer = ask(own, "host: models.example.org", "x-forwarded-host: evil.example", path=shown)
            assert not answer.startswith("HTTP/1.1 3"), (shown, answer)
            assert "evil.example" not in answer
            assert "models.example.org" not in answer


@pytest.mark.parametrize(("method", "path"), ORDERS)
def test_foreign_page_refused(method: str, path: str, own: RunningServer) -> None:
    """Requests that a page may send without a CORS preflight: without content type, and without a body."""
    before = own.client.get("/models/digits").json()
    foreign: list[dict[str, str]] = [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": f"http://127.0.0.1:{own.port + 1}", "sec-fetch-site": "same-site"},
    ]
    for headers in foreign:
        for content in (b"", b'{"model_name": "digits", "input_data": [0]}'):
            answer = own.client.request(method, path, content=content, headers=headers)
            assert answer.status_code == 403, answer.text
            assert "server.cors_origins" in answer.text
            assert "access-control-allow-origin" not in answer.headers
    after = own.client.get("/models/digits").json()
    assert (after["state"], after["version_details"]) == (before["state"], before["version_details"])


def test_own_page_may_call(own: RunningServer) -> None:
    for headers in (
        {"origin": own.url},
        {"origin": own.url, "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ):
        assert own.client.post("/models/digits/infer", json=IMAGE, headers=headers).status_code == 200
        assert own.client.post("/models/digits/load", headers=headers).status_code == 200


def test_foreign_page_reads_no_response(own: RunningServer) -> None:
    answer = own.client.get("/models", headers={"origin": "https://evil.example", "sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["vary"] == "Origin"


def check_readable(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["vary"] == "Origin"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_allowed_page_reads_every_response(own: RunningServer) -> None:
    page = {"origin": PAGE, "sec-fetch-site": "cross-site"}
    post: Any = own.client.post
    check_readable(post("/models/digits/infer", json=IMAGE, headers=page), 200)
    check_readable(post("/models/digits/infer", json={"text": "a"}, headers=page), 400)
    check_readable(post("/models/digits/infer", content=b"x" * 100_000, headers=page), 400)
    check_readable(own.client.get("/models", headers=page), 200)
    check_readable(own.client.get("/nothing", headers=page), 404)
    check_readable(own.client.get("/docs/swagger-ui.css", headers=page), 200)
    check_readable(post("/models/digits/load", headers=page), 200)
    check_readable(own.client.get("/infer", headers=page), 405)
    body = {"model": "tiny-llama", "prompt": "a", "max_tokens": 3, "stream": True}
    stream = post("/v1/completions", json=body, headers=page)
    check_readable(stream, 200)
    assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    "path", ["/infer", "/v1/chat/completions", "/models/digits/load", "/models/digits", "/nothing"]
)
def test_preflight_answered_for_allowed_page_only(path: str, own: RunningServer) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    answer = own.client.request("OPTIONS", path, headers={"origin": PAGE, **asked})
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    assert {"GET", "POST", "DELETE"} <= set(answer.headers["access-control-allow-methods"].split(", "))
    assert answer.headers["x-request-id"]
    refused = own.client.request("OPTIONS", path, headers={"origin": "https://evil.example", **asked})
    assert refused.status_code == 403
    assert not [name for name in refused.headers if name.startswith("access-control")]


def test_default_server_allows_no_page(server: RunningServer) -> None:
    asked = {"origin": PAGE, "access-control-request-method": "POST"}
    assert_refused(server.client.request("OPTIONS", "/infer", headers=asked), 403, "forbidden", "origin: expected")
    answer = server.client.post("/models/digits/infer", json=IMAGE, headers={"origin": PAGE})
    assert_refused(answer, 403, "forbidden", "origin: expected", PAGE)
    assert "vary" not in server.client.get("/models").headers
    assert server.client.request("OPTIONS", "/infer").status_code == 405
