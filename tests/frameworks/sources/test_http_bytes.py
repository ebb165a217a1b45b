"""Test the bytes of web servers, over sockets: ranges, faults, limits, redirects, TLS and proxies."""

import collections
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources import connections, http_exchange
from frameworks.sources.contract import SourceChanged
from frameworks.sources.http_bytes import HttpBytes
from tests.support.web_server import WebServer, trusted_web_server, web_server

CONTENT = bytes(range(256)) * 2000


@pytest.fixture
def url(web: WebServer) -> str:
    web.files["/a/model.onnx"] = CONTENT
    return f"{web.url}/a/model.onnx"


def read(url: str, offset: int = 0, etag: str | None = None, size: int = len(CONTENT)) -> bytes:
    return b"".join(HttpBytes().read(url, size, offset, etag))


@pytest.mark.parametrize("offset", [0, 1, 100_000, len(CONTENT) - 1])
@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_read_from_offset_returns_rest(web: WebServer, url: str, offset: int, ignores_ranges: bool) -> None:
    web.faults.ignores_ranges = ignores_ranges
    assert read(url, offset, web.etag("/a/model.onnx")) == CONTENT[offset:]


def test_head_returns_size_and_etag(web: WebServer, url: str) -> None:
    head = HttpBytes().head(url)
    assert head is not None
    assert (head.size, head.etag) == (len(CONTENT), web.etag("/a/model.onnx"))
    assert HttpBytes().head(f"{web.url}/other") is None


def test_head_without_method_asks_with_get(web: WebServer, url: str) -> None:
    web.faults.no_head = True
    head = HttpBytes().head(url)
    assert head is not None
    assert head.size == len(CONTENT)
    assert [each.method for each in web.requests] == ["HEAD", "GET"]


def test_head_without_etag_returns_date(web: WebServer, url: str) -> None:
    web.faults.has_etags = False
    head = HttpBytes().head(url)
    assert head is not None
    assert head.etag == "Mon, 01 Jan 2024 00:00:00 GMT"
    assert read(url, 5, head.etag) == CONTENT[5:]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_document_returns_whole_body(web: WebServer, url: str, is_chunked: bool) -> None:
    web.faults.is_chunked = is_chunked
    assert HttpBytes().document(url, len(CONTENT)) == CONTENT
    assert HttpBytes().document(f"{web.url}/other", 10) is None


@pytest.mark.parametrize("is_chunked", [False, True])
def test_document_above_limit_is_refused(web: WebServer, url: str, is_chunked: bool) -> None:
    web.faults.is_chunked = is_chunked
    with pytest.raises(InvalidModel, match="expected at most 1000 bytes"):
        HttpBytes().document(url, 1000)


def test_chunked_file_is_read(web: WebServer, url: str) -> None:
    web.faults.is_chunked = True
    assert read(url) == CONTENT


def test_bytes_beyond_size_are_dropped(web: WebServer, url: str) -> None:
    web.faults.extra = b"more" * 1000
    web.faults.size_lie = 4000
    with pytest.raises(SourceChanged, match=f"expected {len(CONTENT)} bytes, got {len(CONTENT) + 4000}"):
        read(url)
    web.faults.size_lie = 0
    assert read(url) == CONTENT


def test_cut_body_raises_source_unavailable(web: WebServer, url: str) -> None:
    web.faults.cut_after = 100_000
    received = bytearray()
    with pytest.raises(SourceUnavailable, match=f"got 100000 of {len(CONTENT)} bytes"):
        collections.deque(map(received.extend, HttpBytes().read(url, len(CONTENT))), maxlen=0)
    assert received == CONTENT[:100_000]


@pytest.mark.parametrize(("etag", "size"), [('"other"', len(CONTENT)), (None, len(CONTENT) + 1), (None, 10)])
@pytest.mark.parametrize("offset", [0, 3])
def test_other_content_raises_source_changed(url: str, offset: int, etag: str | None, size: int) -> None:
    with pytest.raises(SourceChanged):
        read(url, offset, etag, size)


def test_vanished_file_raises_source_changed(web: WebServer) -> None:
    with pytest.raises(SourceChanged, match="404"):
        read(f"{web.url}/gone")


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_busy_server_raises_source_unavailable(web: WebServer, url: str, status: int) -> None:
    web.faults.statuses, web.faults.retry_after = [status], "7"
    with pytest.raises(SourceUnavailable, match=str(status)) as caught:
        read(url)
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("9999999999999", 60), ("Fri, 31 Dec 9999 23:59:59 GMT", 60), ("Mon, 01 Jan 2024 00:00:00 GMT", 0)],
)
def test_retry_after_is_limited(web: WebServer, url: str, text: str, seconds: float) -> None:
    web.faults.statuses, web.faults.retry_after = [503], text
    with pytest.raises(SourceUnavailable) as caught:
        read(url)
    assert caught.value.retry_after_s == seconds


