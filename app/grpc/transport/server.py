"""Listen for gRPC, open a call for each stream, and stop in order."""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from app.auth.principal import ANONYMOUS, Principal
from app.auth.tls import ServerTls
from app.grpc.call import Check, GrpcError, Stream, Unary
from app.grpc.transport.calls import CallStream, OpenCalls, ReceivedCall, UnaryCall
from app.grpc.transport.framing import RESPONSE_HEADERS, check_encoding, status_fields, timeout_s_of
from app.grpc.transport.stream_call import StreamCall
from app.http.listener.acceptor import Acceptor
from app.http.listener.clocks import CERTIFICATE_NAMES, ConnectionBounds, Connections
from app.http.listener.http2.clocks import Http2Bounds, Http2Stream
from app.http.listener.http2.connection import REFUSED, Header, Http2Connection
from app.http.listener.sockets import listen, listen_shared
from app.http.listener.tls import TlsConnection
from app.observability.traces.traces import KeyCheck
from frameworks.core.tenants import Tenant
from frameworks.scheduling.byte_limit import ByteLimit

log = structlog.get_logger(__name__)

# Time for a cancelled handler to send its last response.
_CANCEL_GRACE_S = 1.0
_POLL_S = 0.01
_UNSUPPORTED: list[Header] = [(b":status", b"415")]


@dataclass(frozen=True, slots=True)
class GrpcBounds:
    """The bounds of a server.

    `max_connections`: open at once. `request_s`: from the start of a unary call until its request has arrived, else the
    call is cancelled.
    """

    max_connections: int = 1024
    request_s: float = 300.0
    connections: Http2Bounds = field(default_factory=Http2Bounds)


