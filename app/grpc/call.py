"""What a handler knows of the call that it answers, and how it ends one that fails."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

Header = tuple[bytes, bytes]


class GrpcError(Exception):
    """The call ends with this status. `code`: the name of one (`NOT_FOUND`)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Call(Protocol):
    """One call. `left_s`: seconds until its deadline, None where it has none. `headers`: its metadata."""

    @property
    def left_s(self) -> float | None: ...

    @property
    def headers(self) -> list[Header]: ...


Unary = Callable[[bytes, Call], Awaitable[bytes]]
"""One request, one response, both serialized. Raises GrpcError."""
Stream = Callable[[AsyncIterator[bytes], Call], AsyncIterator[bytes]]
"""Any number of each."""
