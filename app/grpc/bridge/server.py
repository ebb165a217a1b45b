"""Listen for gRPC calls, ask a check about each, and stop in order."""

import asyncio
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import grpc
import structlog

from app.auth.principal import ANONYMOUS, Principal
from app.auth.tls import ServerTls, grpc_credentials
from app.grpc.bridge.arrivals import Arrivals
from app.grpc.bridge.calls import StreamMethod, UnaryMethod
from app.grpc.bridge.loop_bridge import LoopBridge
from app.grpc.bridge.threads import CallThreads
from app.grpc.call import Check, Stream, Unary
from app.observability.traces.traces import KeyCheck
from frameworks.core.tenants import Tenant
from frameworks.scheduling.byte_limit import ByteLimit

_NAME_PROPERTIES = ("x509_common_name", "peer_dns", "peer_uri")

Handler = Any
"""A grpc.RpcMethodHandler, which is no generic class at run time."""


class CallInterceptor(grpc.ServerInterceptor):
    """The interceptor of a server whose calls may need a key. grpcio asks it about unknown methods too."""

    def __init__(self) -> None:
        self._check: Check | None = None
        self._times_checks = False
        self.reads_certificates = False
        """Whether clients have certificates. grpcio shows them to the handler of a call only."""

    def start(self, check: Check, bridge: LoopBridge, threads: CallThreads, times_checks: bool) -> None:
        """Ask `check` about each call from now on. `times_checks`: measure it, for traces."""
        self._check = check
        self._times_checks = times_checks
        self._bridge = bridge
        self._threads = threads

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Handler | None], details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Return the handler of a call. Runs in grpcio's thread; if it raises, grpcio refuses the call."""
        if self.reads_certificates:
            return self._check_within(continuation(details), details)
        decision, checked = self._decide(details, ())
        if not isinstance(decision, Principal):
            refusing = StreamMethod(details.method, decision, self._bridge, self._threads)
            return grpc.stream_stream_rpc_method_handler(partial(refusing.answer, checked=checked))
        handler = continuation(details)
        if handler is None or decision is ANONYMOUS:
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(partial(handler.stream_stream, principal=decision))
        return grpc.stream_unary_rpc_method_handler(partial(handler.stream_unary, principal=decision, checked=checked))

    def _decide(
        self, details: grpc.HandlerCallDetails, names: tuple[str, ...]
    ) -> tuple[Principal | Stream, KeyCheck | None]:
        """Return the decision about a call, and its duration if it is measured. `names`: of the certificate."""
        if self._check is None:
            raise RuntimeError("calls are answered after `start`")
        begun_s = time.perf_counter() if self._times_checks else None
        decision = self._check(details.method, details.invocation_metadata, names)
        return decision, None if begun_s is None else KeyCheck(begun_s, time.perf_counter() - begun_s)

    def _check_within(self, handler: Handler | None, details: grpc.HandlerCallDetails) -> Handler:
        """Return a handler that checks its call before it reads a message."""

        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            decision, checked = self._decide(details, _certificate_names(context))
            if not isinstance(decision, Principal):
                refusing = StreamMethod(details.method, decision, self._bridge, self._threads)
                yield from refusing.answer(requests, context, checked=checked)
                return
            if handler is None:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "expected a method of this server, got an unknown one")
            known: dict[str, Any] = {} if decision is ANONYMOUS else {"principal": decision}
            if handler.response_streaming:
                yield from handler.stream_stream(requests, context, **known)
            else:
                known |= {"checked": checked} if known else {}
                yield handler.stream_unary(requests, context, **known)

        return grpc.stream_stream_rpc_method_handler(answer)


def _certificate_names(context: grpc.ServicerContext) -> tuple[str, ...]:
    """Return the common name, DNS names and URIs of the client's certificate."""
    shown: Any = context.auth_context()
    return tuple(value.decode("utf-8", "replace") for key in _NAME_PROPERTIES for value in shown.get(key, ()))


log = structlog.get_logger(__name__)

# Interval between two checks for calls whose request is late.
_CHECK_S = 10.0
# Time for a cancelled handler to send its last response.
_CANCEL_GRACE_S = 1.0
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    # Maximum time that a vanished client keeps its calls; grpcio's default is two hours.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Minimum time between a client's pings. By default it is five minutes, and faster clients are disconnected.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # Time until a new connection has sent the first bytes of HTTP/2; grpcio's default is two minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
)


@dataclass(frozen=True, slots=True)
class GrpcConnectionBounds:
    """The bounds of connections. Clients of gRPC connect again by themselves.

    `max_calls`: on one connection at once; the client queues more. `idle_s`: without a call, until it is closed.
    `age_s`: until it accepts no further calls. `grace_s`: after that until its calls are cancelled.
    `request_s`: from the start of a call until its request has arrived, else the call is cancelled.
    """

    max_connections: int = 1024
    max_calls: int = 256
    idle_s: float = 600.0
    age_s: float = 3600.0
    grace_s: float = 3600.0
    request_s: float = 300.0

    def options(self) -> list[tuple[str, int]]:
        """Return them as grpcio's options."""
        return [
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.max_concurrent_streams", self.max_calls),
            ("grpc.max_connection_idle_ms", round(self.idle_s * 1e3)),
            ("grpc.max_connection_age_ms", round(self.age_s * 1e3)),
            ("grpc.max_connection_age_grace_ms", round(self.grace_s * 1e3)),
        ]


