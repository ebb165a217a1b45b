"""Distribute sequences over the instances of one generating model."""

import asyncio
from collections.abc import Callable, Sequence

from frameworks.errors import ModelFailed
from frameworks.generation.types import SequenceRequest, StepStats
from frameworks.scheduling.steps.token_feed import TokenFeed
from frameworks.scheduling.steps.worker import StepWorker


class StepDispatcher:
    """Owned by the event loop. Each model orders its own queue."""

    def __init__(self, name: str, workers: Sequence[StepWorker]) -> None:
        self._name = name
        self._workers = list(workers)

    def open(self, requests: Sequence[SequenceRequest], begin: Callable[[], None] = lambda: None) -> TokenFeed:
        """Start each sequence on the instance with the fewest; the returned feed delivers their tokens.

        `begin` is called for each sequence when it begins to be computed. Raises ModelFailed if no instance is alive.
        """
        feed = TokenFeed(begin)
        for request in requests:
            workers = [worker for worker in self._workers if not worker.is_dead]
            if not workers:
                raise ModelFailed.thread_ended(self._name)
            min(workers, key=lambda worker: worker.num_sequences).open(request, feed)
        return feed

    @property
    def is_dead(self) -> bool:
        """Whether the thread of every instance has ended."""
        return all(worker.is_dead for worker in self._workers)

    @property
    def is_running(self) -> bool:
        """Whether an instance may hold sequences, including aborted ones."""
        return any(worker.is_running for worker in self._workers)

    @property
    def stats(self) -> list[StepStats]:
        """The stats of each instance after its last step."""
        return [worker.stats for worker in self._workers]

    async def close(self) -> None:
        """End the threads after their sequences, and close the models there."""
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def abort(self, message: str) -> None:
        """Fail all readers with Draining, without waiting for the current steps."""
        for worker in self._workers:
            worker.abort(message)

    def check_integrity(self) -> None:
        """Raise AssertionError where an idle instance holds sequences or memory."""
        for worker in self._workers:
            worker.check_integrity()
