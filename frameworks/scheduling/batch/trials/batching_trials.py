"""Test with real requests whether the rows of a batch are independent, so that requests may share a run.

A graph that refuses synthetic rows had no trial at warm-up, and runs its requests one by one. Some requests run again
after their responses, in pairs: each alone, and both in one batch. Batching is enabled when enough pairs agree. A
single difference disables it for good.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Protocol

import numpy as np
import structlog

from frameworks.core.errors import RoundhouseError
from frameworks.scheduling.merging.comparison import is_close, reason_not_batchable, tolerance_of, trial_inputs
from frameworks.scheduling.merging.padding import missing_mask
from frameworks.scheduling.merging.rows import follow_rows, merge, signature_of, split_outputs, with_scalars
from frameworks.types import Batch, ModelSpec, SequenceSpec, TensorBatch, Value

log = structlog.get_logger(__name__)

Infer = Callable[[Batch], dict[str, Value]]

AGREEMENTS = 8
"""Pairs that must agree, for each input with pairs that differ in it."""

SPACING = 8
"""Requests from one pair to the next: a pair takes as long as four requests."""

MAX_REQUESTS = 4096
"""Limit of the observed requests. Then the trials end: the requests were too similar, or too large."""

# Bounds of the requests that are kept for a pair, over all shapes.
_MAX_KEPT = 8
_MAX_REQUEST_BYTES = 4 * 1024**2


class Pair(Protocol):
    """Two requests, to be run apart and together on a worker's thread."""

    def run(self, infer: Infer) -> dict[str, Value]:
        """Run and compare. The outputs are not returned: no caller receives them."""
        ...


class Learner(Protocol):
    """Choose the pairs, and decide. Owned by the event loop; it runs nothing."""

    @property
    def spec(self) -> ModelSpec:
        """The spec as far as requests have decided."""
        ...

    @property
    def is_done(self) -> bool: ...

    def observe(self, batch: Batch) -> Pair | None:
        """Note a request that was answered. Return a pair to run now, if there is one."""
        ...

    def conclude(self, pair: Pair) -> None:
        """Note the result of a pair that has run."""
        ...


