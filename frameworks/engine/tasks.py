"""Requests of tasks: inputs to rows of a model, rows to the predictions of transformers' pipeline."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.threads import EngineThreads
from frameworks.runtime import BatchModel, StepModel
from frameworks.scheduling.batch.request import Outputs
from frameworks.tasks.types import TaskAnswer, TaskItem, TaskPipeline, TaskRequest
from frameworks.types import TASK_OUTPUT, TaskBatch

Submit = Callable[[TaskBatch, int, Callable[[], None], Timings, Tenant], Awaitable[Outputs]]

_MAX_AT_ONCE = 8
"""Inputs of one request that are prepared, queued or finished at once: their tensors are in memory together.

Also the batches of one input that are queued at once."""


class TaskService:
    """Answer the requests for one model with a TaskSpec. Owned by the event loop.

    Adds to the timings of the run; raises as Engine.answer.
    """

    def __init__(self, model: BatchModel | StepModel, submit: Submit, threads: EngineThreads) -> None:
        """`submit`: queues rows, as Dispatcher.submit. `threads`: prepare inputs, and finish predictions."""
        self._model = model
        self._submit = submit
        self._threads = threads
        # Of the inputs so far: what the next one will take.
        self._input_bytes = 0

    async def answer(self, run: Run, request: TaskRequest) -> TaskAnswer:
        """Return the prediction of each input, in order.

        Raises InvalidInput; its field is `inputs[2]`, or one of its members, for one of several inputs.
        """
        spec = self._model.spec.pipeline
        pipeline: TaskPipeline | None = getattr(self._model, "pipeline", None)
        if spec is None or pipeline is None:
            raise InvalidInput(
                "parameters", f"expected none for a model of task {self._model.spec.task}; leave the field out"
            )
        if len(request.inputs) == 1:
            return TaskAnswer([await self._predict(run, pipeline, request, 0)])
        positions = iter(range(len(request.inputs)))
        predictions: list[Any] = [None] * len(request.inputs)

        async def predict_some() -> None:
            for position in positions:
                predictions[position] = await self._predict(run, pipeline, request, position)

        await at_once(predict_some, len(predictions))
        return TaskAnswer(predictions)

    async def _predict(self, run: Run, pipeline: TaskPipeline, request: TaskRequest, position: int) -> Any:
        task_input, parameters = request.inputs[position], request.parameters
        held_bytes, memory = self._input_bytes, self._threads.images.memory
        if not memory.try_hold(held_bytes):
            arrived_s = time.perf_counter()
            await memory.hold(held_bytes)
            run.timings.queued(arrived_s, time.perf_counter())
        try:
            begun_s = time.perf_counter()
            try:
                items = await self._threads.run_task(_size_of(task_input), pipeline.prepare, task_input, parameters)
            except InvalidInput as error:
                raise at_position(error, position, len(request.inputs)) from None
            finally:
                run.timings.decoded(begun_s, time.perf_counter())
            self._input_bytes = max(self._input_bytes, sum(item.nbytes for item in items))
            outputs = await self._outputs_of(run, items)
            del items
            return await self._threads.run_task(_size_of(task_input), pipeline.finish, outputs, parameters)
        finally:
            memory.release(held_bytes)

    async def _outputs_of(self, run: Run, items: list[TaskItem]) -> list[Any]:
        """Return the outputs of the rows of one input, in order."""
        return await run_items(run, self._submit, items)


async def run_items(run: Run, submit: Submit, items: Sequence[TaskItem]) -> list[Any]:
    """Run the items, those of each shape together; return their outputs in order."""
    groups: dict[Hashable, list[int]] = {}
    for position, item in enumerate(items):
        groups.setdefault(position if item.shape is None else (item.shape,), []).append(position)
    outputs: list[Any] = [None] * len(items)
    left = iter(groups.values())

    async def run_some() -> None:
        permit = run.permit
        for group in left:
            batch = TaskBatch([items[position] for position in group])
            result = await submit(batch, run.priority, permit.begin, run.timings, permit.tenant)
            rows = result[TASK_OUTPUT]
            assert isinstance(rows, np.ndarray)
            for position, output in zip(group, rows, strict=True):
                outputs[position] = output

    # An input may have thousands of items that run alone: other requests are queued between them.
    await at_once(run_some, len(groups))
    return outputs


async def at_once(work: Callable[[], Coroutine[Any, Any, None]], count: int) -> None:
    """Run `work` up to `_MAX_AT_ONCE` times at once. Raises the first error; the others are cancelled."""
    if count == 1:
        return await work()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_MAX_AT_ONCE, count)):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return None


def _size_of(task_input: dict[str, Any]) -> int | None:
    """Return the size of the texts of an input in characters; None for an input with a file."""
    size = 0
    for value in task_input.values():
        if isinstance(value, bytes):
            return None
        size += len(value) if isinstance(value, str) else len(str(value))
    return size


def at_position(error: InvalidInput, position: int, count: int) -> InvalidInput:
    """Return the error of one input under its position, if there are several inputs."""
    if count == 1 or error.field.startswith("parameters"):
        return error
    name, dot, rest = error.field.partition(".")
    return InvalidInput(f"{name}[{position}]{dot}{rest}", error.reason)
