"""Cache results by key: bounded in bytes, least recently used evicted first, expired after a time to live."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import inf
from typing import Generic, TypeVar

Value = TypeVar("Value")

# Overhead of an entry: the slot in the dictionary, object headers, links.
ENTRY_BYTES = 512


class ResultCache(Generic[Value]):
    """Key → value. Keys are compared as a whole, never by hash alone. Used by one thread.

    Each entry has an owner, and all entries of an owner can be dropped together.
    """

    def __init__(self, max_bytes: int, ttl_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`ttl_s`: seconds until an entry expires; None: never."""
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        # Value, owner, bytes and expiry, least recently used first.
        self._entries: OrderedDict[Hashable, tuple[Value, str, int, float]] = OrderedDict()
        self.size_bytes = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        """Return the value and mark it as most recently used; None without an entry or with an expired one."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._ttl_s is not None and entry[3] <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, value: Value, owner: str, size_bytes: int) -> None:
        """Store a value, unless it is larger than the whole cache. `size_bytes`: of key and value."""
        size_bytes += ENTRY_BYTES
        if key in self._entries:
            self._remove(key)
        if size_bytes > self._max_bytes:
            return
        while self.size_bytes + size_bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))
            self.evictions += 1
        self._entries[key] = value, owner, size_bytes, inf if self._ttl_s is None else self._clock() + self._ttl_s
        self.size_bytes += size_bytes

    def drop(self, owner: str) -> None:
        """Remove all entries of an owner."""
        for key in [key for key, entry in self._entries.items() if entry[1] == owner]:
            self._remove(key)

    def _remove(self, key: Hashable) -> None:
        self.size_bytes -= self._entries.pop(key)[2]
