"""Run a step worker with an EchoModel, and read the tokens that it generates."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.generation.sequences import GeneratedToken, SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.device_clock import DeviceClock
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.token_feed import TokenFeed
from frameworks.scheduling.steps.worker import StepWorker
from tests.support.batch_models import Gate
from tests.support.loops import HANGS_AFTER_S, soon
from tests.support.step_models import END, EchoModel


class WorkerHarness:
    """A worker with one feed for each sequence."""

    def __init__(self, model: EchoModel) -> None:
        self.model = model
        self.counts = StepCounts()
        self.clock = DeviceClock()
        self.worker = StepWorker("m", model, self.counts, self.clock)
        self.begun: list[int] = []
        self._last_id = 0

    def open(
        self,
        prompt: str = "abc",
        max_tokens: int = 5,
        priority: int = 5,
        feed: TokenFeed | None = None,
        is_read_whole: bool = False,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> TokenFeed:
        self._last_id += 1
        sequence_id = self._last_id
        feed = feed or TokenFeed(lambda: self.begun.append(sequence_id))
        self.worker.open(sequence_request(sequence_id, prompt, max_tokens, priority, is_read_whole, tenant), feed)
        return feed


def sequence_request(
    sequence_id: int,
    prompt: str,
    max_tokens: int,
    priority: int = 5,
    is_read_whole: bool = False,
    tenant: Tenant = DEFAULT_TENANT,
) -> SequenceRequest:
    """Return a request that ends at an END byte, else at max_tokens."""
    return SequenceRequest(
        sequence_id,
        tuple(prompt.encode()),
        max_tokens,
        Sampling(),
        frozenset({END}),
        priority=priority,
        is_read_whole=is_read_whole,
        tenant=tenant,
    )


@asynccontextmanager
async def running_worker(model: EchoModel) -> AsyncIterator[WorkerHarness]:
    """Yield a worker; at the end check that its model holds no sequence, and close it."""
    harness = WorkerHarness(model)
    try:
        yield harness
        await soon(lambda: not harness.worker.is_running)
        assert not model.has_work
        harness.worker.check_integrity()
        assert not harness.clock.num_active, "a tenant without sequences is active"
    finally:
        await asyncio.wait_for(harness.worker.close(), 60)


async def read_all(feed: TokenFeed) -> list[GeneratedToken]:
    tokens = []
    async with asyncio.timeout(HANGS_AFTER_S):
        while arrived := await feed.read():
            tokens += [each.token for each in arrived]
    assert feed.is_over
    return tokens


def text_of(tokens: list[GeneratedToken]) -> bytes:
    return bytes(token.token_id for token in tokens)


async def wait_for_arrival(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.arrived.wait, HANGS_AFTER_S)