@pytest.mark.parametrize("status", [401, 403, 418])
def test_refusal_raises_invalid_model(web: WebServer, url: str, status: int) -> None:
    web.faults.statuses = [status]
    with pytest.raises(InvalidModel, match=f"got {status} .*; give a token"):
        list(HttpBytes(advice="give a token").read(url, len(CONTENT)))


def test_compressed_body_is_refused(web: WebServer, url: str) -> None:
    web.faults.encoding = "gzip"
    with pytest.raises(InvalidModel, match="compressed"):
        read(url)


@pytest.mark.parametrize("hold_after", [0, 5000])
def test_silent_server_raises_source_unavailable(web: WebServer, url: str, hold_after: int) -> None:
    web.faults.hold_after = hold_after
    with pytest.raises(SourceUnavailable, match=r"got \d+ bytes in 0 s"):
        list(HttpBytes(window_s=0.2).read(url, len(CONTENT)))


def test_one_byte_at_a_time_raises_source_unavailable() -> None:
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b"x", pause_s=0.05) as url:
        body = HttpBytes(window_s=1).read(url, 999)
        with pytest.raises(SourceUnavailable, match="bytes in 1 s"):
            list(body)


def test_endless_head_raises_source_unavailable() -> None:
    with raw_server(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000) as url:
        bytes_of = HttpBytes()
        with pytest.raises(SourceUnavailable, match="more bytes than it announced"):
            bytes_of.head(url)


def test_other_protocol_raises_source_unavailable() -> None:
    with raw_server(b"SSH-2.0-server\r\n", b"") as url, pytest.raises(SourceUnavailable):
        HttpBytes().head(url)


def test_closed_port_raises_source_unavailable(web: WebServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(SourceUnavailable, match="got no connection: nothing listens there; check the network"):
            HttpBytes().head(f"http://127.0.0.1:{unused.getsockname()[1]}/a")


def test_redirect_keeps_token_on_same_host_only(web: WebServer, url: str) -> None:
    with web_server() as other:
        other.files["/b"] = CONTENT
        web.redirects = {"/first": "/second?x=é", "/second": f"{other.url}/b?signature=s"}
        bytes_of = HttpBytes({"Authorization": "Bearer secret"})
        assert b"".join(bytes_of.read(f"{web.url}/first", len(CONTENT), 7)) == CONTENT[7:]
        assert [each.headers.get("authorization") for each in web.requests] == ["Bearer secret"] * 2
        assert other.requests[0].path == "/b?signature=s"
        assert "authorization" not in other.requests[0].headers
        assert other.requests[0].headers["range"] == "bytes=7-"


def test_error_after_redirect_hides_signature(web: WebServer) -> None:
    web.redirects = {"/a": "/b?signature=secret"}
    web.faults.statuses = []
    with pytest.raises(InvalidModel) as caught:
        HttpBytes().head(f"{web.url}/a?token=secret", absent=())
    assert "secret" not in str(caught.value)


def test_endless_redirects_are_refused(web: WebServer) -> None:
    web.redirects = {"/a": "/a"}
    with pytest.raises(InvalidModel, match="expected at most 5 redirects"):
        read(f"{web.url}/a")
    assert len(web.requests) == 6


@pytest.mark.parametrize(
    "location",
    ["http://example.org/a", "ftp://127.0.0.1/a", "file:///etc/passwd", "http://127.0.0.1:0/", "//[::1"],
)
def test_redirect_to_other_place_is_refused(web: WebServer, location: str) -> None:
    web.redirects = {"/a": location}
    with pytest.raises(InvalidModel, match="expected"):
        read(f"{web.url}/a")
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    "url", ["http://example.org/a", "ftp://127.0.0.1/a", "http://127.0.0.1:99999/a", "https://", "http://a\nb/"]
)
def test_url_without_https_is_refused(url: str) -> None:
    with pytest.raises(InvalidModel):
        HttpBytes().head(url)


