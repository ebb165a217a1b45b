"""Run batching and padding trials on the model's workers, with pairs of answered requests."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from frameworks.scheduling.batch.trials.batching_trials import BatchLearner, Learner, Pair
from frameworks.scheduling.batch.trials.padding_trials import PaddingLearner
from frameworks.scheduling.batch.worker import BatchResult, BatchWorker
from frameworks.types import Batch, ModelSpec


class LearningRuns:
    """First whether rows of equal shape may share a run; with a sequence, then whether lengths may be padded."""

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        max_rows: int,
        running: Counter[BatchWorker],
        on_learned: Callable[[ModelSpec | None, bool], None],
    ) -> None:
        """`running`: runs of each worker, counted there. `on_learned(spec, is_over)`: the spec to serve by from now on,
        None for the one as it is.
        """
        self._name = name
        self._max_rows = max_rows
        self._running = running
        self._on_learned = on_learned
        self._learner: Learner = BatchLearner(name, spec, max_rows)

    def observe(self, worker: BatchWorker, batch: Batch) -> None:
        """Let the learner see a request that was answered, and run the pair that it chooses."""
        pair = self._learner.observe(batch)
        if pair is not None:
            self._running[worker] += 1
            trial = worker.call(partial(pair.run, worker.model.infer))
            trial.add_done_callback(partial(self._finish, worker, pair))
        elif self._learner.is_done:
            self._adopt()

    def _finish(self, worker: BatchWorker, pair: Pair, done: asyncio.Future[BatchResult]) -> None:
        self._running[worker] -= 1
        if done.exception() is not None:  # the worker has ended, or the model raised what no graph raises
            self._on_learned(None, True)
            return
        self._learner.conclude(pair)
        if self._learner.is_done:
            self._adopt()
        else:
            self._on_learned(None, False)

    def _adopt(self) -> None:
        learner, spec = self._learner, self._learner.spec
        is_over = not (isinstance(learner, BatchLearner) and spec.batched_inputs and spec.sequence)
        if not is_over:
            self._learner = PaddingLearner(self._name, spec, self._max_rows)
            spec = self._learner.spec
        self._on_learned(spec, is_over)
