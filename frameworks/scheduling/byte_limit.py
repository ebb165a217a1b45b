"""Count the bytes of all bodies in progress: received, decompressed, decoded, and responses that are not sent yet."""

from math import inf
from threading import Lock
from types import TracebackType
from typing import Self

from frameworks.errors import Overloaded

UNCOUNTED_BYTES = 4096
"""Bodies up to this size are not counted: the number of requests and of connections bounds them."""

_RETRY_AFTER_S = 1.0


class ByteLimit:
    """The bound over all requests, `[server] max_buffered_bytes`. Any thread may use it.

    Its lock is its own: a thread that decompresses a body grows its hold, as the event loop does.
    """

    def __init__(self, max_bytes: int | None) -> None:
        """None means no bound."""
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._bound = inf if max_bytes is None else max_bytes
        self._lock = Lock()

    def hold(self) -> "ByteHold":
        """Return a count of 0 bytes, which belongs to one request or connection and must be released."""
        return ByteHold(self)

    def add(self, hold: "ByteHold", more: int, is_forced: bool) -> bool:
        """Add to the bytes of a hold; False if they do not fit, and if the hold was released.

        The only hold always grows: a request that is served alone is bounded by max_body_bytes.
        """
        with self._lock:
            if hold.is_released:
                return False
            is_alone = self.held_bytes == hold.held_bytes
            if more > 0 and not is_forced and not is_alone and self.held_bytes + more > self._bound:
                return False
            self.held_bytes += more
            hold.held_bytes += more
            return True

    def release(self, hold: "ByteHold") -> None:
        """End a hold. Its next growth is refused: a thread may still work for a cancelled request."""
        with self._lock:
            self.held_bytes -= hold.held_bytes
            hold.held_bytes = 0
            hold.is_released = True


class ByteHold:
    """The bytes of one request or connection."""

    __slots__ = ("_limit", "held_bytes", "is_released")

    def __init__(self, limit: ByteLimit) -> None:
        self._limit = limit
        self.held_bytes = 0
        self.is_released = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def check_room(self, more: int) -> None:
        """Raise Overloaded if `more` bytes do not fit now. They are not counted before they exist."""
        limit = self._limit
        others = limit.held_bytes - self.held_bytes
        if limit.max_bytes is not None and others and limit.held_bytes + more > limit.max_bytes:
            raise self._overloaded(more)

    def try_grow(self, more: int) -> bool:
        """Count `more` bytes, or return False if they do not fit."""
        return self._limit.add(self, more, is_forced=False)

    def grow(self, more: int) -> None:
        """Count `more` bytes. Raises Overloaded if they do not fit."""
        if not self._limit.add(self, more, is_forced=False):
            raise self._overloaded(more)

    def resize(self, total: int) -> None:
        """Count `total` bytes instead. Raises Overloaded if they are more and do not fit."""
        more = total - self.held_bytes
        if not self._limit.add(self, more, is_forced=False):
            raise self._overloaded(more)

    def add(self, more: int) -> None:
        """Count `more` bytes, or fewer if it is negative, also beyond the bound: the bytes of a response exist."""
        self._limit.add(self, more, is_forced=True)

    def release(self) -> None:
        """End the count. May be called again."""
        self._limit.release(self)

    def _overloaded(self, more: int) -> Overloaded:
        limit = self._limit
        return Overloaded(
            f"server.max_buffered_bytes: expected at most {limit.max_bytes} bytes of all bodies in progress, "
            f"got {limit.held_bytes} and {more} more; try again in {_RETRY_AFTER_S:.0f} s",
            _RETRY_AFTER_S,
        )
