"""Step 2 of a request's way, ADMIT: how many may be here, how many of them may wait, and when to come again."""

import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

from frameworks.errors import Overloaded

# The drain rate is that of so many answers, the last ones.
_ANSWERS_REMEMBERED = 64
_LONGEST_RETRY_S = 600.0


class RequestLimit:
    """The bounds of one model or of the whole server. Owned by the event loop.

    `inflight`: requests that hold a permit, from the door until their answer has left. `waiting`: those of them that
    are decoded and of which nothing has begun to run.
    """

    def __init__(
        self,
        whose: str,
        max_queue_size: int | None,
        max_concurrent_requests: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`whose`: for the refusal's message, `model "digits"`. None is no bound."""
        self._whose = whose
        self.max_queue_size = max_queue_size
        self.max_concurrent_requests = max_concurrent_requests
        self._queue_bound = inf if max_queue_size is None else max_queue_size
        self._concurrency_bound = inf if max_concurrent_requests is None else max_concurrent_requests
        self.inflight = 0
        self.waiting = 0
        self._clock = clock
        # Seconds in which there was something to answer, and when the last of the answers left, by that measure: hours
        # without a request say nothing of how fast a queue drains.
        self._busy_s = 0.0
        self._busy_since_s = 0.0
        self._answered_s: deque[float] = deque([0.0], maxlen=_ANSWERS_REMEMBERED + 1)

    def check_room(self) -> None:
        """Raises Overloaded where the next request is refused: asked before its body is read and decoded."""
        if self.waiting < self._queue_bound and self.inflight < self._concurrency_bound:
            return
        self.check_queue()
        if self.inflight >= self._concurrency_bound:
            raise self._overloaded("under way", "max_concurrent_requests", self.inflight)

    def check_queue(self) -> None:
        """Raises Overloaded where `max_queue_size` requests wait."""
        if self.waiting >= self._queue_bound:
            raise self._overloaded("waiting", "max_queue_size", self.waiting)

    def enter(self) -> None:
        """Counts a request in."""
        if not self.inflight:
            self._busy_since_s = self._clock()
        self.inflight += 1

    def leave(self, answered: bool) -> None:
        """Counts a request out; `answered`: some of it ran, so it counts towards the drain rate."""
        self.inflight -= 1
        if answered or not self.inflight:
            now_s = self._clock()
            if answered:
                self._answered_s.append(self._busy_s + now_s - self._busy_since_s)
            if not self.inflight:
                self._busy_s += now_s - self._busy_since_s

    def seconds_to_drain(self, requests: int) -> float:
        """After how long that many are answered at the rate of the last answers; a second where nothing is known.

        The time since the last answer counts too: a queue that stands still drains more and more slowly.
        """
        answers = len(self._answered_s) - 1
        if not answers:
            return 1.0
        now_s = self._busy_s + (self._clock() - self._busy_since_s if self.inflight else 0.0)
        return min(_LONGEST_RETRY_S, max(0.001, (now_s - self._answered_s[0]) / answers * requests))

    def _overloaded(self, how: str, key: str, requests: int) -> Overloaded:
        wait_s = self.seconds_to_drain(requests)
        message = f"{self._whose}: {requests} requests are {how}, its {key}; try again in {wait_s:.3f} s"
        return Overloaded(message, retry_after_s=wait_s)


class Releasable(Protocol):
    """What stays while a request uses it: a loaded version of a model."""

    def leave(self, permit: "Permit") -> None: ...


class Permit:
    """One request's place with the server and with its model, from the door until its answer has left."""

    __slots__ = ("_began", "_model", "_server", "_visited", "_waits")

    def __init__(self, server: RequestLimit) -> None:
        """Raises Overloaded where the server is full."""
        server.check_room()
        server.enter()
        self._server = server
        self._model: RequestLimit | None = None
        self._waits = False
        self._began = False
        self._visited: Releasable | None = None

    def check_room(self, model: RequestLimit) -> None:
        """Raises Overloaded where the model would refuse the request; not if it waits there already."""
        if self._model is None:
            model.check_room()

    def queue(self, model: RequestLimit) -> None:
        """From here on the request waits for its model, whose limit this is. Raises Overloaded where either is full.

        Harmless when called again: a request that waited for its model's load waits on for its turn.
        """
        if self._model is not None:
            return
        self._server.check_queue()
        model.check_room()
        model.enter()
        self._model = model
        self._waits = True
        self._server.waiting += 1
        model.waiting += 1

    def begin(self) -> None:
        """Something of the request begins to run: it waits no more. Harmless when called again."""
        self._began = True
        self._stop_waiting()

    def visit(self, visited: Releasable) -> None:
        """What the request uses from now on, until its answer has left."""
        if self._visited is not visited:
            self.release_model()
            self._visited = visited

    def release_model(self) -> None:
        """It uses it no more."""
        if self._visited is not None:
            visited, self._visited = self._visited, None
            visited.leave(self)

    def release(self) -> None:
        """The answer has left, or the caller has."""
        self._stop_waiting()
        self.release_model()
        if self._model is not None:
            self._model.leave(self._began)
        self._server.leave(self._began)

    def _stop_waiting(self) -> None:
        if self._waits:
            self._waits = False
            self._server.waiting -= 1
            assert self._model is not None
            self._model.waiting -= 1
