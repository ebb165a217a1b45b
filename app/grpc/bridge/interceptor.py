"""Ask a check about every call that grpcio receives, before a message is read."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc

from app.auth.principal import ANONYMOUS, Principal
from app.grpc.bridge.calls import StreamMethod
from app.grpc.bridge.loop_bridge import LoopBridge
from app.grpc.bridge.threads import CallThreads
from app.grpc.call import Check
from app.observability.traces.traces import KeyCheck

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
        if self._check is None:
            raise RuntimeError("calls are answered after `start`")
        if self.reads_certificates:
            return self._check_within(continuation(details), details)
        begun_s = time.perf_counter() if self._times_checks else None
        decision = self._check(details.method, details.invocation_metadata, ())
        checked = None if begun_s is None else KeyCheck(begun_s, time.perf_counter() - begun_s)
        if not isinstance(decision, Principal):
            refusing = StreamMethod(details.method, decision, self._bridge, self._threads)
            return grpc.stream_stream_rpc_method_handler(partial(refusing.answer, checked=checked))
        handler = continuation(details)
        if handler is None or decision is ANONYMOUS:
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(partial(handler.stream_stream, principal=decision))
        return grpc.stream_unary_rpc_method_handler(partial(handler.stream_unary, principal=decision, checked=checked))

    def _check_within(self, handler: Handler | None, details: grpc.HandlerCallDetails) -> Handler:
        """Return a handler that checks its call before it reads a message."""
        check = self._check
        assert check is not None

        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            begun_s = time.perf_counter() if self._times_checks else None
            decision = check(details.method, details.invocation_metadata, _certificate_names(context))
            checked = None if begun_s is None else KeyCheck(begun_s, time.perf_counter() - begun_s)
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
