"""Light runs of a caller that does not wait: at once where nothing else uses the model, else by the queue."""

import asyncio
from typing import Any

import numpy as np
import pytest

from frameworks.core.errors import InvalidInput
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from tests.frameworks.scheduling.batch.dispatching import (
    BAD,
    LOOP_THREAD,
    Harness,
    RowModel,
    answers_of,
    rows,
    running_dispatcher,
)
from tests.support.loops import in_loop


def now(harness: Harness, *x: int, timings: Timings | None = None, tenant: Tenant = DEFAULT_TENANT) -> Any:
    outputs = harness.dispatcher.compute_now(rows(*x), timings or Timings(), tenant)
    return None if outputs is None else (np.asarray(outputs["y"])[:, 0] // 2).tolist()


async def alone(harness: Harness) -> None:
    """Let one light request run alone in a round of the loop."""
    harness.allow_inline()
    await harness.send(0)
    await asyncio.sleep(0)


class TestComputeNow:
    @in_loop
    async def test_light_batch_runs_at_once(self) -> None:
        model, timings = RowModel(), Timings()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            await alone(harness)
            assert now(harness, 3, 4, timings=timings, tenant=Tenant("a")) == [3, 4]
            assert harness.dispatcher._counts.tenant_seconds["a"] > 0
        assert (model.executed, model.threads[-1]) == ([[0], [3, 4]], LOOP_THREAD)
        assert harness.batch_sizes == {1: 1, 2: 1}
        assert timings.batch_rows == 2
        assert timings.compute_s > 0

    @in_loop
    async def test_second_batch_of_round_is_queued(self) -> None:
        async with running_dispatcher(RowModel(), runs_by_shape=True) as harness:
            await alone(harness)
            assert now(harness, 1) == [1]
            assert now(harness, 2) is None
            await asyncio.sleep(0)
            assert now(harness, 3) == [3]

    @in_loop
    async def test_requests_of_round_share_a_batch(self) -> None:
        """After a round with several requests the next ones are collected."""
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            await alone(harness)
            await answers_of(harness.send(1), harness.send(2))
            assert now(harness, 3) is None
            await answers_of(harness.send(3), harness.send(4))
        assert model.executed[-1] == [3, 4]

    @in_loop
    async def test_unmeasured_shape_is_queued(self) -> None:
        async with running_dispatcher(RowModel(), runs_by_shape=True) as harness:
            assert now(harness, 1) is None
            await alone(harness)
            assert harness.dispatcher.compute_now(rows(1, width=2), Timings(), DEFAULT_TENANT) is None
            assert now(harness, 1) == [1]

    @in_loop
    async def test_error_of_model_is_raised(self) -> None:
        async with running_dispatcher(RowModel(), runs_by_shape=True) as harness:
            await alone(harness)
            with pytest.raises(InvalidInput):
                now(harness, BAD)
            await asyncio.sleep(0)
            assert now(harness, 1) == [1]

    @in_loop
    async def test_batch_beyond_memory_is_queued(self) -> None:
        """The queue splits it."""
        model = RowModel(limit=lambda: 2)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            await alone(harness)
            assert now(harness, 1, 2, 3, 4) is None
            assert await harness.send(1, 2, 3, 4) == [1, 2, 3, 4]

    @in_loop
    async def test_unloaded_model_runs_nothing(self) -> None:
        async with running_dispatcher(RowModel(), runs_by_shape=True) as harness:
            await alone(harness)
            harness.dispatcher.end_requests()
            assert now(harness, 1) is None
