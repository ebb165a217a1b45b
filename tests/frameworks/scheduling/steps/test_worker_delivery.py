"""Test when tokens are delivered: at once to streaming readers, else several steps together."""

import asyncio
import time
from collections.abc import Iterable
from itertools import pairwise
from unittest.mock import patch

import pytest

from frameworks.errors import OutOfMemory
from frameworks.scheduling.steps import worker as worker_module
from frameworks.scheduling.steps.token_feed import ArrivedToken, TokenFeed
from frameworks.scheduling.steps.worker import CompletedStep, StepWorker
from tests.frameworks.scheduling.steps.harness import WorkerHarness, running_worker, text_of, wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon
from tests.support.step_models import EchoModel, echo

STEP_S = 0.001


def slow(prompts: list[str]) -> None:
    if prompts:
        time.sleep(STEP_S)


async def arrivals(feed: TokenFeed) -> list[list[ArrivedToken]]:
    """Return the tokens of each read of the feed."""
    found = []
    while arrived := await feed.read():
        found.append(arrived)
    return found


@pytest.fixture(autouse=True)
def long_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the delivery after the maximum delay."""
    monkeypatch.setattr(worker_module, "_MAX_DELIVERY_DELAY_S", 60.0)


@in_loop
async def test_whole_text_is_delivered_at_begin_and_end() -> None:
    async with running_worker(EchoModel(slow)) as harness:
        reads = await arrivals(harness.open("abc", 50, is_read_whole=True))
        assert [len(read) for read in reads] == [1, 49]
        assert text_of([each.token for read in reads for each in read]) == echo("abc", 50)
        times = [each.arrived_s for read in reads for each in read]
        # Each token has the time of its own step.
        assert all(later - earlier >= STEP_S for earlier, later in pairwise(times))


@in_loop
async def test_streaming_reader_gets_every_step() -> None:
    async with running_worker(EchoModel(slow)) as harness:
        whole = asyncio.ensure_future(arrivals(harness.open("xyz", 60, is_read_whole=True)))
        reads = await arrivals(harness.open("abc", 40))
        assert text_of([each.token for read in reads for each in read]) == echo("abc", 40)
        # Fewer reads than tokens only where the loop was late.
        assert len(reads) > 20
        assert text_of([each.token for read in await whole for each in read]) == echo("xyz", 60)


@in_loop
async def test_buffered_tokens_are_delivered_after_maximum_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_MAX_DELIVERY_DELAY_S", 5 * STEP_S)
    async with running_worker(EchoModel(slow)) as harness:
        reads = await arrivals(harness.open("abc", 100, is_read_whole=True))
        assert 3 <= len(reads) <= 22
        assert sum(map(len, reads)) == 100


@in_loop
async def test_tokens_before_failed_step_precede_error() -> None:
    steps = 0

    def fails_at_ten(prompts: list[str]) -> None:
        nonlocal steps
        steps += bool(prompts)
        if prompts and steps == 10:
            raise OutOfMemory("no room")

    async with running_worker(EchoModel(fails_at_ten)) as harness:
        feed = harness.open("abc", 50, is_read_whole=True)
        read: list[ArrivedToken] = []
        while len(read) < 9:
            read += await feed.read()
        with pytest.raises(OutOfMemory, match="no room"):
            await feed.read()
        assert text_of([each.token for each in read]) == echo("abc", 9)
        assert harness.counts.tokens == 9


@in_loop
async def test_abort_of_last_sequence_keeps_counts() -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate)) as harness:
        feed = harness.open("abc", 1000, is_read_whole=True)
        await wait_for_arrival(gate)
        gate.open()
        await feed.read()
        await soon(lambda: len(harness.model.steps) > 20)
        feed.close()
        await soon(lambda: not harness.worker.is_running)
        assert harness.counts.tokens == len(harness.model.steps)
        assert harness.worker.stats.running == 0


@in_loop
async def test_close_delivers_buffered_steps() -> None:
    delivered: list[int] = []
    deliver = StepWorker._deliver

    def recording(worker: StepWorker, steps: Iterable[CompletedStep]) -> None:
        steps = list(steps)
        delivered.append(len(steps))
        deliver(worker, steps)

    with patch.object(StepWorker, "_deliver", recording):
        harness = WorkerHarness(EchoModel(slow))
        feed = harness.open("abc", 1000, is_read_whole=True)
        await feed.read()
        feed.close()
        await asyncio.wait_for(harness.worker.close(), 60)
    assert sum(delivered) == len(harness.model.steps) + harness.model.empty_steps
    assert harness.counts.tokens == len(harness.model.steps)
