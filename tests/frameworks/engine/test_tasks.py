"""Rows of one input of a task: few are queued at once; after an error or a cancellation the others do not run."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from frameworks.core.errors import ModelFailed
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.tasks import TaskService
from frameworks.engine.threads import EngineThreads
from frameworks.tasks.table import TASKS
from frameworks.tasks.types import TaskItem, TaskRequest
from frameworks.types import TASK_OUTPUT, TaskBatch
from tests.support.loops import in_loop, soon, task

REQUEST = TaskRequest([{"text": "a"}], {})


class Rows:
    """A pipeline of twenty rows that run alone, and the queue that has them."""

    def __init__(self) -> None:
        self.queued: list[asyncio.Future[Any]] = []
        self.threads = EngineThreads()

    def prepare(self, task_input: dict[str, Any], parameters: dict[str, Any]) -> list[TaskItem]:
        return [TaskItem(number, 1, None, 0) for number in range(20)]

    def finish(self, outputs: list[Any], parameters: dict[str, Any]) -> Any:
        return outputs

    def submit(self, batch: TaskBatch, *_: Any) -> asyncio.Future[Any]:
        self.queued.append(asyncio.get_running_loop().create_future())
        return self.queued[-1]

    def have(self, number: int) -> bool:
        """Whether so many rows have been queued."""
        return len(self.queued) == number

    async def begin(self) -> "asyncio.Task[Any]":
        """Start a request; return it when its first rows are queued."""
        model: Any = SimpleNamespace(spec=SimpleNamespace(pipeline=TASKS["fill-mask"]), pipeline=self)
        permit = SimpleNamespace(begin=lambda: None, tenant=None)
        run = cast("Run", SimpleNamespace(permit=permit, priority=3, timings=Timings()))
        answer = task(TaskService(model, self.submit, self.threads).answer(run, REQUEST))
        await soon(partial(self.have, 8))
        return answer


@in_loop
async def test_few_rows_queued_at_once() -> None:
    rows = Rows()
    answer = await rows.begin()
    for number in range(20):
        await soon(partial(rows.have, min(20, 8 + number)))
        rows.queued[number].set_result({TASK_OUTPUT: np.array([number], object)})
    assert (await answer).predictions == [list(range(20))]
    rows.threads.close()


@in_loop
async def test_rows_cancelled_after_error() -> None:
    rows = Rows()
    answer = await rows.begin()
    rows.queued[1].set_exception(ModelFailed("broken"))
    with pytest.raises(ModelFailed, match="broken"):
        await answer
    assert [each.cancelled() for each in rows.queued] == [True, False, *[True] * 6]
    rows.threads.close()


@in_loop
async def test_rows_cancelled_with_caller() -> None:
    rows = Rows()
    answer = await rows.begin()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert [each.cancelled() for each in rows.queued] == [True] * 8
    rows.threads.close()
