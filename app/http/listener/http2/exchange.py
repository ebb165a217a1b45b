"""A request over HTTP/2 and its response: ASGI's scope and messages, and the fast path that HTTP/1.1 has too."""

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from app.http.listener.clocks import BODY, BODY_PART_BYTES, CERTIFICATE_NAMES, Connections, refusal
from app.http.listener.cycle import FAST_PATH
from app.http.listener.http2.clocks import Http2Stream
from app.http.listener.http2.connection import CANCEL, MAX_UNSENT_BYTES, REFUSED, Header, Http2Connection
from app.protocols.shared.errors import RequestTimeout
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES, ByteHold, ByteLimit

_logger = logging.getLogger("uvicorn.error")

# Headers of a connection of HTTP/1.1, which a response over HTTP/2 must not have (RFC 9113, section 8.2.2).
_CONNECTION_HEADERS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_SERVER_ERROR: list[Header] = [(b":status", b"500"), (b"content-length", b"0")]


class AsgiStreams:
    """Opens an exchange for each stream of a connection."""

    def __init__(self, app: Any, root_path: str, state: ServerState, app_state: dict[str, Any], limits: Connections):
        """`app`: the ASGI application. `state`: uvicorn's, with all tasks and connections."""
        self.app = app
        self.root_path = root_path
        self.state = state
        self.app_state = app_state
        self.limits = limits
        self._connection_scope: dict[str, Any] | None = None

    def open(
        self, connection: Http2Connection, stream_id: int, headers: tuple[Header, ...], is_end: bool
    ) -> Http2Stream:
        """Implement OpenStream. Calls of gRPC are opened where they are served."""
        if self.limits.open_call is not None and _is_call(headers):
            call: Http2Stream = self.limits.open_call(connection, stream_id, headers, is_end)
            return call
        scope = self._scope(connection, headers)
        if scope is None:
            message = "path: expected one that begins with /; this server is no proxy"
            return _refused(connection, stream_id, b"400", "invalid_input", message)
        if self.limits.is_full_of_streams:
            reason = f"expected at most {self.limits.bounds.max_connections} in progress (server.max_connections)"
            return _refused(connection, stream_id, b"503", "overloaded", f"requests: {reason}; try again later")
        return Http2Exchange(connection, stream_id, scope, not is_end, self)

    def _scope(self, connection: Http2Connection, headers: tuple[Header, ...]) -> dict[str, Any] | None:
        """Return ASGI's scope; None for a request that has no path."""
        fields = dict(headers)
        target = fields.get(b":path", b"")
        if not target.startswith(b"/"):
            return None
        raw_path, _, query = target.partition(b"?")
        path = raw_path.decode("ascii", "replace")
        if "%" in path:
            path = urllib.parse.unquote(path)
        own = [each for each in headers if not each[0].startswith(b":")]
        if b"host" not in fields and b":authority" in fields:
            own.insert(0, (b"host", fields[b":authority"]))
        if self._connection_scope is None:
            transport = connection.transport
            self._connection_scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": "2",
                "server": get_local_addr(transport),
                "client": get_remote_addr(transport),
                "scheme": "https" if is_ssl(transport) else "http",
                "root_path": self.root_path,
            }
        return {
            **self._connection_scope,
            "method": fields[b":method"].decode("ascii"),
            "path": self.root_path + path,
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": _with_one_cookie(own),
            "state": self.app_state.copy(),
        }


def _refused(connection: Http2Connection, stream_id: int, status: bytes, code: str, message: str) -> Http2Stream:
    """Answer a request that the application does not get."""
    headers, body = refusal(code, message)
    if status == b"503":
        headers.append((b"retry-after", b"1"))
    connection.send_headers(stream_id, [(b":status", status), *headers])
    connection.send_data(stream_id, body, is_end=True)
    return REFUSED


def _is_call(headers: tuple[Header, ...]) -> bool:
    return any(name == b"content-type" and value.startswith(b"application/grpc") for name, value in headers)


def _with_one_cookie(headers: list[Header]) -> list[Header]:
    """Join the cookies, which a client may send one by one (RFC 9113, section 8.2.3)."""
    cookies = [value for name, value in headers if name == b"cookie"]
    if len(cookies) < 2:
        return headers
    return [*(each for each in headers if each[0] != b"cookie"), (b"cookie", b"; ".join(cookies))]


