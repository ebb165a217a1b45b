"""Compiled constraints, within a number of bytes. Thread-safe."""

import threading
import weakref
from collections import OrderedDict
from typing import Protocol

from frameworks.core.errors import Overloaded
from frameworks.generation.sequences import TokenMatcher
from frameworks.generation.types import Constraint
from memory.sizes import format_size

# A mask adds the states that it meets first. Measured for patterns that never stop to add: 2 KiB on average.
_BYTES_PER_MASK = 4 << 10
_RETRY_AFTER_S = 1.0


class Grammar:
    """The part of a compiled constraint that all copies of its matcher share."""

    __slots__ = ("__weakref__", "_max_bytes", "compiled_bytes", "num_masks")

    def __init__(self, compiled_bytes: int, max_bytes: int) -> None:
        """`compiled_bytes`: measured after its compilation. `max_bytes`: what its states may take at most."""
        self.compiled_bytes = compiled_bytes
        self._max_bytes = max_bytes
        self.num_masks = 0
        """Masks computed so far, over all copies."""

    @property
    def num_bytes(self) -> int:
        """The bytes that it is counted with: those measured, and an estimate of what the masks have added."""
        return max(self.compiled_bytes, min(self.compiled_bytes + self.num_masks * _BYTES_PER_MASK, self._max_bytes))


class Compiled(Protocol):
    """A matcher at the start of its text."""

    grammar: Grammar

    def copy(self) -> TokenMatcher: ...


class GrammarCache:
    """Constraints by recency of their use. Those that were dropped count as long as a text uses them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Constraint, Compiled] = OrderedDict()
        self._dropped: list[weakref.ref[Grammar]] = []

    @property
    def num_bytes(self) -> int:
        """The bytes of all constraints that are cached or used by a text."""
        with self._lock:
            return self._count()

    def __len__(self) -> int:
        return len(self._compiled)

    def find(self, constraint: Constraint) -> Compiled | None:
        """Return a cached constraint, which becomes the most recently used."""
        with self._lock:
            known = self._compiled.get(constraint)
            if known is not None:
                self._compiled.move_to_end(constraint)
            return known

    def add(self, constraint: Constraint, compiled: Compiled) -> None:
        """Cache a constraint, and drop the least recently used ones above the bound."""
        with self._lock:
            self._compiled[constraint] = compiled
            self._make_room(keep=1)

    def drop(self, constraint: Constraint) -> None:
        """Forget a constraint."""
        with self._lock:
            self._drop(constraint)

    def check_room(self) -> None:
        """Raise Overloaded if the constraints of the texts in progress fill the cache."""
        with self._lock:
            self._make_room(keep=0)
            in_use = self._count()
        if in_use >= self._max_bytes:
            raise Overloaded(
                f"constraint: the constraints of the texts in progress take {format_size(in_use)} of "
                f"{format_size(self._max_bytes)}; try again in {_RETRY_AFTER_S:.3f} s",
                retry_after_s=_RETRY_AFTER_S,
            )

    def _count(self) -> int:
        self._dropped = [each for each in self._dropped if each() is not None]
        used = [grammar for each in self._dropped if (grammar := each()) is not None]
        return sum(each.num_bytes for each in used) + sum(each.grammar.num_bytes for each in self._compiled.values())

    def _make_room(self, keep: int) -> None:
        """Drop constraints until their bytes are below the bound, or `keep` are left."""
        while len(self._compiled) > keep and self._count() >= self._max_bytes:
            self._drop(next(iter(self._compiled)))

    def _drop(self, constraint: Constraint) -> None:
        known = self._compiled.pop(constraint, None)
        if known is not None:
            self._dropped.append(weakref.ref(known.grammar))
