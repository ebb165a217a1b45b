"""The gRPC server: where it listens, which calls it takes, how it ends."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grpc
import structlog

from app.grpc.bridge.call_threads import CallThreads
from app.grpc.bridge.loop_bridge import LoopBridge
from app.grpc.bridge.open_calls import OpenCalls
from app.grpc.bridge.streams import StreamCalls
from app.grpc.bridge.unary import UnaryCalls
from app.grpc.call import Stream, Unary

log = structlog.get_logger(__name__)

# For what handlers have to say when they are cancelled at the end of the drain's time.
_LAST_WORDS_S = 1.0
_OPTIONS = (
    # Two servers on one port would share the calls between them.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    # A client that vanished without a word holds its calls for this long at most; unasked it is two hours.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Clients may look whether we are there this often; unasked every five minutes, and then they are cut off.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)


class CannotListen(OSError):
    """The address cannot be had."""


class GrpcServer:
    """`bind`, then `start`, then `stop`; each once.

    grpcio takes calls in a thread of its own and gives each to a thread of ours, which waits while the handler runs on
    the event loop. Of grpcio's two servers this one takes less: its asyncio server needs twice the CPU for a call.
    """

    def __init__(self, max_message_bytes: int, max_calls: int) -> None:
        """`max_message_bytes`: of a request, also when it is unpacked. `max_calls`: under way at once, streams with
        them; what comes above it is answered RESOURCE_EXHAUSTED at once. Each takes a thread, a stream two.
        """
        self._threads = CallThreads()
        self._server = grpc.server(
            cast(ThreadPoolExecutor, self._threads),
            options=[*_OPTIONS, ("grpc.max_receive_message_length", max_message_bytes)],
            maximum_concurrent_rpcs=max_calls,
        )

    def bind(self, host: str, port: int) -> int:
        """The port, of the system's choice where it is 0. Who connects from now on is answered after the start.

        Raises CannotListen.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address}") from error

    async def start(self, unary: Mapping[str, Unary], streams: Mapping[str, Stream]) -> None:
        """Answers calls from now on: full method name → handler, which runs on this event loop."""
        crossing = LoopBridge(asyncio.get_running_loop())
        self._open_calls = OpenCalls()
        methods: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = defaultdict(dict)
        for path, answer in unary.items():
            service, method = _parts(path)
            calls = UnaryCalls(path, answer, crossing, self._open_calls)
            methods[service][method] = grpc.unary_unary_rpc_method_handler(calls.answer)
        for path, answer_stream in streams.items():
            service, method = _parts(path)
            stream_calls = StreamCalls(path, answer_stream, crossing, self._open_calls, self._threads)
            methods[service][method] = grpc.stream_stream_rpc_method_handler(stream_calls.answer)
        for service, handlers in methods.items():
            self._server.add_registered_method_handlers(service, handlers)
        self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls (UNAVAILABLE) and answers those under way; after `grace_s` their handlers are cancelled.

        What a handler answers to that is still sent. One that does not end then is left behind.
        """
        ended = self._server.stop(grace_s + _LAST_WORDS_S)
        if not await asyncio.to_thread(ended.wait, grace_s):
            self._open_calls.cancel_all()
            await asyncio.to_thread(ended.wait, 2 * _LAST_WORDS_S)
        left = await self._open_calls.ended(_LAST_WORDS_S)
        if left:
            log.warning("calls that do not end", calls=left)
        self._threads.close()


def _parts(path: str) -> tuple[str, str]:
    """`/package.Service/Method` → service, method."""
    _, service, method = path.split("/")
    return service, method