class Http2Exchange:
    """Implement Http2Stream for a request, and the methods of Cycle that the application uses (cycle.py)."""

    receives_into = False
    """Whether the body can be received into memory of its own: it comes in frames of many streams."""
    repeat = False
    """As Cycle.repeat, which no stream has: its head is compressed by those before."""
    has_part = False

    def __init__(
        self,
        connection: Http2Connection,
        stream_id: int,
        scope: dict[str, Any],
        has_body: bool,
        server: AsgiStreams,
    ) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._scope = scope
        self._server = server
        self._is_head = scope["method"] == "HEAD"
        self._awaits_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]
        )
        self._more_body = has_body
        self._body: list[bytes] = []
        # Bytes of the body that the application has not taken: the client may not replace them by others yet.
        self._unread_bytes = 0
        self._unread_hold: ByteHold | None = None
        self._collected: list[bytes] | None = None
        self._most_bytes = 0
        self._received_bytes = 0
        # When the current part of the body began, and what had been received then.
        self._part_s, self._part_bytes = time.monotonic(), 0
        self._is_late = self._is_gone = self._is_full = False
        self._on_disconnect: Callable[[], None] | None = None
        self._has_news = not has_body
        self._news: asyncio.Event | None = None
        self._space = asyncio.Event()
        self._is_started = self._is_complete = False
        self._unsent_limit: ByteLimit | None = None
        self._unsent_hold: ByteHold | None = None
        scope["extensions"] = {FAST_PATH: self}
        server.limits.own_streams += 1
        self.task = asyncio.get_running_loop().create_task(self._run())
        server.state.tasks.add(self.task)
        self.task.add_done_callback(self._finish)

    # Events of the stream.

    def receive(self, data: bytes, is_end: bool) -> None:
        self._received_bytes += len(data)
        self._more_body = not is_end
        if self._is_complete:
            self._connection.consumed(self._stream_id, len(data))
        elif self._collected is not None:
            self._collect(data)
        else:
            self._body.append(data)
            self._unread_bytes += len(data)
            self._count_unread()
        if is_end or self._collected is None or self._is_full:
            self._tell()

    def closed(self) -> None:
        if not self._is_complete:
            self._is_gone = True
        self._connection.consumed(self._stream_id, self._unread_bytes)
        self._unread_bytes = 0
        self._body.clear()
        for hold in (self._unread_hold, self._unsent_hold):
            if hold is not None:
                hold.release()
        self._space.set()
        self._tell()
        if self._on_disconnect is not None and not self._is_complete:
            self._on_disconnect()

    def has_space(self) -> None:
        self._space.set()

    def check(self, now_s: float) -> None:
        """End a body that is too slow. While parts of it wait for the application, the client waits too."""
        if not self._more_body or self._is_complete or self._is_late:
            return
        if self._unread_bytes or self._received_bytes - self._part_bytes >= BODY_PART_BYTES:
            self._part_s, self._part_bytes = now_s, self._received_bytes
        elif now_s - self._part_s > self._server.limits.bounds.body_timeout_s:
            self._server.limits.closed[BODY] += 1
            self._is_late = True
            self._tell()

    def _count_unread(self) -> None:
        """Count the bytes that are not taken yet. They exist, and the window bounds them."""
        if self._unread_bytes > UNCOUNTED_BYTES:
            if self._unread_hold is None:
                self._unread_hold = self._server.limits.byte_limit.hold()
            self._unread_hold.add(self._unread_bytes - self._unread_hold.held_bytes)

    def _tell(self) -> None:
        self._has_news = True
        if self._news is not None:
            self._news.set()

    # The fast path.

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names in the client's certificate; empty without one."""
        names: tuple[str, ...] = self._connection.transport.get_extra_info(CERTIFICATE_NAMES, ())
        return names

    def count_unread(self, limit: ByteLimit) -> None:
        """Count the bytes of the response that its reader has not taken in this limit, of the request's tenant."""
        self._unsent_limit = limit

    def take_body(self) -> bytes | None:
        """Return the whole body, once, if all of it has arrived."""
        if self._more_body or self._is_gone or self._is_complete:
            return None
        self._has_news = False
        return self._take()

    def collect_body(self, max_bytes: int, try_grow: Callable[[int], bool]) -> list[bytes]:
        """Add further parts of the body to the returned list, as Cycle.collect_body."""
        self._most_bytes = max_bytes
        self._try_grow = try_grow
        self._collected = []
        return self._collected

    def receive_into(self, buffer: memoryview, try_grow: Callable[[int], bool]) -> bool:
        """Return False: see `receives_into`."""
        return False

    def respond(self, status: int, header_lines: bytes, body: bytes) -> bool:
        """Send a whole response. False if it cannot be sent now. `header_lines`: valid lines, each with its CRLF."""
        if self._is_gone or self._is_started:
            return False
        lines = (line.split(b": ", 1) for line in header_lines.split(b"\r\n")[:-1])
        self._start(status, ((name, value) for name, value in lines))
        if not self._is_complete:
            self._send_part(body, is_end=True)
        return True

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        """As WatchedConnection.watch."""
        if self._is_gone:
            on_disconnect()
        else:
            self._on_disconnect = on_disconnect

    def end_watch(self) -> None:
        self._on_disconnect = None

    def abort(self) -> None:
        """End the stream, with what its reader has not taken."""
        self._is_gone = True
        self._connection.reset(self._stream_id, CANCEL)

    def _collect(self, data: bytes) -> None:
        assert self._collected is not None
        self._collected.append(data)
        self._most_bytes -= len(data)
        if self._is_full or not self._try_grow(len(data)) or self._most_bytes < 0:
            self._is_full = True
            self._unread_bytes += len(data)
        else:
            self._connection.consumed(self._stream_id, len(data))

    def _take(self) -> bytes:
        """Return what has arrived, and let the client send more."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._is_full = False
        if self._unread_bytes:
            self._connection.consumed(self._stream_id, self._unread_bytes)
            self._unread_bytes = 0
            if self._unread_hold is not None:
                self._unread_hold.resize(0)
        return body

    # ASGI.

    async def _run(self) -> None:
        try:
            await self._server.app(self._scope, self._receive_message, self._send_message)
        except Exception:
            _logger.exception("Exception in ASGI application")

    def _finish(self, task: asyncio.Task[None]) -> None:
        """End the stream if the application has not, or if its task was cancelled before its first step."""
        state = self._server.state
        state.tasks.discard(task)
        self._server.limits.own_streams -= 1
        state.total_requests += 1
        if not (self._is_complete or self._is_gone):
            self._is_complete = True
            if self._is_started:
                self._connection.reset(self._stream_id)
            else:
                self._connection.send_headers(self._stream_id, _SERVER_ERROR, is_end=True)

    async def _receive_message(self) -> dict[str, Any]:
        """Raises RequestTimeout."""
        if self._awaits_continue and self._more_body and not self._is_started:
            self._awaits_continue = False
            self._connection.send_informational(self._stream_id, b"100")
        if not (self._is_gone or self._is_complete or self._has_news):
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()
        if self._is_gone or self._is_complete:
            return {"type": "http.disconnect"}
        self._has_news = False
        if self._is_late:
            seconds = self._server.limits.bounds.body_timeout_s
            raise RequestTimeout(
                f"body: expected {BODY_PART_BYTES} bytes in each {seconds:g} s (server.body_timeout_s), "
                "got fewer; send it faster"
            )
        return {"type": "http.request", "body": self._take(), "more_body": self._more_body}

    async def _send_message(self, message: Any) -> None:
        if self._is_gone:
            return
        if not self._is_started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"expected http.response.start, got {message['type']}")
            self._start(message["status"], message.get("headers", ()))
        elif not self._is_complete:
            if message["type"] != "http.response.body":
                raise RuntimeError(f"expected http.response.body, got {message['type']}")
            self._send_part(message.get("body", b""), not message.get("more_body", False))
            if not self._is_complete and self._connection.unsent_bytes(self._stream_id) > MAX_UNSENT_BYTES:
                await self._wait_for_space()

    def _start(self, status: int, headers: Iterable[Header]) -> None:
        self._is_started = True
        fields = [(b":status", b"%d" % status), *self._server.state.default_headers]
        fields += ((name.lower(), value) for name, value in headers if name.lower() not in _CONNECTION_HEADERS)
        self._connection.send_headers(self._stream_id, fields, is_end=self._is_head)
        self._is_complete = self._is_head

    def _send_part(self, body: bytes, is_end: bool) -> None:
        if is_end:
            self._is_complete = True
            self._tell()
        self._connection.send_data(self._stream_id, body, is_end)
        if len(body) > UNCOUNTED_BYTES:
            if self._unsent_hold is None:
                self._unsent_hold = (self._unsent_limit or self._server.limits.byte_limit).hold()
            self._unsent_hold.add(len(body))

    async def _wait_for_space(self) -> None:
        self._space.clear()
        self._connection.call_when_sent(self._stream_id)
        await self._space.wait()
        if self._unsent_hold is not None:
            self._unsent_hold.resize(0)
