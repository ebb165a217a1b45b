"""Images by URL: only of listed hosts with public addresses, within bounds of bytes and seconds."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.inference import media_fetch
from app.inference.media_fetch import MediaFetcher
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import (
    Conversation,
    GenerationSpec,
    Message,
    MessageImage,
    VisionSpec,
)
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.types import ModelSpec
from tests.support.loops import in_loop, soon

FILE = b"\x89PNG" + bytes(range(200))
SEEING = ModelSpec(
    framework="pytorch",
    task="generate",
    inputs=(),
    outputs=(),
    device="cpu",
    dtype="float32",
    memory_bytes=0,
    generation=GenerationSpec(100, 100, vision=VisionSpec(3, 1000)),
)


class Handler(BaseHTTPRequestHandler):
    """Answer by the path."""

    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        getattr(self, f"do_{self.path.partition('?')[0].strip('/')}")()

    def do_file(self) -> None:
        self._head(200, len(FILE))
        self.wfile.write(FILE)

    def do_redirect(self) -> None:
        self.send_response(302)
        self.send_header("location", "/file")
        self.end_headers()

    def do_absent(self) -> None:
        self._head(404, 0)

    def do_announced(self) -> None:
        self._head(200, media_fetch.MAX_IMAGE_BYTES + 1)

    def do_endless(self) -> None:
        self._head(200, None)
        try:
            while True:
                self.wfile.write(bytes(1 << 16))
        except OSError:
            self.server.ended.set()  # type: ignore[attr-defined]

    def do_slow(self) -> None:
        self._head(200, 1000)
        try:
            for _ in range(1000):
                self.wfile.write(b"a")
                time.sleep(0.05)
        except OSError:
            self.server.ended.set()  # type: ignore[attr-defined]

    def do_header(self) -> None:
        try:
            for _ in range(1000):
                self.wfile.write(b"H")
                time.sleep(0.05)
        except OSError:
            self.server.ended.set()  # type: ignore[attr-defined]

    def do_short(self) -> None:
        self._head(200, 1000)
        self.wfile.write(b"a")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _head(self, status: int, length: int | None) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("content-length", str(length))
        self.end_headers()


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.paths, made.ended = [], threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def conversation(*urls: str) -> Conversation:
    images = tuple(MessageImage(b"", index, f"f[{index}]", url) for index, url in enumerate(urls))
    kept = MessageImage(b"own", 0, "own")
    return Conversation((Message("system", "a"), Message("user", "b", images=(kept, *images))))


def fetched(hosts: tuple[str, ...], *urls: str, spec: ModelSpec = SEEING, max_s: float = 5.0) -> list[bytes]:
    """Return the files of a request's images."""
    hold = ByteLimit(1 << 30).hold()

    async def fetch() -> Conversation:
        with closing(MediaFetcher(hosts, max_s)) as fetcher:
            return await fetcher.fetch(conversation(*urls), spec, hold)

    files = [image.data for image in asyncio.run(fetch()).images]
    assert hold.held_bytes == sum(map(len, files[1:]))
    return files