class GrpcServer:
    """Call `bind` for a port of its own, then `start`, then `stop`, each once.

    Handlers run in the event loop that called `start`. Connections of another port get their calls by `open`.
    """

    def __init__(
        self,
        max_message_bytes: int,
        max_calls: int,
        bounds: GrpcBounds,
        is_checked: bool = False,
        shares_port: bool = False,
    ) -> None:
        """`max_message_bytes`: of one request, compressed or not. `max_calls`: running at once, streams included; a
        call above it ends with RESOURCE_EXHAUSTED at once. `is_checked`: `start` gets a check of each call.
        `shares_port`: other processes may listen on the port too, and the kernel shares its connections among them.
        """
        self._calls = OpenCalls(max_message_bytes, bounds.request_s)
        self._max_calls = max_calls
        self._bounds = bounds
        self._is_checked = is_checked
        self._shares_port = shares_port
        self._connections: set[Http2Connection] = set()
        self._handshakes: set[TlsConnection] = set()
        self._is_stopping = False
        self._socket: socket.socket | None = None
        self._acceptor: Acceptor | None = None

    def bind(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Open the port and return its number; with 0 the system chooses it. Clients that connect now are answered
        after `start`. `tls`: None for plain connections.

        Raises CannotListenError.
        """
        self._tls = tls
        self._socket = (listen_shared if self._shares_port else listen)(host, port, "server.grpc_port")
        bound: int = self._socket.getsockname()[1]
        return bound

    async def start(
        self,
        unary: Mapping[str, Unary],
        streams: Mapping[str, Stream],
        byte_limit_of: Callable[[Tenant], ByteLimit] | None = None,
        check: Check | None = None,
        times_checks: bool = False,
    ) -> None:
        """Answer calls from now on, also those of the own port. Parameters as of `answer`."""
        self.answer(unary, streams, byte_limit_of, check, times_checks)
        if self._socket is not None:
            bounds = self._bounds
            limits = ConnectionBounds(bounds.connections.preface_s, max_connections=bounds.max_connections)
            self._limits = Connections(limits, tls=self._tls)
            self._acceptor = Acceptor(asyncio.get_running_loop(), self._socket, self._connection)
            self._acceptor.start()

    def answer(
        self,
        unary: Mapping[str, Unary],
        streams: Mapping[str, Stream],
        byte_limit_of: Callable[[Tenant], ByteLimit] | None = None,
        check: Check | None = None,
        times_checks: bool = False,
    ) -> None:
        """Answer the calls of `open`, which follow this: full method name -> handler, which runs on this event loop.

        `byte_limit_of`: returns the limit that counts a tenant's requests that are not whole, and responses that the
        clients have not read; None: they have no limit. `check`: of each call, exactly if the server is checked.
        `times_checks`: measure it, for traces.
        """
        assert (check is None) == (not self._is_checked), "an unchecked server would answer every call"
        if byte_limit_of is not None:
            self._calls.byte_limit_of = byte_limit_of
        self._unary = {path.encode(): handler for path, handler in unary.items()}
        self._streams = {path.encode(): handler for path, handler in streams.items()}
        self._check, self._times_checks = check, times_checks

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls (UNAVAILABLE) and finish the running ones; cancel their handlers after `grace_s`.

        The response of a cancelled handler is still sent. A handler that ignores its cancellation is abandoned.
        """
        self._is_stopping = True
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        for connection in list(self._connections):
            connection.shutdown()
        if not await self._ended(grace_s):
            for task in list(self._calls.tasks):
                task.cancel()
            if self._calls.tasks:
                await asyncio.wait(self._calls.tasks, timeout=_CANCEL_GRACE_S)
            await self._ended(_CANCEL_GRACE_S)
        for connection in list(self._connections):
            connection.abort()
        for handshake in list(self._handshakes):
            handshake.abort()
        if self._calls.tasks:
            log.warning("gRPC handlers ignore their cancellation", calls=len(self._calls.tasks))

    async def _ended(self, timeout_s: float) -> bool:
        """Wait until all calls have ended and their responses are sent."""
        until_s = time.monotonic() + timeout_s
        while self._calls.num_open or any(each.streams for each in self._connections):
            if time.monotonic() >= until_s:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _connection(self) -> asyncio.Protocol:
        make = partial(Http2Connection, self.open, self._bounds.connections, self._limits, self._connections)
        if self._tls is None:
            return make()
        return TlsConnection(lambda _: make(), self._handshakes, self._tls.material.http2_context, self._limits)

    def open(
        self, connection: Http2Connection, stream_id: int, headers: tuple[Header, ...], is_end: bool
    ) -> Http2Stream:
        """Implement OpenStream of app/http/listener/http2/connection.py."""
        connection.has_calls = True
        fields = dict(headers)
        if fields[b":method"] != b"POST" or not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            connection.send_headers(stream_id, _UNSUPPORTED, is_end=True)
            return REFUSED
        try:
            stream = self._open_call(connection, stream_id, headers, fields)
        except GrpcError as error:
            connection.send_headers(stream_id, [*RESPONSE_HEADERS, *status_fields(error)], is_end=True)
            return REFUSED
        if is_end:
            stream.receive(b"", True)
        return stream

    def _open_call(
        self,
        connection: Http2Connection,
        stream_id: int,
        headers: tuple[Header, ...],
        fields: dict[bytes, bytes],
    ) -> CallStream:
        """Return the call of a stream. Raises GrpcError. `fields`: the last header of each name."""
        if self._is_stopping:
            raise GrpcError("UNAVAILABLE", "the server is shutting down; call another one")
        if self._calls.num_open >= self._max_calls:
            reason = f"expected at most {self._max_calls} calls at once, got one more; call again later"
            raise GrpcError("RESOURCE_EXHAUSTED", f"calls: {reason}")
        name = fields[b":path"]
        path = name.decode("ascii", "replace")
        call = ReceivedCall(headers, connection.peer)
        decision = self._decide(connection, path, call)
        timeout = fields.get(b"grpc-timeout")
        if timeout is not None:
            call.deadline_s = time.monotonic() + timeout_s_of(timeout)
        encoding = fields.get(b"grpc-encoding", b"identity")
        parts = self._calls, connection, stream_id, path, call, encoding
        if not isinstance(decision, Principal):
            return StreamCall(decision, *parts)
        check_encoding(encoding)
        call.principal = decision
        unary = self._unary.get(name)
        if unary is not None:
            return UnaryCall(unary, *parts)
        stream = self._streams.get(name)
        if stream is None:
            raise GrpcError("UNIMPLEMENTED", "expected a method of this server, got an unknown one")
        return StreamCall(stream, *parts)

    def _decide(self, connection: Http2Connection, path: str, call: ReceivedCall) -> Principal | Stream:
        """Return the decision about a call, and note in it how long that took, if it is measured."""
        if self._check is None:
            return ANONYMOUS
        begun_s = time.perf_counter()
        names = connection.transport.get_extra_info(CERTIFICATE_NAMES) or ()
        decision = self._check(path, call.headers, names)
        if self._times_checks and decision is not ANONYMOUS:
            call.checked = KeyCheck(begun_s, time.perf_counter() - begun_s)
        return decision
