"""The predictions of a task's inputs, each by a request of its own: at once, or one by one for a stream."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from frameworks.core.errors import DeadlineExceeded, InvalidInput
from frameworks.engine.tasks import at_once, at_position
from frameworks.generation.types import Usage
from frameworks.tasks.types import TaskAnswer, TaskRequest
from frameworks.types import ModelSpec


def has_long_answers(spec: ModelSpec | None) -> bool:
    """Whether the predictions of several inputs may be too long for one message of a process, as sounds are."""
    return spec is not None and spec.pipeline is not None and spec.pipeline.max_inputs is not None


async def predict_each(run: Callable[[TaskRequest], Awaitable[Any]], request: TaskRequest) -> TaskAnswer:
    """Return the predictions in order. Raises what `run` raises; InvalidInput under the position of its input."""
    count = len(request.inputs)
    predictions: list[Any] = [None] * count
    positions = iter(range(count))

    async def predict_some() -> None:
        for position in positions:
            try:
                answer = await run(replace(request, inputs=[request.inputs[position]]))
            except InvalidInput as error:
                raise at_position(error, position, count) from None
            predictions[position] = answer.predictions[0]

    await at_once(predict_some, count)
    return TaskAnswer(predictions)


class PredictionStream:
    """Predict the inputs one after the other: the next when the last prediction is sent.

    Iterate once, by `async for`. Raises what `run` raises, and DeadlineExceeded.
    """

    def __init__(
        self, run: Callable[[TaskRequest], Awaitable[Any]], request: TaskRequest, left_s: float | None
    ) -> None:
        """`run`: answers a request. `left_s`: seconds until the deadline, None without one."""
        self._run = run
        self._request = request
        self._inputs = iter(request.inputs)
        now_s = asyncio.get_running_loop().time()
        self.deadline_s = None if left_s is None else now_s + left_s
        """The time of the loop at which the response ends, read or not; None: it has no deadline."""
        self.usage = Usage(0, 0)
        """Nothing is counted."""

    def __aiter__(self) -> "PredictionStream":
        return self

    async def __anext__(self) -> Any:
        """Return the next prediction, as JSON values."""
        task_input = next(self._inputs, None)
        if task_input is None:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout_at(self.deadline_s):
                answer = await self._run(replace(self._request, inputs=[task_input]))
        except TimeoutError:
            raise DeadlineExceeded(
                "the model did not answer within timeout_ms; allow more time or ask for less at once"
            ) from None
        assert isinstance(answer, TaskAnswer)
        return answer.predictions[0]

    def ready(self) -> list[Any]:
        """Return none: a prediction is computed when it is asked for."""
        return []