def url_of(server: ThreadingHTTPServer, path: str, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{server.server_address[1]}/{path}"


def test_listed_address_is_fetched(server: ThreadingHTTPServer) -> None:
    files = fetched(("127.0.0.0/8",), url_of(server, "file"), url_of(server, "file?size=3"))
    assert files == [b"own", FILE, FILE]
    assert server.paths == ["/file", "/file?size=3"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("redirect", "got a redirect, which is not followed"),
        ("absent", "got the status 404"),
        ("announced", f"got a file of {media_fetch.MAX_IMAGE_BYTES + 1} bytes"),
        ("endless", f"got a file of more than {media_fetch.MAX_IMAGE_BYTES} bytes"),
        ("short", "got a file that ends early"),
    ],
)
def test_bad_answer_is_refused_by_reason(server: ThreadingHTTPServer, path: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        fetched(("127.0.0.1",), url_of(server, path))
    assert caught.value.field == "f[0]"
    assert server.paths == [f"/{path}"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["slow", "header"])
def test_slow_server_is_left_in_time(server: ThreadingHTTPServer, path: str) -> None:
    started_s = time.monotonic()
    with pytest.raises(InvalidInput, match=r"no whole answer within 0\.3 seconds"):
        fetched(("127.0.0.1",), url_of(server, path), max_s=0.3)
    assert time.monotonic() - started_s < 10
    assert server.ended.wait(20), "the connection is closed"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/a",
        "http://169.254.169.254/latest/meta-data",
        "http://localhost/a",
        "https://other.org/a",
        "http://images.example.org.evil.org/a",
        "http://[::1]/a",
    ],
)
def test_other_host_is_refused_unresolved(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _never)
    with pytest.raises(InvalidInput, match=r"which is not in server\.media_hosts"):
        fetched(("images.example.org", "*.pictures.org", "10.0.0.0/8"), url)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["169.254.169.254"],
        ["192.168.0.1"],
        ["93.184.216.34", "10.0.0.1"],
        ["::1"],
        ["fe80::1%eth0"],
        ["fd00::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::a9fe:a9fe"],
        ["2002:7f00:1::1"],
        ["0.0.0.0"],
        ["224.0.0.1"],
    ],
)
def test_private_address_of_host_is_refused(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _resolving(addresses))
    monkeypatch.setattr(socket, "socket", _never)
    with closing(MediaFetcher(("192.0.2.0/24",))) as fetcher:
        parts = urlsplit("http://images.example.org/a")
        fetch = media_fetch._Fetch(parts, fetcher._is_allowed, _never, 5.0, "image", 100)
        with pytest.raises(media_fetch._FetchFailed, match="a host with a private address"):
            fetch.run()


def test_connection_goes_to_checked_address(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    port = server.server_address[1]

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = f"http://images.example.org:{port}/file"
    assert fetched(("images.example.org", "127.0.0.1"), url) == [b"own", FILE]
    assert asked == ["images.example.org"]


@pytest.mark.parametrize(
    "url", ["http://a:b@images.org/a", "http://", "http://images.org:99999/a", "http://images.org/é", "http://a/ b"]
)
def test_odd_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="with a host and without credentials"):
        fetched(("*",), url)
    with pytest.raises(InvalidInput, match="with a host and without credentials"):
        fetched(("*",), "http://images.org/" + "a" * 3000)


def test_model_that_cannot_read_them_fetches_none(server: ThreadingHTTPServer) -> None:
    blind = replace(SEEING, generation=GenerationSpec(100, 100))
    assert fetched(("127.0.0.1",), url_of(server, "file"), spec=blind) == [b"own", b""]
    assert fetched(("127.0.0.1",), *[url_of(server, "file")] * 3) == [b"own", b"", b"", b""]
    assert server.paths == []  # type: ignore[attr-defined]


def test_texts_have_no_urls() -> None:
    own, fetched_later = conversation(), conversation("http://a")
    assert own.has_images
    assert (own.has_urls, fetched_later.has_urls) == (False, True)
    assert not Conversation((Message("user", "a"),)).has_urls


@in_loop
async def test_cancelled_request_ends_its_fetch(server: ThreadingHTTPServer) -> None:
    with closing(MediaFetcher(("127.0.0.1",), 60.0)) as fetcher:
        hold = ByteLimit(1 << 30).hold()
        task = asyncio.create_task(fetcher.fetch(conversation(url_of(server, "slow")), SEEING, hold))
        await soon(lambda: bool(server.paths))  # type: ignore[attr-defined]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.ended.wait, 20), "the connection is closed"  # type: ignore[attr-defined]


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("no address is resolved or connected to")


def _resolving(addresses: list[str]) -> Callable[..., list[Any]]:
    def resolve(_: str, port: int, **__: Any) -> list[Any]:
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in each], socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    return resolve
