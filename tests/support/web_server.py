"""A web server on loopback with files and faults, for tests of downloads."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote

import pytest

from tests.support.certificates import Authority, server_pair


@dataclass(slots=True)
class Faults:
    """Switches of the server. Each holds for all requests from the moment it is set."""

    cut_after: int | None = None
    """Close the connection after so many bytes of a body."""
    cuts: int = 1 << 30
    """How many bodies are cut."""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next responses, before the server answers as usual."""
    retry_after: str = ""
    size_lie: int = 0
    """Added to the content length that is announced."""
    extra: bytes = b""
    """Sent after the body, beyond its length."""
    ignores_ranges: bool = False
    has_etags: bool = True
    is_chunked: bool = False
    no_head: bool = False
    encoding: str = ""
    is_offline: bool = False
    """Close each connection without a response."""
    token: str = ""
    """Answer 401 to requests without it, except below /cdn/."""
    hold_after: int | None = None
    """Wait for `go_on` after so many bytes of a body."""
    go_on: Event = field(default_factory=Event)


@dataclass(slots=True)
class Request:
    """A request that the server has received. `headers`: by lower-case name."""

    method: str
    path: str
    headers: dict[str, str]


class WebServer:
    """Serves `files` (path with `/` in front -> content) and `redirects` (path -> location).

    `etags` and `headers`: of a path, beside or instead of the usual ones.
    """

    def __init__(self, port: int, scheme: str = "http") -> None:
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.port = port
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.etags: dict[str, str] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.content_types: dict[str, str] = {}
        self.faults = Faults()
        self.requests: list[Request] = []

    def etag(self, path: str) -> str:
        """Return the entity tag of a file."""
        return self.etags.get(path, f'"{hash(self.files[path]) & 0xFFFFFFFF:x}"')


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with the default of 5, connections wait for a second


@contextmanager
def web_server(certificate: tuple[Path, Path] | None = None) -> Iterator[WebServer]:
    """Run a server. `certificate`: paths of the certificate and the key, for https."""
    with _Listening(("127.0.0.1", 0), _Handler) as listening:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        server = WebServer(listening.server_address[1], "https" if certificate else "http")
        listening.web = server  # type: ignore[attr-defined]
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.faults.go_on.set()
            listening.shutdown()
            thread.join()


@contextmanager
def trusted_web_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """Run a server with TLS whose certificate this process and its children trust. `folder`: for the certificates."""
    authority = Authority()
    (folder / "ca.pem").write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    with web_server(server_pair(authority).write(folder, "server")) as server:
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    close_connection = True

    @property
    def web(self) -> WebServer:
        server: WebServer = self.server.web  # type: ignore[attr-defined]
        return server

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        web, path = self.web, unquote(self.path.partition("?")[0])
        headers = {name.lower(): value for name, value in self.headers.items()}
        if web.faults.is_offline:
            return
        web.requests.append(Request(self.command, self.path, headers))
        if (
            web.faults.token
            and not path.startswith("/cdn/")
            and web.faults.token not in headers.get("authorization", "")
        ):
            self._send(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif web.faults.statuses:
            self._send(web.faults.statuses.pop(0), {"Retry-After": web.faults.retry_after})
        elif self.command == "HEAD" and web.faults.no_head:
            self._send(405, {})
        elif path in web.redirects:
            self._send(302, {"Location": web.redirects[path], **web.headers.get(path, {})})
        elif path not in web.files:
            self._send(404, {})
        else:
            self._send_file(path, headers)

    def _send_file(self, path: str, headers: dict[str, str]) -> None:
        faults, body = self.web.faults, self.web.files[path]
        answer = (
            {"ETag": self.web.etag(path)} if faults.has_etags else {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        )
        answer["Content-Type"] = self.web.content_types.get(path, "")
        answer |= self.web.headers.get(path, {})
        asked = headers.get("range", "")
        if asked and not faults.ignores_ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self._send(416, {"Content-Range": f"bytes */{len(body)}"})
                return
            answer["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self._send(206, answer, body[start:])
        else:
            self._send(200, answer, body)

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        faults = self.web.faults
        is_chunked = faults.is_chunked and status == 200
        length = (
            {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(len(body) + faults.size_lie)}
        )
        self.send_response(status)
        for name, value in {**headers, **length, "Content-Encoding": faults.encoding, "Connection": "close"}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(OSError):  # the client has closed the connection
            self._send_body(body, is_chunked)

    def _send_body(self, body: bytes, is_chunked: bool) -> None:
        faults = self.web.faults
        if faults.hold_after is not None:
            self.wfile.write(body[: faults.hold_after])
            self.wfile.flush()
            faults.go_on.wait(60)
            body = body[faults.hold_after :]
        if faults.cut_after is not None and faults.cuts > 0 and len(body) > faults.cut_after:
            faults.cuts -= 1
            self.wfile.write(body[: faults.cut_after])
        elif is_chunked:
            middle = len(body) // 2
            for chunk in (body[:middle], body[middle:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(body + faults.extra)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass
