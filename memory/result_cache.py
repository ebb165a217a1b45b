"""Answers that are kept for the same question: bounded in bytes, the least recently used go first, none grows stale."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")

# What an entry costs beside its key and value: the dictionary's slot, the objects' heads, the links.
ENTRY_BYTES = 512


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    owner: str
    size_bytes: int
    stale_at_s: float | None


class ResultCache(Generic[Value]):
    """Key → value. A key is found only if all of it is equal, never by its hash alone. Owned by one thread.

    Every entry has an owner, whose entries can be dropped together.
    """

    def __init__(self, max_bytes: int, ttl_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`ttl_s`: seconds after which an entry is not found any more; None: it does not age."""
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self.size_bytes = 0
        self.evictions = 0
        self._entries_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        """The value, which is then the last to go; None where there is none, or a stale one."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.stale_at_s is not None and entry.stale_at_s <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

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
        stale_at_s = None if self._ttl_s is None else self._clock() + self._ttl_s
        self._entries[key] = _Entry(value, owner, size_bytes, stale_at_s)
        self._entries_of[owner] += 1
        self.size_bytes += size_bytes

    def drop(self, owner: str) -> None:
        """Forgets everything of an owner."""
        if self._entries_of[owner]:
            for key in [key for key, entry in self._entries.items() if entry.owner == owner]:
                self._remove(key)
        del self._entries_of[owner]

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key)
        self.size_bytes -= entry.size_bytes
        self._entries_of[entry.owner] -= 1
