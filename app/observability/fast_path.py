"""Methods of a connection beside ASGI's messages, for the code of every request."""

from collections.abc import Callable
from typing import Protocol

from frameworks.scheduling.byte_limit import ByteLimit


class FastPath(Protocol):
    """Optional methods of a connection beside ASGI's messages."""

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names in the client's certificate; empty without one."""
        ...

    def take_body(self) -> bytes | None:
        """Return the whole body, once, if all of it has arrived."""
        ...

    def collect_body(self, max_bytes: int, try_grow: Callable[[int], bool]) -> list[bytes]:
        """Return a list to which further parts of the body are added as they arrive; `try_grow` counts their bytes.

        ASGI's `receive` returns at the end of the body, after `max_bytes` bytes, when `try_grow` returns False, or when
        the client disconnects.
        """
        ...

    @property
    def receives_into(self) -> bool:
        """Whether `receive_into` is possible."""
        ...

    @property
    def has_part(self) -> bool:
        """Whether a part of a long body has arrived that nothing has received."""
        ...

    def receive_into(self, buffer: memoryview, try_grow: Callable[[int], bool]) -> bool:
        """Receive the rest of the body into the buffer, which has its size; `try_grow` counts the bytes.

        False while bytes of another request are unread. ASGI's `receive` then returns as after `collect_body`. The
        buffer is not written after the end of the response.
        """
        ...

    def respond(self, status: int, header_lines: bytes, body: bytes) -> bool:
        """Send a whole response, or return False. `header_lines` end in CRLF each and are valid."""
        ...

    def count_unread(self, limit: ByteLimit) -> None:
        """Count the bytes of the response that its reader has not taken in this limit, of the request's tenant."""
        ...

    def abort(self) -> None:
        """Close the connection, with what its reader has not taken."""
        ...
