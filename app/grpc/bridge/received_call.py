"""What is told of a call to its handler, and to its client about its end."""

import asyncio
from typing import Any, Never

import grpc
import structlog

from app.grpc.call import GrpcError, Header

log = structlog.get_logger(__name__)

# A call without a deadline has one in the far future.
_NEVER_S = 10 * 365 * 86_400.0


class ReceivedCall:
    """As Call of app/grpc/call.py, of grpcio's context."""

    __slots__ = ("_context",)

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context

    @property
    def left_s(self) -> float | None:
        left_s = self._context.time_remaining()
        return left_s if left_s < _NEVER_S else None

    @property
    def headers(self) -> list[Header]:
        return [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in self._context.invocation_metadata()
        ]

    @property
    def peer(self) -> str:
        """The client's address as grpcio writes it: `ipv4:127.0.0.1:40000`."""
        return self._context.peer()


def error_of(task: asyncio.Task[Any], path: str) -> GrpcError | None:
    """What a handler that has ended tells its client instead of an answer."""
    if task.cancelled():
        return GrpcError("CANCELLED", "the call was cancelled")
    error = task.exception()
    if error is None or isinstance(error, GrpcError):
        return error
    log.error("a gRPC handler failed", path=path, exc_info=error)
    return GrpcError("INTERNAL", "an error of ours; the log has it")


def end_with(error: GrpcError, context: grpc.ServicerContext) -> Never:
    """In the call's thread."""
    context.abort(grpc.StatusCode[error.code], error.message)
