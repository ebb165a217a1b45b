"""Run the steps of a pipeline for one request: models and collections by their queues, slow steps on threads.

Branches run in parallel.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np

from extensions.pipelines.checker import Typed
from extensions.pipelines.kinds import Values
from extensions.pipelines.model_calls import ModelCall, TensorCall, empty_values, make_call
from extensions.pipelines.plan import Plan, PlannedStep
from extensions.pipelines.searches import SearchStep
from extensions.pipelines.steps.contract import BuiltinStep, StepFault
from frameworks.core.errors import FieldError, InvalidInput, ModelFailed, RoundhouseError
from frameworks.core.vector_search import NamedCollections
from frameworks.engine.contract import EngineRequest, Run
from frameworks.models.residency.subrequests import SubRequests
from frameworks.types import ModelSpec, TensorBatch

_MANY_NUMBERS = 16 * 1024
_MANY_CHARACTERS = 64 * 1024
_YIELD_AFTER_S = 0.002
"""Seconds of steps on the event loop after which a request yields to others."""


class Runner:
    """Runs the plan of one pipeline. Owned by the event loop."""

    def __init__(
        self,
        typed: Typed,
        plan: Plan,
        parts: SubRequests,
        threads: ThreadPoolExecutor,
        collections: NamedCollections | None = None,
    ) -> None:
        """`threads`: for the steps that are slow. `collections`: those that steps search."""
        self._plan = plan
        self._parts = parts
        self._threads = threads
        self._collections = collections
        self._entries = typed.graph.steps
        self._calls: dict[str, ModelCall] = {
            step.name: step.work for step in plan.steps if isinstance(step.work, ModelCall)
        }
        """By step: how its model is called, with the spec of the last request."""

    async def run(self, whole: Run, values: list[Any]) -> None:
        """Compute the values of all steps from those of the inputs, in place.

        Raises the first error of a step, with its name; the other steps are cancelled.
        """
        if self._plan.is_serial:
            until_s = time.perf_counter() + _YIELD_AFTER_S
            for step in self._plan.steps:
                read = step.read(values)
                if not self._run_now(whole, step, read, values):
                    await self._run_later(whole, step, read, values)
                elif time.perf_counter() > until_s:
                    await asyncio.sleep(0)
                    until_s = time.perf_counter() + _YIELD_AFTER_S
            return
        try:
            await self._run_parallel(whole, values)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None

    async def _run_parallel(self, whole: Run, values: list[Any]) -> None:
        missing = [step.num_sources for step in self._plan.steps]
        until_s = time.perf_counter() + _YIELD_AFTER_S

        async def wait_for(step: PlannedStep, read: Values) -> None:
            nonlocal until_s
            await self._run_later(whole, step, read, values)
            until_s = time.perf_counter() + _YIELD_AFTER_S
            finish(step)

        def start(step: PlannedStep) -> None:
            read = step.read(values)
            if time.perf_counter() <= until_s and self._run_now(whole, step, read, values):
                finish(step)
            else:
                tasks.create_task(wait_for(step, read))

        def finish(step: PlannedStep) -> None:
            for reader in step.readers:
                missing[reader.position] -= 1
                if not missing[reader.position]:
                    start(reader)

        async with asyncio.TaskGroup() as tasks:
            for step in self._plan.steps:
                if not step.num_sources:
                    start(step)

    def _run_now(self, whole: Run, step: PlannedStep, read: Values, values: list[Any]) -> bool:
        """Run a step on the event loop, if it is short; return whether it ran."""
        if step.is_call:
            if not _has_rows(read):
                step.write(empty_values(self._calls[step.name].outputs), values)
                return True
            return step.reads_tensors and self._call_now(whole, step, read, values)
        if step.is_search or step.is_slow or _is_long(read):
            return False
        started_s = time.perf_counter()
        try:
            answer = cast(BuiltinStep, step.work).run(read)
        except RoundhouseError as error:
            raise self._named(step, error) from error
        step.write(answer, values)
        _note(whole, step, started_s)
        return True

    def _call_now(self, whole: Run, step: PlannedStep, read: Values, values: list[Any]) -> bool:
        """Run the model of a step, if its queue is empty and the run is light; return whether it ran."""
        started_s = time.perf_counter()
        try:
            answer = self._parts.compute_now(whole, step.model, partial(self._tensors, step, read), step.label)
        except RoundhouseError:
            _note(whole, step, started_s)
            raise
        if answer is None:
            return False
        step.write(answer, values)
        _note(whole, step, started_s)
        return True

    async def _run_later(self, whole: Run, step: PlannedStep, read: Values, values: list[Any]) -> None:
        """Queue a step at its model or collection, or run it on a thread."""
        if step.is_call:
            await self._call(whole, step, read, values)
        elif step.is_search:
            await self._search(whole, step, read, values)
        else:
            await self._compute_on_thread(whole, step, read, values)

    async def _call(self, whole: Run, step: PlannedStep, read: Values, values: list[Any]) -> None:
        """Run the model of a step on rows."""
        started_s = time.perf_counter()
        call = self._calls[step.name]

        def make(spec: ModelSpec) -> EngineRequest:
            nonlocal call
            if spec is not call.spec:
                call = self._calls[step.name] = self._call_for(step, spec)
            return call.request(read)

        try:
            answer = await self._parts.answer(whole, step.model, make, step.label, whole.timings)
        finally:
            _note(whole, step, started_s)
        step.write(call.read(read, answer), values)

    def _tensors(self, step: PlannedStep, read: Values, spec: ModelSpec) -> TensorBatch:
        """Return the request of a step that reads tensors. Raises ModelFailed, as `_call_for`."""
        call = self._calls[step.name]
        if spec is not call.spec:
            call = self._calls[step.name] = self._call_for(step, spec)
        return cast(TensorCall, call).request(read)

    def _call_for(self, step: PlannedStep, spec: ModelSpec) -> ModelCall:
        """Return how a step calls another version of its model, or its next load. Raises ModelFailed."""
        known = cast(ModelCall, step.work)
        label = step.label
        try:
            call = make_call(self._entries[step.name], self._plan.wired[step.name], self._plan.used[step.name], spec)
        except StepFault as fault:
            raise ModelFailed(f"{label}: its model has changed: {fault.message}") from None
        if call.ports != known.ports or call.outputs != known.outputs:
            raise ModelFailed(
                f"{label}: its model has other inputs or outputs than at the start of the pipeline; load it again"
            )
        return call

    async def _search(self, whole: Run, step: PlannedStep, read: Values, values: list[Any]) -> None:
        """Search the collection of a step. Without vectors it finds nothing."""
        started_s = time.perf_counter()
        whole.permit.begin()
        assert self._collections is not None, "the checker knew the collection"
        try:
            answer = await cast(SearchStep, step.work).search(self._collections, read, step.label)
        finally:
            _note(whole, step, started_s)
            whole.timings.computed(started_s, time.perf_counter())
        step.write(answer, values)

    async def _compute_on_thread(self, whole: Run, step: PlannedStep, read: Values, values: list[Any]) -> None:
        started_s = time.perf_counter()
        whole.permit.begin()
        loop = asyncio.get_running_loop()
        work = cast(BuiltinStep, step.work)
        try:
            answer = await loop.run_in_executor(self._threads, work.run, read)
        except RoundhouseError as error:
            raise self._named(step, error) from error
        finally:
            _note(whole, step, started_s)
            whole.timings.computed(started_s, time.perf_counter())
        step.write(answer, values)

    def _named(self, step: PlannedStep, error: RoundhouseError) -> RoundhouseError:
        """Return the error of a step with the name of the step."""
        if isinstance(error, FieldError):
            return InvalidInput(error.field, f"{error.reason} ({step.label})")
        error.rewrite(lambda message: f"{step.label}: {message}")
        return error


def _has_rows(read: Values) -> bool:
    """Whether each value has rows."""
    for value in read.values():
        if (value.ndim and not len(value)) if isinstance(value, np.ndarray) else not value:
            return False
    return True


def _is_long(read: Values) -> bool:
    """Whether a step would block the event loop for about a millisecond."""
    for value in read.values():
        if isinstance(value, np.ndarray):
            if value.size > _MANY_NUMBERS:
                return True
            if value.dtype.hasobject and sum(map(len, value.flat)) > _MANY_CHARACTERS:
                return True
    return False


def _note(whole: Run, step: PlannedStep, started_s: float) -> None:
    steps = whole.timings.steps
    assert steps is not None
    steps.append((step.name, started_s, time.perf_counter() - started_s))


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, an error of a step where there is one."""
    errors = list(group.exceptions)
    return next((each for each in errors if isinstance(each, RoundhouseError)), errors[0])
