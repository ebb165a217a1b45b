"""Run the steps of a pipeline for one request: models and collections by their queues, slow steps on threads.

Branches run in parallel.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, cast

import numpy as np

from frameworks.collections.contract import NamedCollections
from frameworks.engine.contract import EngineRequest, Run
from frameworks.errors import FieldError, InvalidInput, ModelFailed, RoundhouseError
from frameworks.pipelines.checker import Typed
from frameworks.pipelines.kinds import Values
from frameworks.pipelines.kinds import cast as cast_kind
from frameworks.pipelines.model_calls import ModelCall, empty_values, make_call
from frameworks.pipelines.plan import Plan, PlannedStep
from frameworks.pipelines.searches import SearchStep
from frameworks.pipelines.steps.contract import BuiltinStep, StepFault
from frameworks.types import ModelSpec, StepTiming, Timings

_MANY_NUMBERS = 16 * 1024
_MANY_CHARACTERS = 64 * 1024


class Parts(Protocol):
    """Answers requests to models as parts of another request."""

    def answer(
        self,
        whole: Run,
        name: str,
        make: Callable[[ModelSpec], EngineRequest],
        step: str,
        timings: Timings | None = None,
    ) -> Awaitable[Any]:
        """As SubRequests.answer of frameworks/models."""
        ...


class Runner:
    """Runs the plan of one pipeline. Owned by the event loop."""

    def __init__(
        self,
        typed: Typed,
        plan: Plan,
        parts: Parts,
        threads: ThreadPoolExecutor,
        collections: NamedCollections | None = None,
    ) -> None:
        """`threads`: for the steps that are slow. `collections`: those that steps search."""
        self._plan = plan
        self._parts = parts
        self._threads = threads
        self._collections = collections
        self._entries = typed.graph.steps
        self._labels = {step.name: f'step "{step.name}"' for step in plan.steps}
        self._calls: dict[str, ModelCall] = {
            step.name: step.work for step in plan.steps if isinstance(step.work, ModelCall)
        }
        """By step: how its model is called, with the spec of the last request."""

    async def run(self, whole: Run, values: list[Any]) -> None:
        """Compute the values of all steps from those of the inputs, in place.

        Raises the first error of a step, with its name; the other steps are cancelled.
        """
        if self._plan.is_serial:
            for step in self._plan.steps:
                read = _read(step, values)
                if step.is_call:
                    await self._call(whole, step, read, values)
                elif step.is_search:
                    await self._search(whole, step, read, values)
                elif step.is_slow or _is_long(read):
                    await self._compute_on_thread(whole, step, read, values)
                else:
                    self._compute(whole, step, read, values)
            return
        try:
            await self._run_parallel(whole, values)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None

    async def _run_parallel(self, whole: Run, values: list[Any]) -> None:
        missing = [step.num_sources for step in self._plan.steps]

        async def wait_for(step: PlannedStep, read: Values) -> None:
            run = self._call if step.is_call else self._search if step.is_search else self._compute_on_thread
            await run(whole, step, read, values)
            finish(step)

        def start(step: PlannedStep) -> None:
            read = _read(step, values)
            if step.is_call or step.is_search or step.is_slow or _is_long(read):
                tasks.create_task(wait_for(step, read))
            else:
                self._compute(whole, step, read, values)
                finish(step)

        def finish(step: PlannedStep) -> None:
            for reader in step.readers:
                missing[reader.position] -= 1
                if not missing[reader.position]:
                    start(reader)

        async with asyncio.TaskGroup() as tasks:
            for step in self._plan.steps:
                if not step.num_sources:
                    start(step)

    async def _call(self, whole: Run, step: PlannedStep, read: Values, values: list[Any]) -> None:
        """Run the model of a step, unless it has no rows."""
        started_s = time.perf_counter()
        call = self._calls[step.name]
        if any(map(_is_empty, read.values())):
            _write(step, empty_values(call.outputs), values)
            return
        timings = Timings(started_s=started_s, trace=whole.timings.trace)

        def make(spec: ModelSpec) -> EngineRequest:
            nonlocal call
            if spec is not call.spec:
                call = self._calls[step.name] = self._call_for(step, spec)
            return call.request(read)

        try:
            answer = await self._parts.answer(whole, step.model, make, self._labels[step.name], timings)
        finally:
            all_timings = whole.timings
            all_timings.queue_s += timings.queue_s
            all_timings.compute_s += timings.compute_s
            all_timings.decode_s += timings.decode_s
            all_timings.batch_rows = max(all_timings.batch_rows, timings.batch_rows)
            _note(whole, step, started_s)
        _write(step, call.read(read, answer), values)

    def _call_for(self, step: PlannedStep, spec: ModelSpec) -> ModelCall:
        """Return how a step calls another version of its model, or its next load. Raises ModelFailed."""
        known = cast(ModelCall, step.work)
        label = self._labels[step.name]
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
            answer = await cast(SearchStep, step.work).search(self._collections, read, self._labels[step.name])
        finally:
            _note(whole, step, started_s)
            whole.timings.compute_s += time.perf_counter() - started_s
        _write(step, answer, values)

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
            whole.timings.compute_s += time.perf_counter() - started_s
        _write(step, answer, values)

    def _compute(self, whole: Run, step: PlannedStep, read: Values, values: list[Any]) -> None:
        started_s = time.perf_counter()
        try:
            answer = cast(BuiltinStep, step.work).run(read)
        except RoundhouseError as error:
            raise self._named(step, error) from error
        _write(step, answer, values)
        _note(whole, step, started_s)

    def _named(self, step: PlannedStep, error: RoundhouseError) -> RoundhouseError:
        """Return the error of a step with the name of the step."""
        if isinstance(error, FieldError):
            return InvalidInput(error.field, f"{error.reason} ({self._labels[step.name]})")
        error.message = f"{self._labels[step.name]}: {error.message}"
        return error


def _read(step: PlannedStep, values: list[Any]) -> Values:
    return {name: cast_kind(values[position], kind) for name, position, kind in step.inputs}


def _is_empty(value: Any) -> bool:
    """Whether a value has no rows."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and not len(value)
    return not value


def _is_long(read: Values) -> bool:
    """Whether a step would block the event loop for about a millisecond."""
    for value in read.values():
        if isinstance(value, np.ndarray):
            if value.size > _MANY_NUMBERS:
                return True
            if value.dtype.hasobject and sum(map(len, value.flat)) > _MANY_CHARACTERS:
                return True
    return False


def _write(step: PlannedStep, answer: Values, values: list[Any]) -> None:
    for name, position in step.outputs:
        values[position] = answer[name]


def _note(whole: Run, step: PlannedStep, started_s: float) -> None:
    steps = whole.timings.steps
    assert steps is not None
    steps.append(StepTiming(step.name, started_s, time.perf_counter() - started_s))


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, an error of a step where there is one."""
    errors = list(group.exceptions)
    return next((each for each in errors if isinstance(each, RoundhouseError)), errors[0])
