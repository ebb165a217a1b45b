"""Run the steps of sequences: those of one sequence one after the other, those of several in one batch."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from frameworks.core.errors import Draining, InvalidInput, RoundhouseError
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from frameworks.scheduling.batch.request import Outputs
from frameworks.scheduling.batch.worker import fail
from frameworks.scheduling.sequences.state_store import FIELD, HeldState, SequenceKey, StateStore
from frameworks.types import DEFAULT_PRIORITY, Batch, ModelSpec, SequenceStep, TensorBatch, Value


class Submit(Protocol):
    """As Dispatcher.submit."""

    def __call__(
        self, batch: Batch, priority: int, begin: Callable[[], None], timings: Timings | None, tenant: Tenant
    ) -> "asyncio.Future[Outputs]": ...


@dataclass(slots=True, eq=False)
class _Step:
    """A request of a sequence, and the future that its caller awaits."""

    batch: TensorBatch
    place: SequenceStep
    priority: int
    begin: Callable[[], None]
    timings: Timings
    tenant: Tenant
    future: "asyncio.Future[Outputs]"
    queued_s: float | None = None
    """When it began to wait for an earlier step; None: it did not."""


class Sequences:
    """The sequences of one model. Owned by the event loop.

    A step runs when the one before it has ended. A step that fails, or whose caller cancels it, leaves the state as it
    was. A first step ends an earlier sequence of its id, and begins one only if it succeeds.
    """

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        first_of: Callable[[int], dict[str, Value]],
        submit: Submit,
        is_reloaded: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first_of`: returns the states before the first step, for a number of rows. `submit`: runs a step with its
        states. `is_reloaded`: as of StateStore.
        """
        assert spec.state is not None, "the model has a state"
        self._name = name
        self._spec = spec.state
        self._outputs = tuple(output.name for output in spec.outputs)
        self._state_outputs = tuple(pair.output for pair in spec.state.pairs)
        self._inputs_by_output = {pair.output: pair.input for pair in spec.state.pairs}
        self._first_of = first_of
        self._run_batch = submit
        self.on_change: Callable[[], None] = lambda: None
        """Called when the number of sequences or the bytes of their states change."""
        self.store = StateStore(name, spec.state, clock, is_reloaded, lambda: self.on_change())  # noqa: PLW0108
        # The steps of each sequence that have not ended; the first one runs.
        self._lanes: dict[SequenceKey, deque[_Step]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed: Draining | None = None

    def submit(
        self,
        batch: Batch,
        priority: int = DEFAULT_PRIORITY,
        begin: Callable[[], None] = lambda: None,
        timings: Timings | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "asyncio.Future[Outputs]":
        """Queue a step behind the earlier steps of its sequence; as Dispatcher.submit.

        Raises InvalidInput for a request without a sequence. The future fails also with SequenceNotFound, SequenceLost
        and Overloaded.
        """
        if not isinstance(batch, TensorBatch) or batch.sequence is None:
            raise InvalidInput(
                FIELD, "expected the sequence of the request, as the model has a state, got none; send its id and start"
            )
        if self._closed is not None:
            raise self._closed
        key = SequenceKey(tenant.name, batch.sequence.id)
        step = _Step(batch, batch.sequence, priority, begin, timings or Timings(), tenant, self._loop.create_future())
        lane = self._lanes.get(key)
        if lane is not None:
            step.queued_s = time.perf_counter()
            lane.append(step)
        else:
            self._lanes[key] = deque([step])
            self._run_next(key)
        return step.future

    def close(self, error: Draining) -> None:
        """Fail the steps that wait for an earlier one, and all later ones; forget the states."""
        self._closed = error
        for lane in self._lanes.values():
            while len(lane) > 1:
                fail(lane.pop().future, error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.store.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError where the states are counted wrongly, or an idle sequence has steps."""
        self.store.check_integrity()
        assert all(self._lanes.values()), "a sequence without steps has a queue"

    def _run_next(self, key: SequenceKey) -> None:
        """Run the first step of a sequence whose caller still waits. Without one the sequence is idle."""
        lane = self._lanes[key]
        while lane:
            step = lane[0]
            if not step.future.done():
                if self._start(key, step):
                    return
            elif step.place.start:
                self.store.end(key)
            lane.popleft()
        del self._lanes[key]
        self.store.release(key)
        if self._timer is None and self._closed is None and len(self.store):
            self._timer = self._loop.call_later(self._spec.idle_s, self._expire)

    def _start(self, key: SequenceKey, step: _Step) -> bool:
        """Run a step; False where it has failed already."""
        held: HeldState | None = None
        if step.queued_s is not None:
            step.timings.queued(step.queued_s, time.perf_counter())
        try:
            held = self._held_for(key, step)
            names = step.batch.output_names or self._outputs
            batch = TensorBatch({**step.batch.inputs, **held.values}, (*names, *self._state_outputs))
            running = self._run_batch(batch, step.priority, step.begin, step.timings, step.tenant)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            self._drop_unbegun(key, step, held)
            fail(step.future, error)
            return False
        step.future.add_done_callback(partial(_cancel_with, running))
        running.add_done_callback(partial(self._finish, key, step, held))
        return True

    def _held_for(self, key: SequenceKey, step: _Step) -> HeldState:
        """Return the states for a step. Raises InvalidInput, SequenceNotFound, SequenceLost, Overloaded."""
        if self._closed is not None:
            raise self._closed
        rows = self._spec.rows_of(step.batch.inputs)
        if step.place.start:
            return self.store.begin(key, rows, self._first_of(rows))
        held = self.store.find(key)
        if rows != held.rows:
            raise InvalidInput(
                "inputs", f"expected {held.rows} rows as in the first step of the sequence, got {rows}; send as many"
            )
        return held

    def _drop_unbegun(self, key: SequenceKey, step: _Step, held: HeldState | None) -> None:
        if step.place.start and held is not None:
            self.store.end(key)

    def _finish(self, key: SequenceKey, step: _Step, held: HeldState, running: "asyncio.Future[Outputs]") -> None:
        """Keep the state after a step, and answer its caller."""
        error = None if running.cancelled() else running.exception()
        if running.cancelled() or error is not None or step.future.done():
            self._drop_unbegun(key, step, held)
            if error is not None:
                fail(step.future, error)
            elif not step.future.done():
                step.future.cancel()
        else:
            try:
                outputs = self._advance(key, step, held, running.result())
            except RoundhouseError as failure:
                self._drop_unbegun(key, step, held)
                fail(step.future, failure)
            else:
                step.future.set_result(outputs)
        self._lanes[key].popleft()
        self._run_next(key)

    def _advance(self, key: SequenceKey, step: _Step, held: HeldState, outputs: Outputs) -> Outputs:
        """Keep the states of a step; return its other outputs. Raises Overloaded."""
        if step.place.end:
            self.store.end(key)
        else:
            values = {name: _owned(outputs[output]) for output, name in self._inputs_by_output.items()}
            self.store.advance(held, values)
        return {name: value for name, value in outputs.items() if name not in self._inputs_by_output}

    def _expire(self) -> None:
        self._timer = None
        left_s = self.store.expire()
        if left_s is not None:
            self._timer = self._loop.call_later(left_s, self._expire)


def _owned(value: Value) -> Value:
    """Copy a view: one on a row of a batch would keep the outputs of the whole batch in memory."""
    if isinstance(value, np.ndarray) and (value.base is not None or not value.flags.c_contiguous):
        return value.copy(order="C")
    return value


def _cancel_with(running: "asyncio.Future[Outputs]", future: "asyncio.Future[Outputs]") -> None:
    """Cancel the run of a step whose caller has cancelled it."""
    if future.cancelled():
        running.cancel()
