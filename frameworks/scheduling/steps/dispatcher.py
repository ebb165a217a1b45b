"""One generating model's instances, and which of them takes the next sequence."""

import asyncio
from collections.abc import Callable, Sequence

from frameworks.errors import ModelFailed
from frameworks.generation.types import SequenceRequest, StepStats
from frameworks.scheduling.steps.token_feed import TokenFeed
from frameworks.scheduling.steps.worker import StepWorker


class StepDispatcher:
    """Owned by the event loop. The order of those who wait for their turn is the model's affair."""

    def __init__(self, name: str, workers: Sequence[StepWorker]) -> None:
        self._name = name
        self._workers = list(workers)

    def open(self, requests: Sequence[SequenceRequest], begin: Callable[[], None] = lambda: None) -> TokenFeed:
        """Has sequences generated, each by the instance that has the fewest; their tokens are read from the feed.

        `begin` is called when the first of them begins to be computed. Raises ModelFailed where no instance is left.
        """
        feed = TokenFeed(begin)
        for request in requests:
            workers = [worker for worker in self._workers if not worker.is_dead]
            if not workers:
                raise ModelFailed(f'model "{self._name}": its thread has ended; load the model again')
            min(workers, key=lambda worker: worker.num_sequences).open(request, feed)
        return feed

    @property
    def is_dead(self) -> bool:
        """Whether every instance's thread has ended."""
        return all(worker.is_dead for worker in self._workers)

    @property
    def is_running(self) -> bool:
        """Whether an instance has sequences, also such as nobody reads any more."""
        return any(worker.is_running for worker in self._workers)

    @property
    def stats(self) -> list[StepStats]:
        """How each instance stands after its last step."""
        return [worker.stats for worker in self._workers]

    async def close(self) -> None:
        """Ends the instances' threads after the sequences that they have, and closes the models there."""
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def abort(self, message: str) -> None:
        """Fails all readers with Draining; the steps that run are not waited for."""
        for worker in self._workers:
            worker.abort(message)

    def check_integrity(self) -> None:
        """Raises AssertionError where an instance that has nothing to do holds something."""
        for worker in self._workers:
            worker.check_integrity()
