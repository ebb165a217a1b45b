"""A language model and a batch model of different tenants share one device by weight."""

import asyncio
import time
from collections.abc import Callable

import pytest

from frameworks.core.tenants import Tenant
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.token_feed import TokenFeed
from frameworks.scheduling.steps.worker import StepWorker
from tests.frameworks.scheduling.batch.dispatching import RowModel, rows
from tests.frameworks.scheduling.steps.harness import read_all, sequence_request
from tests.support.loops import in_loop
from tests.support.step_models import EchoModel

CALLERS = 8
DEVICE_SECONDS = 1.2
_MOST_SECONDS = 8 * DEVICE_SECONDS


class Device:
    """A language model and a batch model on one clock. Steps take at least 0.5 ms, batches 2 ms."""

    def __init__(self, generating: Tenant, answering: Tenant) -> None:
        self.generating, self.answering = generating, answering
        shared = SharedDevice()
        self.steps, self.batches = StepCounts(), BatchCounts()
        model = RowModel(lambda _: time.sleep(0.002))
        self.step_worker = StepWorker("g", EchoModel(lambda _: time.sleep(0.0005)), self.steps, shared.clock)
        self.batch_worker = BatchWorker("b", model)
        self.dispatcher = Dispatcher("b", [self.batch_worker], model.spec, BatchLimits(4), 1.0, self.batches, shared)
        self._last_id = 0

    def seconds(self) -> tuple[float, float]:
        """Return the device seconds of the generating and of the answering tenant."""
        steps, batches = self.steps.steps.tenant_seconds, self.batches.tenant_seconds
        return steps[self.generating.name], batches[self.answering.name]

    async def generate(self, until: Callable[[], bool]) -> None:
        while not until():
            self._last_id += 1
            feed = TokenFeed(lambda: None)
            self.step_worker.open(sequence_request(self._last_id, "abc", 20, tenant=self.generating), feed)
            await read_all(feed)

    async def answer(self, until: Callable[[], bool]) -> None:
        while not until():
            await self.dispatcher.submit(rows(1), tenant=self.answering)

    async def close(self) -> None:
        await self.step_worker.close()
        await self.batch_worker.close()


@in_loop
@pytest.mark.parametrize(("generating", "answering"), [(1.0, 3.0), (3.0, 1.0), (1.0, 1.0)])
async def test_device_seconds_follow_weights(generating: float, answering: float) -> None:
    """A busy machine makes single runs long. The runs after those make up for it, so the shares may take a while."""
    device = Device(Tenant("generating", generating), Tenant("answering", answering))
    seen: list[tuple[float, float]] = []
    weights = pytest.approx(generating / answering, rel=0.2)

    def is_over() -> bool:
        steps_s, batches_s = device.seconds()
        total_s = steps_s + batches_s
        is_shared = total_s >= DEVICE_SECONDS and steps_s / batches_s == weights
        if not seen and (is_shared or total_s >= _MOST_SECONDS):
            seen.append((steps_s, batches_s))
        return bool(seen)

    try:
        await asyncio.gather(*(load(is_over) for load in (device.generate, device.answer) for _ in range(CALLERS)))
    finally:
        await device.close()
    assert seen[0][0] / seen[0][1] == weights
