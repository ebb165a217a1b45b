"""Answers that are kept for the same question: bounded in bytes, the least recently used go first, none grows stale."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import inf
from typing import Generic, TypeVar

Value = TypeVar("Value")

# What an entry costs beside its key and value: the dictionary's slot, the objects' heads, the links.
ENTRY_BYTES = 512


class ResultCache(Generic[Value]):
    """Key → value. A key is found only if all of it is equal, never by its hash alone. Owned by one thread.

    Every entry has an owner, whose entries can be dropped together.
    """

    def __init__(self, max_bytes: int, ttl_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`ttl_s`: seconds after which an entry is not found any more; None: it does not age."""
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        # Value, owner, bytes, and when it is stale. The least recently used is the first.
        self._entries: OrderedDict[Hashable, tuple[Value, str, int, float]] = OrderedDict()
        self.size_bytes = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        """The value, which is then the last to go; None where there is none, or a stale one."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._ttl_s is not None and entry[3] <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, value: Value, owner: str, size_bytes: int) -> None:
        """Keeps a value. `size_bytes`: of key and value; what is larger than the whole cache is not kept."""
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
        """Forgets everything of an owner."""
        for key in [key for key, entry in self._entries.items() if entry[1] == owner]:
            self._remove(key)

    def _remove(self, key: Hashable) -> None:
        self.size_bytes -= self._entries.pop(key)[2]
