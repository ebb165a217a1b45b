"""One generating model's instances, and which of them takes the next sequence."""

import asyncio
from collections.abc import Callable, Sequence

from frameworks.errors import ModelFailed
from frameworks.generation.types import SequenceRequest, StepFigures
from frameworks.scheduling.step_lane import StepLane
from frameworks.scheduling.token_feed import TokenFeed


class StepDispatcher:
    """Owned by the event loop. The order of those who wait for their turn is the model's affair."""

    def __init__(self, name: str, lanes: Sequence[StepLane]) -> None:
        self._name = name
        self._lanes = list(lanes)

    def open(self, requests: Sequence[SequenceRequest], begin: Callable[[], None] = lambda: None) -> TokenFeed:
        """Has sequences generated, each by the instance that has the fewest; their tokens are read from the feed.

        `begin` is called when the first of them begins to be computed. Raises ModelFailed where no instance is left.
        """
        feed = TokenFeed(begin)
        for request in requests:
            lanes = [lane for lane in self._lanes if not lane.is_dead]
            if not lanes:
                raise ModelFailed(f'model "{self._name}": its thread has ended; load the model again')
            min(lanes, key=lambda lane: lane.num_sequences).open(request, feed)
        return feed

    @property
    def is_dead(self) -> bool:
        """Whether every instance's thread has ended."""
        return all(lane.is_dead for lane in self._lanes)

    @property
    def is_running(self) -> bool:
        """Whether an instance has sequences, also such as nobody reads any more."""
        return any(lane.is_running for lane in self._lanes)

    @property
    def figures(self) -> list[StepFigures]:
        """How each instance stands after its last step."""
        return [lane.figures for lane in self._lanes]

    async def close(self) -> None:
        """Ends the instances' threads after the sequences that they have, and closes the models there."""
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    def give_up(self, message: str) -> None:
        """Fails all readers with Draining; the steps that run are not waited for."""
        for lane in self._lanes:
            lane.give_up(message)

    def check_integrity(self) -> None:
        """Raises AssertionError where an instance that has nothing to do holds something."""
        for lane in self._lanes:
            lane.check_integrity()
