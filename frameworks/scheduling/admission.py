"""Admission: how many requests the server or a model holds, how many may wait, and when to retry."""

import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

from frameworks.errors import Overloaded
from frameworks.scheduling.byte_limit import ByteHold, ByteLimit
from frameworks.tenants import DEFAULT_TENANT, Tenant

# The drain rate is computed from this many of the latest responses.
_RESPONSES_REMEMBERED = 64
_LONGEST_RETRY_S = 600.0


class RequestLimit:
    """The bounds of one model or of the whole server. Owned by the event loop.

    `inflight`: requests that hold a permit, from admission until the response is sent; not those whose body still
    arrives. `waiting`: places in the queue that decoded requests hold. A request holds one until some of it runs; a
    request for texts holds one for each of them, until that text runs.
    """

    def __init__(
        self,
        owner: str,
        max_queue_size: int | None,
        max_concurrent_requests: int | None,
        clock: Callable[[], float] = time.monotonic,
        byte_limit: ByteLimit | None = None,
    ) -> None:
        """`owner`: named in the error message, such as `model "digits"`. None means no bound."""
        self._owner = owner
        self.byte_limit = byte_limit or ByteLimit(None)
        self.max_queue_size = max_queue_size
        self.max_concurrent_requests = max_concurrent_requests
        self.queue_bound = inf if max_queue_size is None else max_queue_size
        self.concurrency_bound = inf if max_concurrent_requests is None else max_concurrent_requests
        self.inflight = 0
        self.waiting = 0
        self._clock = clock
        # Time is counted only while requests are in flight: idle hours say nothing about how fast a queue drains.
        self._busy_s = 0.0
        self._busy_since_s = 0.0
        self._completed_at_s: deque[float] = deque([0.0], maxlen=_RESPONSES_REMEMBERED + 1)

    def check_room(self) -> None:
        """Raise Overloaded if the next request has to be refused. Called before its body is read and decoded."""
        if self.waiting < self.queue_bound and self.inflight < self.concurrency_bound:
            return
        self.check_queue()
        if self.inflight >= self.concurrency_bound:
            raise self._overloaded(
                f"{self.inflight} requests are in flight, its max_concurrent_requests", self.inflight
            )

    def check_queue(self, places: int = 1) -> None:
        """Raise Overloaded if the queue has not that many places left. An empty queue accepts every request."""
        if not self.waiting or self.waiting + places <= self.queue_bound:
            return
        bound = "its max_queue_size"
        if self.waiting != self.queue_bound:
            bound = f"this one counts as {places}, and the max_queue_size is {self.max_queue_size}"
        # A request may hold several places; no more requests than those in flight hold them.
        raise self._overloaded(f"{self.waiting} requests are waiting, {bound}", min(self.waiting, self.inflight))

    def acquire(self) -> None:
        """Count a request in."""
        if not self.inflight:
            self._busy_since_s = self._clock()
        self.inflight += 1

    def release(self, completed: bool) -> None:
        """Count a request out. `completed`: some of it ran, so it counts towards the drain rate."""
        self.inflight -= 1
        if completed or not self.inflight:
            now_s = self._clock()
            if completed:
                self._completed_at_s.append(self._busy_s + now_s - self._busy_since_s)
            if not self.inflight:
                self._busy_s += now_s - self._busy_since_s

    def seconds_to_drain(self, requests: int) -> float:
        """Return the seconds until `requests` complete at the rate of the latest responses; 1 if none is known.

        The time since the latest response counts too: the estimate for a stalled queue grows.
        """
        responses = len(self._completed_at_s) - 1
        if not responses:
            return 1.0
        now_s = self._busy_s + (self._clock() - self._busy_since_s if self.inflight else 0.0)
        return min(_LONGEST_RETRY_S, max(0.001, (now_s - self._completed_at_s[0]) / responses * requests))

    def _overloaded(self, reason: str, requests: int) -> Overloaded:
        wait_s = self.seconds_to_drain(requests)
        return Overloaded(f"{self._owner}: {reason}; try again in {wait_s:.3f} s", retry_after_s=wait_s)


class Releasable(Protocol):
    """A loaded version of a model, which stays loaded while permits hold references to it."""

    def release(self, permit: "Permit") -> None: ...


class TokenBudget(Protocol):
    """The tokens that the tenant of a request may use."""

    async def start(self, tokens: int) -> None:
        """Count the tokens of a request that is about to run. Raises the tenant's error if none are left.

        An engine process waits for the server here.
        """
        ...

    def use(self, tokens: int) -> None:
        """Count generated tokens."""
        ...


