"""Count the bytes of all bodies in progress: received, decompressed, decoded, and responses that are not sent yet."""

from collections.abc import Callable
from math import inf
from threading import Lock
from types import TracebackType
from typing import Self

from frameworks.core.errors import Overloaded

UNCOUNTED_BYTES = 4096
"""Bodies up to this size are not counted: the number of requests and of connections bounds them."""

_RETRY_AFTER_S = 1.0


class ByteLimit:
    """The bound over all requests, or over those of a tenant within it. Any thread may use it.

    Its lock is shared only with the limit around it: a thread that decompresses a body grows its hold, as the event
    loop does.
    """

    def __init__(
        self,
        max_bytes: int | None,
        name: str = "server.max_buffered_bytes",
        refusal: Callable[[str, float], Exception] = Overloaded,
        within: "ByteLimit | None" = None,
    ) -> None:
        """`max_bytes` None: no bound. `refusal`: makes the error of a refused hold, from its message and the seconds
        until the next try. `within`: a limit that counts the same bytes.
        """
        self.max_bytes = max_bytes
        self.own_bytes = 0
        self.name = name
        self.refusal = refusal
        self._bound = inf if max_bytes is None else max_bytes
        self._lock: Lock = Lock() if within is None else within._lock
        self._all: tuple[ByteLimit, ...] = (self,) if within is None else (self, *within._all)

    @property
    def held_bytes(self) -> int:
        """The bytes of all holds, of all processes that share the count."""
        return self.own_bytes

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
            # Counted before the check: two processes cannot both take the last bytes.
            for limit in self._all:
                limit.own_bytes += more
            hold.held_bytes += more
            if more > 0 and not is_forced and self.full_limit(hold.held_bytes, 0) is not None:
                self._drop(hold, more)
                return False
            return True

    def release(self, hold: "ByteHold") -> None:
        """End a hold. Its next growth is refused: a thread may still work for a cancelled request."""
        with self._lock:
            self._drop(hold, hold.held_bytes)
            hold.is_released = True

    def full_limit(self, own: int, more: int) -> "ByteLimit | None":
        """Return the limit that `more` bytes do not fit, None if they fit. `own`: bytes that the hold has already."""
        for limit in self._all:
            if limit.own_bytes != own and limit.own_bytes + more > limit._bound:
                return limit
        return None

    def _drop(self, hold: "ByteHold", count: int) -> None:
        for limit in self._all:
            limit.own_bytes -= count
        hold.held_bytes -= count


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
        if self._limit.full_limit(self.held_bytes, more) is not None:
            raise self._refused(more)

    def try_grow(self, more: int) -> bool:
        """Count `more` bytes, or return False if they do not fit."""
        return self._limit.add(self, more, is_forced=False)

    def grow(self, more: int) -> None:
        """Count `more` bytes. Raises Overloaded if they do not fit."""
        if not self._limit.add(self, more, is_forced=False):
            raise self._refused(more)

    def resize(self, total: int) -> None:
        """Count `total` bytes instead. Raises Overloaded if they are more and do not fit."""
        more = total - self.held_bytes
        if not self._limit.add(self, more, is_forced=False):
            raise self._refused(more)

    def add(self, more: int) -> None:
        """Count `more` bytes, or fewer if it is negative, also beyond the bound: the bytes of a response exist."""
        self._limit.add(self, more, is_forced=True)

    def release(self) -> None:
        """End the count. May be called again."""
        self._limit.release(self)

    def _refused(self, more: int) -> Exception:
        # Other holds may have ended meanwhile, and then no limit is full.
        limit = self._limit.full_limit(self.held_bytes, more) or self._limit
        return limit.refusal(
            f"{limit.name}: expected at most {limit.max_bytes} bytes of all bodies in progress, "
            f"got {limit.held_bytes} and {more} more; try again in {_RETRY_AFTER_S:.0f} s",
            _RETRY_AFTER_S,
        )
