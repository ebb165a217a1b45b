"""Distribute sequences over the instances of one generating model."""

import asyncio
from collections.abc import Callable, Sequence

from frameworks.core.errors import Draining, ModelFailed
from frameworks.generation.sequences import SequenceRequest, StepStats
from frameworks.scheduling.steps.token_feed import TokenFeed
from frameworks.scheduling.steps.worker import StepWorker


class StepDispatcher:
    """Owned by the event loop. Each model orders its own queue."""

    def __init__(self, name: str, workers: Sequence[StepWorker]) -> None:
        self._name = name
        self._workers = list(workers)
        for worker in self._workers:
            worker.on_death = self._note_death
        self.on_death: Callable[[], None] = lambda: None
        """Called after `is_dead` has become true."""
        self.has_ended_requests = False
        """Whether `end_requests` was called; further requests are refused."""

    def open(
        self,
        requests: Sequence[SequenceRequest],
        begin: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> TokenFeed:
        """Start each sequence on the instance with the fewest; the returned feed delivers their tokens.

        `begin` is called for each sequence when it begins to be computed, `end` when the last one has ended. Raises
        ModelFailed if no instance is alive, and Draining after `end_requests`.
        """
        if self.has_ended_requests:
            raise Draining.unloaded(self._name)
        feed = TokenFeed(begin, end)
        for request in requests:
            workers = [worker for worker in self._workers if not worker.is_dead]
            if not workers:
                raise ModelFailed.thread_ended(self._name)
            worker = workers[0] if len(workers) == 1 else min(workers, key=lambda each: each.num_sequences)
            worker.open(request, feed)
        return feed

    def _note_death(self) -> None:
        if self.is_dead:
            self.on_death()

    @property
    def is_dead(self) -> bool:
        """Whether the thread of every instance has ended."""
        return all(worker.is_dead for worker in self._workers)

    @property
    def is_running(self) -> bool:
        """Whether an instance may hold sequences, including aborted ones."""
        return any(worker.is_running for worker in self._workers)

    @property
    def running_since_s(self) -> float | None:
        """When the longest step that runs began (time.perf_counter); None while none runs."""
        return min((s for worker in self._workers if (s := worker.running_since_s) is not None), default=None)

    @property
    def stats(self) -> list[StepStats]:
        """The stats of each instance after its last step."""
        return [worker.stats for worker in self._workers]

    async def close(self) -> None:
        """End the threads after their sequences, and close the models there."""
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def end_requests(self) -> None:
        """Fail all readers with Draining, after the tokens that they have not read, and refuse further requests."""
        self.has_ended_requests = True
        for worker in self._workers:
            worker.fail_feeds(Draining.unloaded(self._name))

    def abort(self, message: str) -> None:
        """Fail all readers with Draining, without waiting for the current steps."""
        for worker in self._workers:
            worker.abort(message)

    def check_integrity(self) -> None:
        """Raise AssertionError where an idle instance holds sequences or memory."""
        for worker in self._workers:
            worker.check_integrity()
