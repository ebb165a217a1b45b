"""Admit or refuse requests: bound those in flight and those queued, and estimate Retry-After.

A 503 for a full queue is decided here, for the server and for each model. docs/errors.md lists the other causes.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

from frameworks.core.errors import Overloaded
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.scheduling.byte_limit import ByteHold, ByteLimit
from frameworks.scheduling.drain_rate import RequestsInFlight


class RequestLimit(RequestsInFlight):
    """The bounds of one model or of the whole server. Owned by the event loop.

    `inflight`: requests that hold a permit, from admission until the response is sent; not those whose body still
    arrives. `waiting`: queue slots that decoded requests hold. A request holds one until some of it runs; a
    request for texts holds one for each of them, until that text runs. Permits count in `own_inflight` and
    `own_waiting`, those of this process; SharedRequestLimit adds up all processes.
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
        super().__init__(clock)
        self._owner = owner
        self.byte_limit = byte_limit or ByteLimit(None)
        self.max_queue_size = max_queue_size
        self.max_concurrent_requests = max_concurrent_requests
        self.queue_bound = inf if max_queue_size is None else max_queue_size
        self.concurrency_bound = inf if max_concurrent_requests is None else max_concurrent_requests
        # The bounds of the counts of this process: below them a permit is granted without a look at other processes.
        self.own_queue_bound = self.queue_bound
        self.own_concurrency_bound = self.concurrency_bound
        self.own_waiting = 0

    @property
    def waiting(self) -> int:
        """The queue slots that requests hold."""
        return self.own_waiting

    def check_room(self) -> None:
        """Raise Overloaded if the next request has to be refused. Called before its body is read and decoded."""
        self._check_room(self.inflight, self.waiting)

    def enter(self, slots: int = 0) -> None:
        """Count a request, with its queue slots. Raises Overloaded if it has to be refused."""
        # Counted before the check: two processes cannot both take the last slot.
        self.acquire()
        self.own_waiting += slots
        self._check_entered(slots)

    def _check_entered(self, slots: int) -> None:
        """Count the request out if it has to be refused because of the others. Raises Overloaded."""
        inflight, waiting = self.inflight - 1, self.waiting - slots
        try:
            self._check_room(inflight, waiting)
            self._check_queue(inflight, waiting, slots)
        except Overloaded:
            self.own_waiting -= slots
            self.release(completed=False)
            raise

    def add_slots(self, slots: int, own: int = 0) -> None:
        """Count more slots of a request that has `own` already. Raises Overloaded if the queue is full."""
        self.own_waiting += slots
        self._check_added(slots, own)

    def _check_added(self, slots: int, own: int) -> None:
        """Count the slots out again if the queue has too few left. Raises Overloaded."""
        waiting = self.waiting - slots
        try:
            # Its own slots do not count: an empty queue accepts every request.
            self._check_queue(self.inflight, waiting if waiting > own else 0, slots)
        except Overloaded:
            self.own_waiting -= slots
            raise

    def _check_room(self, inflight: int, waiting: int) -> None:
        """Raise Overloaded if another request has to be refused in addition to these."""
        if waiting < self.queue_bound and inflight < self.concurrency_bound:
            return
        self._check_queue(inflight, waiting, 1)
        if inflight >= self.concurrency_bound:
            raise self._overloaded(f"{inflight} requests are in flight, its max_concurrent_requests", inflight)

    def _check_queue(self, inflight: int, waiting: int, slots: int) -> None:
        """Raise Overloaded if the queue has not that many slots left. An empty queue accepts every request."""
        if not waiting or waiting + slots <= self.queue_bound:
            return
        bound = "its max_queue_size"
        if waiting != self.queue_bound:
            bound = f"this one counts as {slots}, and the max_queue_size is {self.max_queue_size}"
        # A request may hold several slots; no more requests than those in flight hold them.
        raise self._overloaded(f"{waiting} requests are waiting, {bound}", min(waiting, inflight))

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
    """The slot of one request at the server and at its model, from admission until the response is sent.

    Each method of a request's usual path does its checks inline: this code runs for every request.
    """

    __slots__ = ("_has_begun", "_is_suspended", "_model", "_server", "_slots", "held", "held_bytes", "tenant")

    token_budget: TokenBudget | None = None
    """Counts the request's tokens; None if its tenant has no limit of tokens."""

    def __init__(self, server: RequestLimit, tenant: Tenant = DEFAULT_TENANT) -> None:
        """Raises Overloaded if the server is full."""
        if server.own_waiting >= server.own_queue_bound or server.own_inflight >= server.own_concurrency_bound:
            server.enter()
        elif server.own_inflight:
            server.own_inflight += 1
        else:
            server.acquire()
        self._server = server
        self.tenant = tenant
        self._model: RequestLimit | None = None
        # Queue slots that the request holds.
        self._slots = 0
        self._has_begun = False
        self._is_suspended = False
        self.held: Releasable | None = None
        """The version that the request holds a reference to."""
        self.held_bytes: ByteHold | None = None
        """The count of the request's bodies; None while they are too small to be counted."""

    @property
    def slots(self) -> int:
        """The number of queue slots that the request holds."""
        return self._slots

    def hold_bytes(self) -> ByteHold:
        """Return the count of the request's bodies, which is released with the permit."""
        if self.held_bytes is None:
            self.held_bytes = self._server.byte_limit.hold()
        return self.held_bytes

    def suspend(self) -> None:
        """Release the server's slot while the rest of the body is read: a slow client holds no slot."""
        self._is_suspended = True
        self._server.release(completed=False)

    def resume(self) -> None:
        """Take a slot at the server again. Raises Overloaded if it is full."""
        self._server.enter()
        self._is_suspended = False

    def check_room(self, model: RequestLimit) -> None:
        """Raise Overloaded if the model would refuse the request; never if the request is queued there already."""
        if self._model is None and (
            model.own_waiting >= model.own_queue_bound or model.own_inflight >= model.own_concurrency_bound
        ):
            model.check_room()

    def queue(self, model: RequestLimit, slots: int = 1) -> None:
        """Queue the request for the model with this limit; it holds that many queue slots.

        Does nothing if the request holds them already. Raises Overloaded if the server or the model is full.
        """
        if self._model is not None:
            if slots > self._slots > 0:
                self._queue_more(slots - self._slots)
            return
        server = self._server
        if server.own_waiting + slots > server.own_queue_bound:
            server.add_slots(slots)
        else:
            server.own_waiting += slots
        if model.own_waiting + slots > model.own_queue_bound or model.own_inflight >= model.own_concurrency_bound:
            self._enter_model(model, slots)
        else:
            if model.own_inflight:
                model.own_inflight += 1
            else:
                model.acquire()
            model.own_waiting += slots
        self._model = model
        self._slots = slots

    def queue_sequences(self, model: RequestLimit, sequences: int) -> None:
        """Queue a request for generated text, which holds a slot for each of its sequences. See `queue`."""
        self.queue(model, sequences)

    def begin(self) -> None:
        """Count the request as running instead of waiting. May be called again."""
        self._has_begun = True
        if self._slots:
            assert self._model is not None
            self._server.own_waiting -= self._slots
            self._model.own_waiting -= self._slots
            self._slots = 0

    def begin_text(self) -> None:
        """Count one of the request's texts as running; the request holds a slot less. May be called again."""
        self._has_begun = True
        if self._slots:
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
        """Release the slot: the response is sent, or the request was cancelled."""
        if self.held_bytes is not None:
            self.held_bytes.release()
        if self._is_suspended:
            return
        if self.held is not None:
            self.release_version()
        if self._model is not None:
            if self._slots:
                self._leave_queue(self._slots)
            self._model.release(self._has_begun)
        self._server.release(self._has_begun)

    def _enter_model(self, model: RequestLimit, slots: int) -> None:
        """Count the request at its model. The server has counted its slots, and drops them if the model refuses."""
        try:
            model.enter(slots)
        except Overloaded:
            self._server.own_waiting -= slots
            raise

    def _queue_more(self, slots: int) -> None:
        """Add slots to those that the request holds since it waited for a load."""
        assert self._model is not None
        self._server.add_slots(slots, self._slots)
        try:
            self._model.add_slots(slots, self._slots)
        except Overloaded:
            self._server.own_waiting -= slots
            raise
        self._slots += slots

    def _leave_queue(self, slots: int) -> None:
        assert self._model is not None
        self._slots -= slots
        self._server.own_waiting -= slots
        self._model.own_waiting -= slots