class Permit:
    """The place of one request at the server and at its model, from admission until the response is sent.

    Each method of a request's usual path does its checks inline: this code runs for every request.
    """

    __slots__ = ("_has_begun", "_is_suspended", "_model", "_places", "_server", "held", "held_bytes", "tenant")

    token_budget: TokenBudget | None = None
    """Counts the request's tokens; None if its tenant has no limit of tokens."""

    def __init__(self, server: RequestLimit, tenant: Tenant = DEFAULT_TENANT) -> None:
        """Raises Overloaded if the server is full."""
        if server.waiting >= server.queue_bound or server.inflight >= server.concurrency_bound:
            server.check_room()
        if server.inflight:
            server.inflight += 1
        else:
            server.acquire()
        self._server = server
        self.tenant = tenant
        self._model: RequestLimit | None = None
        # Places in the queue that the request holds.
        self._places = 0
        self._has_begun = False
        self._is_suspended = False
        self.held: Releasable | None = None
        """The version that the request holds a reference to."""
        self.held_bytes: ByteHold | None = None
        """The count of the request's bodies; None while they are too small to be counted."""

    @property
    def places(self) -> int:
        """The number of places in the queue that the request holds."""
        return self._places

    def hold_bytes(self) -> ByteHold:
        """Return the count of the request's bodies, which is released with the permit."""
        if self.held_bytes is None:
            self.held_bytes = self._server.byte_limit.hold()
        return self.held_bytes

    def suspend(self) -> None:
        """Give the place at the server back while the rest of the body is read: a slow client holds no place."""
        self._is_suspended = True
        self._server.release(completed=False)

    def resume(self) -> None:
        """Take a place at the server again. Raises Overloaded if it is full."""
        self._server.check_room()
        self._server.acquire()
        self._is_suspended = False

    def check_room(self, model: RequestLimit) -> None:
        """Raise Overloaded if the model would refuse the request; never if the request is queued there already."""
        if self._model is None and (model.waiting >= model.queue_bound or model.inflight >= model.concurrency_bound):
            model.check_room()

    def queue(self, model: RequestLimit, places: int = 1) -> None:
        """Queue the request for the model with this limit; it holds that many places in the queue.

        Does nothing if the request holds them already. Raises Overloaded if the server or the model is full.
        """
        if self._model is not None:
            if places > self._places > 0:
                self._queue_more(places - self._places)
            return
        server = self._server
        if server.waiting + places > server.queue_bound:
            server.check_queue(places)
        if model.waiting + places > model.queue_bound or model.inflight >= model.concurrency_bound:
            model.check_room()
            model.check_queue(places)
        if model.inflight:
            model.inflight += 1
        else:
            model.acquire()
        self._model = model
        self._places = places
        server.waiting += places
        model.waiting += places

    def queue_sequences(self, model: RequestLimit, sequences: int) -> None:
        """Queue a request for generated text, which holds a place for each of its sequences. See `queue`."""
        self.queue(model, sequences)

    def begin(self) -> None:
        """Count the request as running instead of waiting. May be called again."""
        self._has_begun = True
        if self._places:
            assert self._model is not None
            self._server.waiting -= self._places
            self._model.waiting -= self._places
            self._places = 0

    def begin_text(self) -> None:
        """Count one of the request's texts as running; the request holds a place less. May be called again."""
        self._has_begun = True
        if self._places:
            self._leave_queue(1)

    def hold(self, version: Releasable) -> None:
        """Note the version that the request holds a reference to; a reference to another version is released."""
        if self.held is not version:
            self.release_version()
            self.held = version

    def release_version(self) -> None:
        """Release the reference to the version, if the request holds one."""
        if self.held is not None:
            self.held.release(self)
            self.held = None

    def release(self) -> None:
        """Give the place back: the response is sent, or the request was cancelled."""
        if self.held_bytes is not None:
            self.held_bytes.release()
        if self._is_suspended:
            return
        if self.held is not None:
            self.release_version()
        if self._model is not None:
            if self._places:
                self._leave_queue(self._places)
            self._model.release(self._has_begun)
        self._server.release(self._has_begun)

    def _queue_more(self, places: int) -> None:
        """Add places to those that the request holds since it waited for a load."""
        assert self._model is not None
        for limit in (self._server, self._model):
            # The request's own places do not count: an empty queue accepts every request.
            if limit.waiting > self._places:
                limit.check_queue(places)
        self._places += places
        self._server.waiting += places
        self._model.waiting += places

    def _leave_queue(self, places: int) -> None:
        assert self._model is not None
        self._places -= places
        self._server.waiting -= places
        self._model.waiting -= places