class CannotListen(OSError):
    """The address is in use or does not belong to this machine."""


class GrpcServer:
    """Call `bind`, then `start`, then `stop`, each once.

    grpcio receives calls in a thread of its own and passes each to a thread of CallThreads, which waits while the
    handler runs on the event loop. grpcio's asyncio server would need twice the CPU per call.
    """

    def __init__(
        self,
        max_message_bytes: int,
        max_calls: int,
        connections: GrpcConnectionBounds,
        is_checked: bool = False,
        shares_port: bool = False,
    ) -> None:
        """`max_message_bytes`: of one request, compressed or not. `max_calls`: running at once, streams included; a
        call above it ends with RESOURCE_EXHAUSTED at once. A unary call takes one thread, a stream two.
        `is_checked`: `start` gets a check of each call. `shares_port`: other processes may listen on the port too, and
        the kernel shares its connections among them.
        """
        self._interceptor = CallInterceptor() if is_checked else None
        self._threads = CallThreads()
        self._arrivals = Arrivals(connections.request_s)
        self._check_s = min(_CHECK_S, connections.request_s)
        self._shares_port = shares_port
        self._server = grpc.server(
            cast(ThreadPoolExecutor, self._threads),
            options=[
                *_OPTIONS,
                ("grpc.so_reuseport", int(shares_port)),
                *connections.options(),
                ("grpc.max_receive_message_length", max_message_bytes),
            ],
            maximum_concurrent_rpcs=max_calls,
            interceptors=[self._interceptor] if self._interceptor is not None else None,
        )

    def bind(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Open the port and return its number; with 0 the system chooses it. Clients that connect now are answered
        after `start`. `tls`: None for plain connections.

        Raises CannotListen.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not self._shares_port:
            _check_free(host, port, address)
        try:
            if tls is not None:
                if self._interceptor is not None:
                    self._interceptor.reads_certificates = tls.material.client_ca is not None
                return self._server.add_secure_port(address, grpc_credentials(tls))
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address}") from error

    async def start(
        self,
        unary: Mapping[str, Unary],
        streams: Mapping[str, Stream],
        byte_limit_of: Callable[[Tenant], ByteLimit] | None = None,
        check: Check | None = None,
        times_checks: bool = False,
    ) -> None:
        """Answer calls from now on: full method name -> handler, which runs on this event loop.

        `byte_limit_of`: returns the limit that counts a tenant's responses that the clients have not read; None: they
        have no limit. `check`: of each call, exactly if the server is checked. `times_checks`: measure it, for traces.
        """
        unlimited = ByteLimit(None)
        self._bridge = LoopBridge(asyncio.get_running_loop(), byte_limit_of or (lambda _: unlimited))
        assert (check is None) == (self._interceptor is None), "an unchecked server would answer every call"
        if check is not None and self._interceptor is not None:
            self._interceptor.start(check, self._bridge, self._threads, times_checks)
        methods: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = defaultdict(dict)
        for path, handler in unary.items():
            service, name = _split_path(path)
            unary_method = UnaryMethod(path, handler, self._bridge, self._threads, self._arrivals)
            methods[service][name] = grpc.stream_unary_rpc_method_handler(unary_method.answer)
        for path, stream_handler in streams.items():
            service, name = _split_path(path)
            stream_method = StreamMethod(path, stream_handler, self._bridge, self._threads)
            methods[service][name] = grpc.stream_stream_rpc_method_handler(stream_method.answer)
        for service, handlers in methods.items():
            self._server.add_registered_method_handlers(service, handlers)
        self._server.start()
        self._cancel_late()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls (UNAVAILABLE) and finish the running ones; cancel their handlers after `grace_s`.

        The response of a cancelled handler is still sent. A handler that ignores its cancellation is abandoned.
        """
        self._next_check.cancel()
        stopped = self._server.stop(grace_s + _CANCEL_GRACE_S)
        if not await asyncio.to_thread(stopped.wait, grace_s):
            self._bridge.cancel_all()
            await asyncio.to_thread(stopped.wait, 2 * _CANCEL_GRACE_S)
        num_running = await self._bridge.wait_finished(_CANCEL_GRACE_S)
        if num_running:
            log.warning("gRPC handlers ignore their cancellation", calls=num_running)
        self._threads.close()

    def _cancel_late(self) -> None:
        self._arrivals.cancel_late()
        self._next_check = asyncio.get_running_loop().call_later(self._check_s, self._cancel_late)


def _check_free(host: str, port: int, name: str) -> None:
    """Raise CannotListen if none of the addresses of a host is free: grpcio would print a line of its own first."""
    reason = "no address"
    try:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if os.name != "nt":
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(address)
                    # With SO_REUSEADDR, to bind succeeds beside a socket that does not listen yet.
                    probe.listen(1)
                except OSError as error:
                    reason = error.strerror or str(error)
                else:
                    return
    except OSError as error:
        reason = error.strerror or str(error)
    raise CannotListen(f"cannot listen on {name} ({reason})")


def _split_path(path: str) -> tuple[str, str]:
    """Split `/package.Service/Method` into service and method."""
    _, service, method = path.split("/")
    return service, method