def test_redirect_from_public_to_private_is_refused(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.redirects = {"/a": f"http://127.0.0.2:{web.port}/b"}
    monkeypatch.setattr(connections, "_is_public", lambda address: address == "127.0.0.1")
    with pytest.raises(InvalidModel, match="got a private address"):
        read(f"{web.url}/a")
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False), ("::1", False),
        ("169.254.169.254", False), ("fe80::1%eth0", False), ("::ffff:10.0.0.1", False), ("100.64.0.1", False),
        ("0.0.0.0", False),
    ],
)  # fmt: skip
def test_public_address_is_recognized(address: str, is_public: bool) -> None:
    assert connections._is_public(address) == is_public


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    with trusted_web_server(tmp_path, monkeypatch) as running:
        running.files["/a"] = CONTENT
        yield running


def test_https_reads_over_tls(tls: WebServer) -> None:
    assert read(f"{tls.url}/a", 3) == CONTENT[3:]
    assert tls.requests[0].headers["host"] == f"127.0.0.1:{tls.port}"


def test_requests_share_certificate_authorities(tls: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def create() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_default_certs()
        made.append(context)
        time.sleep(0.05)  # the other threads arrive here, unless one of them loads for all
        return context

    for name in ("create_default_context", "_create_default_https_context"):
        monkeypatch.setattr(ssl, name, create)
    bytes_of = HttpBytes()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: bytes_of.document(f"{tls.url}/a", len(CONTENT)), range(8)))
    assert found == [CONTENT] * 8
    assert len(made) == 1


def test_unknown_certificate_raises_source_unavailable(tls: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(SourceUnavailable, match=r"not trusted .*; set SSL_CERT_FILE"):
        read(f"{tls.url}/a")
    assert not tls.requests


def test_redirect_from_https_to_http_is_refused(tls: WebServer, web: WebServer, url: str) -> None:
    tls.redirects = {"/b": url}
    with pytest.raises(InvalidModel, match="expected https, got http"):
        read(f"{tls.url}/b")
    assert not web.requests


def test_silent_handshake_raises_source_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.2)
    # The head of a record, whose bytes then arrive one by one.
    with raw_server(b"\x16\x03\x03\x3f\xff", b"\x02", pause_s=0.05) as url, pytest.raises(SourceUnavailable):
        HttpBytes().head(url.replace("http:", "https:"))


def test_proxy_of_environment_is_used(tls: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with tunnel_server(tls.port) as (port, heads):
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:p%40ss@127.0.0.1:{port}")
        # An address of this machine is asked without the proxy: another name for it is needed.
        monkeypatch.setattr(connections, "is_loopback", lambda parts: False)
        assert read(f"{tls.url}/a") == CONTENT
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert read(f"{tls.url}/a") == CONTENT
    assert len(heads) == 1
    assert heads[0].startswith(b"CONNECT 127.0.0.1:")
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz" in heads[0]


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://user:secret@host:99999", "https://host:1"])
def test_proxy_with_error_is_refused(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(InvalidModel) as caught:
        HttpBytes().head("https://models.example.org/a")
    assert "secret" not in str(caught.value)


def test_chunk_size_is_limited(url: str) -> None:
    sizes = [len(chunk) for chunk in HttpBytes().read(url, len(CONTENT))]
    assert max(sizes) <= http_exchange.CHUNK_BYTES


@contextmanager
def raw_server(first: bytes, repeated: bytes, pause_s: float = 0) -> Iterator[str]:
    """Send `first`, then `repeated` without end, to one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)

        def serve() -> None:
            connected, _ = listening.accept()
            with closing(connected):
                connected.settimeout(pause_s or None)
                try:
                    connected.sendall(first)
                    while repeated:
                        connected.sendall(repeated)
                        if pause_s:
                            wait_for_close(connected)
                except OSError:
                    pass

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/a"
        thread.join()


def wait_for_close(connected: socket.socket) -> None:
    """Receive until the timeout; raises ConnectionError once the client has closed the connection."""
    try:
        while connected.recv(65536):
            pass
    except TimeoutError:
        return
    raise ConnectionError


@contextmanager
def tunnel_server(port: int) -> Iterator[tuple[int, list[bytes]]]:
    """Run a proxy for one CONNECT, which leads to `port`. Yields its port and the heads that it has received."""
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)

        def serve() -> None:
            client, _ = listening.accept()
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            heads.append(head)
            with closing(client), socket.create_connection(("127.0.0.1", port)) as target:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = Thread(target=pump, args=(target, client))
                back.start()
                pump(client, target)
                back.join()

        thread = Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], heads
        thread.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while received := source.recv(65536):
            target.sendall(received)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass
