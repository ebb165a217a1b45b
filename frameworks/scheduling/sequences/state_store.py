"""Hold the states of sequences between their steps, within bounds of bytes and of idle time. Pure."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from frameworks.core.errors import Overloaded, SequenceLost, SequenceNotFound
from frameworks.types import SequenceId, StateSpec, Value
from memory.sizes import format_size

FIELD = "sequence"
"""The field of a request that names its sequence, in errors."""
SEQUENCE_BYTES = 1024
"""Counted for each sequence beside its states: the objects that hold it."""
_MAX_REMEMBERED = 65_536


class SequenceKey(NamedTuple):
    """A sequence of one tenant: another tenant's sequence of the same id is another one."""

    tenant: str
    id: SequenceId


class HeldState:
    """The states of one sequence before its next step. `values`: rows first. `rows`: of each of its steps."""

    __slots__ = ("key", "nbytes", "rows", "values")

    def __init__(self, key: SequenceKey, rows: int, values: dict[str, Value]) -> None:
        self.key = key
        self.rows = rows
        self.values = values
        self.nbytes = bytes_of(values)


SequenceUse = dict[str, tuple[int, int]]
"""By the name of a tenant: its sequences, and the bytes of their states."""


class StateStore:
    """The states of one model. A sequence is idle between two steps; one whose step is queued or runs never expires."""

    def __init__(
        self, name: str, spec: StateSpec, clock: Callable[[], float], is_reloaded: bool, on_change: Callable[[], None]
    ) -> None:
        """`name`: of the model. `is_reloaded`: whether an earlier engine of the model may have had sequences, which are
        lost. `on_change`: called when the number of sequences or their bytes change.
        """
        self._name = name
        self._spec = spec
        self._clock = clock
        self._on_change = on_change
        self._held: dict[SequenceKey, HeldState] = {}
        # By the time at which they became idle, the earliest first.
        self._idle: OrderedDict[SequenceKey, float] = OrderedDict()
        self._num: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self.total_bytes = 0
        # Until then an unknown sequence may be one of the earlier engine; later it would have been idle for too long.
        self._lost_until_s = clock() + spec.idle_s if is_reloaded else float("-inf")
        self._begun: set[SequenceKey] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def use(self) -> SequenceUse:
        """The sequences and bytes of each tenant that has sequences."""
        return {tenant: (count, self._bytes[tenant]) for tenant, count in self._num.items() if count}

    def find(self, key: SequenceKey) -> HeldState:
        """Return a sequence, which is not idle until `advance` or `release`. Raises SequenceNotFound, SequenceLost."""
        self.expire()
        held = self._held.get(key)
        if held is None:
            raise self._unknown(key)
        self._idle.pop(key, None)
        return held

    def begin(self, key: SequenceKey, rows: int, values: dict[str, Value]) -> HeldState:
        """Begin a sequence, in place of one of this key. Raises Overloaded where there is no room for its states."""
        self.expire()
        self.end(key)
        held = HeldState(key, rows, values)
        self._check_room(held.nbytes)
        self._held[key] = held
        if self._lost_until_s > self._clock() and len(self._begun) < _MAX_REMEMBERED:
            self._begun.add(key)
        self._num[key.tenant] += 1
        self._grow(key.tenant, held.nbytes)
        return held

    def advance(self, held: HeldState, values: dict[str, Value]) -> None:
        """Keep the states after a step. Raises Overloaded where they have grown, and there is no room."""
        if self._held.get(held.key) is not held:
            return  # begun again, or ended
        nbytes = bytes_of(values)
        self._check_room(nbytes - held.nbytes)
        self._grow(held.key.tenant, nbytes - held.nbytes)
        held.values, held.nbytes = values, nbytes

    def release(self, key: SequenceKey) -> None:
        """Note that a sequence has no step that is queued or runs."""
        if key in self._held:
            self._idle[key] = self._clock()
            self._idle.move_to_end(key)

    def end(self, key: SequenceKey) -> None:
        """Forget a sequence. Does nothing for an unknown one."""
        held = self._held.pop(key, None)
        self._idle.pop(key, None)
        if held is not None:
            self._num[key.tenant] -= 1
            if not self._num[key.tenant]:
                del self._num[key.tenant]
            self._grow(key.tenant, -held.nbytes)

    def clear(self) -> None:
        """Forget all sequences."""
        for key in list(self._held):
            self.end(key)

    def expire(self) -> float | None:
        """End the sequences that were idle for too long. Return the seconds until the next one; None without one."""
        now_s = self._clock()
        while self._idle:
            key, since_s = next(iter(self._idle.items()))
            left_s = since_s + self._spec.idle_s - now_s
            if left_s > 0.0:
                return left_s
            self.end(key)
        return None

    def check_integrity(self) -> None:
        """Raise AssertionError where the counts differ from the sequences."""
        assert self._idle.keys() <= self._held.keys(), "an idle sequence has no state"
        for tenant in {key.tenant for key in self._held} | self._num.keys():
            of_tenant = [held for key, held in self._held.items() if key.tenant == tenant]
            assert self._num[tenant] == len(of_tenant), "the sequences of a tenant are counted wrongly"
            assert self._bytes[tenant] == sum(held.nbytes for held in of_tenant), "their bytes are counted wrongly"
        assert self.total_bytes == self._bytes.total(), "the bytes of all sequences are counted wrongly"

    def _check_room(self, more_bytes: int) -> None:
        if more_bytes > 0 and self.total_bytes + more_bytes > self._spec.max_bytes:
            raise Overloaded(
                f'model "{self._name}": expected at most {format_size(self._spec.max_bytes)} of states '
                f"(max_state_bytes), got a sequence that needs {format_size(more_bytes)} more; end a sequence, or try "
                "again later",
                1.0,
            )

    def _grow(self, tenant: str, by_bytes: int) -> None:
        self._bytes[tenant] += by_bytes
        if not self._bytes[tenant]:
            del self._bytes[tenant]
        self.total_bytes += by_bytes
        self._on_change()

    def _unknown(self, key: SequenceKey) -> SequenceNotFound | SequenceLost:
        shown = f'"{key.id[:128]}"' if isinstance(key.id, str) else str(key.id)
        may_be_lost = self._lost_until_s > self._clock()
        if not may_be_lost:
            self._begun.clear()
        elif key not in self._begun:
            return SequenceLost(
                FIELD,
                f'expected one that began since model "{self._name}" was loaded again, got {shown}; earlier ones are '
                "lost: begin it again with start",
            )
        return SequenceNotFound(
            FIELD,
            f"expected start, or the id of a sequence that has begun, got {shown}; begin it with start (one "
            f"without a step for {self._spec.idle_s:g} s is ended)",
        )


def bytes_of(values: Mapping[str, Value]) -> int:
    """Return the bytes that a sequence with these states takes."""
    return SEQUENCE_BYTES + sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))
