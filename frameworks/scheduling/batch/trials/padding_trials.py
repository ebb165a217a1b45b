"""Test with real requests whether rows of different lengths may be padded to share a run."""

from dataclasses import replace

import numpy as np
import structlog

from frameworks.core.errors import RoundhouseError
from frameworks.scheduling.batch.trials.batching_trials import (
    AGREEMENTS,
    MAX_REQUESTS,
    SPACING,
    Infer,
    Pair,
    RecentRequests,
)
from frameworks.scheduling.merging.comparison import (
    find_sequence_axes,
    is_close,
    ordinary_pad_value,
    random_row,
    tolerance_of,
)
from frameworks.scheduling.merging.rows import follow_rows, merge, split_outputs
from frameworks.types import Batch, ModelSpec, SequenceSpec, TensorBatch, TensorType, Value

log = structlog.get_logger(__name__)


class LengthPair:
    """Two requests of different lengths."""

    def __init__(self, spec: ModelSpec, sequence: SequenceSpec, requests: tuple[TensorBatch, TensorBatch]) -> None:
        self._spec = spec
        self._sequence = sequence
        self._requests = [TensorBatch(each.inputs) for each in requests]
        self.output_axes: dict[str, tuple[int, ...]] = {}
        """For each output the axes with the length of the sequence; known after the run."""
        self.reason: str | None = None
        """Why the outputs differ; None if they agree."""

    @property
    def _lengths(self) -> list[int]:
        return [_length_of(each, self._sequence) for each in self._requests]

    def run(self, infer: Infer) -> dict[str, Value]:
        """As Pair.run. A maximum over the axis notices only padding above all real values, a minimum only padding
        below. So the rows run three times: as they are, with numbers below the padding value, and above it.
        """
        random = np.random.default_rng(0)
        for side in (0, -1, 1):
            rows = [self._moved(each, side, random) for each in self._requests] if side else self._requests
            try:
                apart = [infer(each) for each in rows]
            except RoundhouseError as error:
                if side:  # values that the graph refuses occur in no response
                    continue
                self.reason = f"a trial with two lengths failed: {error.public}"
                return {}
            if not side:
                self.output_axes = find_sequence_axes(apart, self._lengths)
            self.reason = self._difference(rows, apart, infer)
            if self.reason is not None:
                return {}
        return {}

    def _difference(self, rows: list[TensorBatch], apart: list[dict[str, Value]], infer: Infer) -> str | None:
        padded = replace(self._sequence, output_axes=self.output_axes)
        counts = [each.rows for each in rows]
        try:
            together = infer(merge(rows, padded))
        except RoundhouseError as error:
            return f"a trial with a padded row failed: {error.public}"
        if not follow_rows(together, sum(counts)):
            return "the outputs of a padded batch do not have one row for each input row"
        for got, alone in zip(split_outputs(together, counts, self._lengths, padded), apart, strict=True):
            for name, value in got.items():
                if not is_close(value, alone[name], tolerance_of(self._spec, name)):
                    return f'output "{name}" of a padded row differs from its single run'
        return None

    def _moved(self, request: TensorBatch, side: int, random: np.random.Generator) -> TensorBatch:
        """Return the request with numbers on one side of the padding value in its sequences."""
        moved = dict(request.inputs)
        for name, pad_value in self._sequence.pad_values.items():
            declared, value = self._spec.inputs_by_name[name], moved.get(name)
            is_mask = self._sequence.mask is not None and name == self._sequence.mask.name
            if isinstance(value, np.ndarray) and isinstance(declared.type, TensorType) and not is_mask:
                near = ordinary_pad_value(pad_value)
                moved[name] = np.concatenate(
                    [random_row(declared, value.shape, random, side, near) for _ in range(len(value))]
                )
        return TensorBatch(moved)


class PaddingLearner:
    """Learn it for a model whose rows of equal length may share a run. See Learner."""

    def __init__(self, name: str, spec: ModelSpec, max_rows: int) -> None:
        """`max_rows`: of a batch."""
        assert spec.sequence is not None
        self._name = name
        self._sequence = replace(spec.sequence, unpadded_because=None)
        self.spec = replace(
            spec, sequence=replace(spec.sequence, unpadded_because="requests of different lengths are compared")
        )
        self._recent = RecentRequests(max_rows)
        self._agreed = 0
        self._answered = 0
        self._next_pair = SPACING
        self._is_running = False
        self.is_done = False

    def observe(self, batch: Batch) -> LengthPair | None:
        """As Learner.observe."""
        if self._is_running or not isinstance(batch, TensorBatch):
            return None
        self._answered += 1
        if self._answered > MAX_REQUESTS:
            self._finish("the requests were too large, or too much alike, to compare their lengths")
            return None
        other, batch = self._recent.replace(batch, self.spec.batched_inputs, self._sequence)
        if other is None or self._answered < self._next_pair:
            return None
        if _length_of(other, self._sequence) == _length_of(batch, self._sequence):
            return None
        self._next_pair = self._answered + SPACING
        self._is_running = True
        return LengthPair(self.spec, self._sequence, (other, batch) if self._agreed % 2 else (batch, other))

    def conclude(self, pair: Pair) -> None:
        """As Learner.conclude."""
        assert isinstance(pair, LengthPair)
        self._is_running = False
        if pair.reason is None and self._agreed and pair.output_axes != self._sequence.output_axes:
            pair.reason = "the outputs have the length of the sequence in some requests only"
        if pair.reason is not None:
            self._finish(pair.reason)
            return
        self._sequence = replace(self._sequence, output_axes=pair.output_axes)
        self._agreed += 1
        if self._agreed >= AGREEMENTS:
            self._finish(None)

    def _finish(self, because: str | None) -> None:
        self.is_done = True
        self.spec = replace(self.spec, sequence=replace(self._sequence, unpadded_because=because))
        log.info("learned from requests", model=self._name, padding=because or "on")


def _length_of(request: TensorBatch, sequence: SequenceSpec) -> int:
    """Return the length of the sequence; all inputs with the axis have the same."""
    arrays = (request.inputs.get(name) for name in sequence.pad_values)
    return next(int(array.shape[sequence.axis]) for array in arrays if isinstance(array, np.ndarray))
