"""Ask a check about every call that grpcio receives, before a message is read."""

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from app.auth.principal import ANONYMOUS, Principal
from app.grpc.bridge.calls import StreamMethod
from app.grpc.bridge.loop_bridge import LoopBridge
from app.grpc.bridge.threads import CallThreads
from app.grpc.call import Check

Handler = Any
"""A grpc.RpcMethodHandler, which is no generic class at run time."""


class CallInterceptor(grpc.ServerInterceptor):
    """The interceptor of a server whose calls may need a key. grpcio asks it about unknown methods too."""

    def __init__(self) -> None:
        self._check: Check | None = None

    def start(self, check: Check, bridge: LoopBridge, threads: CallThreads) -> None:
        """Ask `check` about each call from now on."""
        self._check = check
        self._bridge = bridge
        self._threads = threads

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Handler | None], details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Return the handler of a call. Runs in grpcio's thread; if it raises, grpcio refuses the call."""
        if self._check is None:
            raise RuntimeError("calls are answered after `start`")
        decision = self._check(details.method, details.invocation_metadata)
        if not isinstance(decision, Principal):
            refusing = StreamMethod(details.method, decision, self._bridge, self._threads)
            return grpc.stream_stream_rpc_method_handler(refusing.answer)
        handler = continuation(details)
        if handler is None or decision is ANONYMOUS:
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(partial(handler.stream_stream, principal=decision))
        return grpc.stream_unary_rpc_method_handler(partial(handler.stream_unary, principal=decision))
