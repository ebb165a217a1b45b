"""Define what the transport and the handlers of calls share: a call, its handler and its error."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from app.auth.principal import Principal
from app.observability.traces.traces import KeyCheck

Header = tuple[bytes, bytes]


class GrpcError(Exception):
    """End the call with a status. `code`: its name (`NOT_FOUND`).

    `status` and `reason`: the HTTP status and the code of the error, for the log.
    """

    def __init__(self, code: str, message: str, status: int = 400, reason: str = "invalid_input") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.reason = reason


class Call(Protocol):
    """One call. `left_s`: seconds until its deadline, None without a deadline. `headers`: its metadata. `peer`:
    the client's address and port, the same for all calls on a connection. `principal`: the authenticated sender.
    `checked`: the check of its key, for the trace of its only request; None if it was not measured.
    """

    @property
    def left_s(self) -> float | None: ...

    @property
    def headers(self) -> list[Header]: ...

    @property
    def peer(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def checked(self) -> KeyCheck | None: ...


class StreamingCall(Call, Protocol):
    """A call with any number of responses."""

    def send(self, response: bytes, /) -> Awaitable[None]:
        """Send a response, and return when the client can take another one. Without effect after the call's end."""


Unary = Callable[[bytes, Call], Awaitable[bytes]]
"""Handler of one serialized request; returns one serialized response. Raises GrpcError."""
Stream = Callable[[AsyncIterator[bytes], StreamingCall], Awaitable[None]]
"""Handler of any number of serialized requests, which sends any number of serialized responses. Raises GrpcError."""
Check = Callable[[str, list[Header], tuple[str, ...]], Principal | Stream]
"""Decide on a call by its full method name, its metadata and the names in the client's certificate: its principal, or
a handler that refuses it. Never raises."""


def earlier_ms(timeout_ms: float | None, call: Call) -> float | None:
    """Return the time until the request's own deadline or the call's, whichever is earlier; None without either."""
    left_s = call.left_s
    if left_s is None:
        return timeout_ms
    left_ms = max(left_s * 1e3, 0.001)
    return left_ms if timeout_ms is None else min(timeout_ms, left_ms)