class RecentRequests:
    """The last request of each kind, for a pair with the next one. `max_rows`: of a batch."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._kept: dict[Hashable, TensorBatch] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def replace(
        self,
        batch: TensorBatch,
        inputs: frozenset[str],
        sequence: SequenceSpec | None,
        equal: frozenset[str] = frozenset(),
    ) -> tuple[TensorBatch | None, TensorBatch]:
        """Keep a request. Return the request that could share a run with it and was kept before, and this one, both
        with their mask.
        """
        if sequence is not None and (mask := missing_mask(batch.inputs, sequence)) is not None:
            batch = TensorBatch({**batch.inputs, **mask}, batch.output_names)
        if equal:
            batch = batch._replace(inputs=with_scalars(batch.inputs, equal))
        signature = signature_of(batch, inputs - equal, sequence, equal_inputs=equal)
        arrays = [value for value in batch.inputs.values() if isinstance(value, np.ndarray)]
        is_small = signature.rows * 2 <= self._max_rows and sum(map(_size, arrays)) <= _MAX_REQUEST_BYTES
        if not signature.shares or not is_small or batch.inputs.keys() != inputs:
            return None, batch
        other = self._kept.pop(signature.shape, None)
        if len(self._kept) >= _MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[signature.shape] = batch
        return other, batch


class RowPair:
    """Two requests of one shape."""

    def __init__(self, spec: ModelSpec, requests: tuple[TensorBatch, TensorBatch]) -> None:
        self._spec = spec
        self._requests = [TensorBatch(each.inputs) for each in requests]
        self.differs_in = frozenset(
            name for name in requests[0].inputs if not _has_equal_first_row(*(each.inputs[name] for each in requests))
        )
        """The inputs whose first rows differ. The others show nothing about the graph."""
        self.reason: str | None = None
        """Why the outputs differ; None if they agree."""

    def run(self, infer: Infer) -> dict[str, Value]:
        """As Pair.run."""
        try:
            apart = [infer(each) for each in self._requests]
            together = infer(merge(self._requests))
        except RoundhouseError as error:
            self.reason = f"a trial with rows of two requests failed: {error.public}"
            return {}
        counts = [each.rows for each in self._requests]
        for outputs, rows in ((together, sum(counts)), *zip(apart, counts, strict=True)):
            if not follow_rows(outputs, rows):
                self.reason = "the outputs of two requests do not have one row for each input row"
                return {}
        for got, alone in zip(split_outputs(together, counts), apart, strict=True):
            for name, value in got.items():
                if not is_close(value, alone[name], tolerance_of(self._spec, name)):
                    self.reason = f'output "{name}" of rows of two requests differs from its single runs'
        return {}


class BatchLearner:
    """Learn whether rows of equal shape may share a run. See Learner."""

    def __init__(self, name: str, spec: ModelSpec, max_rows: int) -> None:
        """`max_rows`: of a batch."""
        self._name = name
        self.spec = spec
        # The states of a sequence are rows too.
        of_graph = spec.with_states
        is_possible = reason_not_batchable(of_graph) is None
        self._inputs = frozenset(each.name for each in trial_inputs(of_graph)) if is_possible else frozenset()
        self._equal = frozenset(each.name for each in trial_inputs(of_graph) if not each.shape) & self._inputs
        self._agreed: Counter[str] = Counter()
        self._recent = RecentRequests(max_rows)
        self._answered = 0
        self._next_pair = SPACING
        self._is_running = False
        self.is_done = False

    def observe(self, batch: Batch) -> RowPair | None:
        """As Learner.observe."""
        if self._is_running or not isinstance(batch, TensorBatch):
            return None
        self._answered += 1
        if not self._inputs:
            if self._answered >= AGREEMENTS:
                self._finish(self.spec.unbatched_because)
            return None
        if self._answered > MAX_REQUESTS:
            names = ", ".join(sorted(self._undecided))
            self._finish(f"the requests were too large, or too much alike, to compare their rows of {names}")
            return None
        other, batch = self._recent.replace(batch, self._inputs, self.spec.sequence, self._equal)
        if other is None or self._answered < self._next_pair:
            return None
        # Either of the two may be the first: a graph that reads only the first row must not agree.
        pair = RowPair(self.spec.with_states, (other, batch) if self._agreed.total() % 2 else (batch, other))
        if self._undecided.isdisjoint(pair.differs_in):
            return None
        self._next_pair = self._answered + SPACING
        self._is_running = True
        return pair

    @property
    def _undecided(self) -> frozenset[str]:
        """The inputs in which too few pairs have differed. A mask may be 1 in all requests."""
        mask = self.spec.sequence.mask if self.spec.sequence else None
        needed = self._inputs - self._equal - ({mask.name} if mask else set())
        return frozenset(name for name in needed if self._agreed[name] < AGREEMENTS)

    def conclude(self, pair: Pair) -> None:
        """As Learner.conclude."""
        assert isinstance(pair, RowPair)
        self._is_running = False
        if pair.reason is not None:
            self._finish(pair.reason)
            return
        self._agreed.update(pair.differs_in)
        if not self._undecided:
            self._finish(None)

    def _finish(self, because: str | None) -> None:
        self.is_done = True
        batched, equal = (self._inputs, self._equal) if because is None else (frozenset[str](), frozenset[str]())
        self.spec = replace(
            self.spec,
            batched_inputs=batched - equal,
            equal_inputs=equal,
            unbatched_because=because,
            learns_batching=False,
        )
        if self._inputs:
            log.info("learned from requests", model=self._name, batching=because or "on")


def _has_equal_first_row(one: Value, other: Value) -> bool:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    return not one.ndim or np.array_equal(one[:1], other[:1])


def _size(array: np.ndarray) -> int:
    """Return the bytes of an array; an object array has its texts elsewhere."""
    return sum(map(len, array.flat)) + array.nbytes if array.dtype.hasobject else array.nbytes
