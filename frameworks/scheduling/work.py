"""A request within the scheduler: its rows, who waits for them, and what has been answered of them so far."""

import asyncio
import time
from collections.abc import Callable

from frameworks.scheduling.batch_lane import LaneResult
from frameworks.scheduling.parts import Outline, Part
from frameworks.scheduling.waiting import Piece
from frameworks.types import Batch, Value


class Request:
    """One caller's rows. `backlog`: parts that are not in the line yet, the next at the end."""

    __slots__ = (
        *("answers", "arrived_s", "backlog", "batch", "begin", "compute_s", "future", "missing", "outline"),
        *("priority", "queue_s", "waiting"),
    )

    def __init__(
        self,
        batch: Batch,
        outline: Outline,
        priority: int,
        begin: Callable[[], None],
        future: "asyncio.Future[LaneResult]",
    ) -> None:
        self.batch = batch
        self.outline = outline
        self.priority = priority
        self.begin = begin
        self.future = future
        self.arrived_s = time.perf_counter()
        self.backlog: list[Part] = []
        self.missing = 0
        self.waiting: set[Piece] = set()
        self.answers: list[tuple[Part, dict[str, Value]]] = []
        self.queue_s = -1.0
        self.compute_s = 0.0

    def fail(self, error: BaseException) -> None:
        """Hands an error to the caller, if it still waits."""
        if not self.future.done():
            # asyncio's futures refuse a StopIteration; the waiter would then wait for ever.
            stopped = isinstance(error, StopIteration)
            self.future.set_exception(RuntimeError("the model raised StopIteration") if stopped else error)


class Member:
    """One part in a batch, and whose it is."""

    __slots__ = ("part", "request")

    def __init__(self, request: Request, part: Part) -> None:
        self.request = request
        self.part = part
