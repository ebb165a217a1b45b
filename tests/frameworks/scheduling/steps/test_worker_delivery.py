"""Test when tokens are delivered: at once to streaming readers, else several steps together."""

import asyncio
import time
from collections.abc import Iterable
from itertools import pairwise

import pytest

from frameworks.core.errors import OutOfMemory
from frameworks.scheduling.steps import worker as worker_module
from frameworks.scheduling.steps.token_feed import ArrivedToken, TokenFeed
from frameworks.scheduling.steps.worker import CompletedStep, StepWorker
from tests.frameworks.scheduling.steps.harness import WorkerHarness, running_worker, text_of, wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.step_models import EchoModel, StepGate, echo

STEP_S = 0.001


def slow(prompts: list[str]) -> None:
    if prompts:
        time.sleep(STEP_S)


class Ticks:
    """The clock of a worker: each step with sequences takes a second."""

    def __init__(self) -> None:
        self.now_s = 0

    def perf_counter(self) -> float:
        return self.now_s

    def tick(self, prompts: list[str]) -> None:
        self.now_s += bool(prompts)


async def arrivals(feed: TokenFeed) -> list[ArrivedToken]:
    """Read the feed to its end."""
    found: list[ArrivedToken] = []
    while arrived := await feed.read():
        found += arrived
    return found


@pytest.fixture(autouse=True)
def long_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the delivery after the maximum delay."""
    monkeypatch.setattr(worker_module, "_MAX_DELIVERY_DELAY_S", 60.0)


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> list[list[CompletedStep]]:
    """The steps of each delivery. A loop that is late may find several deliveries, but they remain separate."""
    found: list[list[CompletedStep]] = []
    deliver = StepWorker._deliver

    def recording(worker: StepWorker, steps: Iterable[CompletedStep]) -> None:
        found.append(list(steps))
        deliver(worker, found[-1])

    monkeypatch.setattr(StepWorker, "_deliver", recording)
    return found


def num_tokens(delivered: list[list[CompletedStep]]) -> list[int]:
    """Return the number of tokens of each delivery that has some."""
    counts = [sum(len(step.result.tokens) for step in steps) for steps in delivered]
    return [count for count in counts if count]


@in_loop
async def test_whole_text_is_delivered_at_begin_and_end(delivered: list[list[CompletedStep]]) -> None:
    async with running_worker(EchoModel(slow)) as harness:
        read = await arrivals(harness.open("abc", 50, is_read_whole=True))
        assert num_tokens(delivered) == [1, 49]
        assert text_of([each.token for each in read]) == echo("abc", 50)
        times = [each.arrived_s for each in read]
        # Each token has the time of its own step.
        assert all(later - earlier >= STEP_S for earlier, later in pairwise(times))


@in_loop
async def test_streaming_reader_gets_every_step(delivered: list[list[CompletedStep]]) -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate)) as harness:
        whole = task(arrivals(harness.open("xyz", 60, is_read_whole=True)))
        await wait_for_arrival(gate)
        streamed = harness.open("abc", 40)
        gate.open()
        assert text_of([each.token for each in await arrivals(streamed)]) == echo("abc", 40)
        assert text_of([each.token for each in await whole]) == echo("xyz", 60)
        # The other's first token, the steps of both, and the rest of the other.
        assert num_tokens(delivered) == [1] + [2] * 40 + [19]


@in_loop
async def test_buffered_tokens_are_delivered_after_maximum_delay(
    monkeypatch: pytest.MonkeyPatch, delivered: list[list[CompletedStep]]
) -> None:
    monkeypatch.setattr(worker_module, "_MAX_DELIVERY_DELAY_S", 5)
    monkeypatch.setattr(worker_module, "time", clock := Ticks())
    async with running_worker(EchoModel(clock.tick)) as harness:
        assert len(await arrivals(harness.open("abc", 100, is_read_whole=True))) == 100
        # The step after the delay delivers those before it.
        assert num_tokens(delivered) == [1] + [7] * 14 + [1]


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
    gate = StepGate(30)
    async with running_worker(EchoModel(gate)) as harness:
        feed = harness.open("abc", 1000, is_read_whole=True)
        await feed.read()
        await soon(lambda: len(harness.model.steps) > 20)
        feed.close()
        gate.open()
        await soon(lambda: not harness.worker.is_running)
        assert harness.counts.tokens == len(harness.model.steps)
        assert harness.worker.stats.running == 0


@in_loop
async def test_close_delivers_buffered_steps(delivered: list[list[CompletedStep]]) -> None:
    harness = WorkerHarness(EchoModel(slow))
    feed = harness.open("abc", 1000, is_read_whole=True)
    await feed.read()
    feed.close()
    await asyncio.wait_for(harness.worker.close(), 60)
    assert sum(map(len, delivered)) == len(harness.model.steps) + harness.model.empty_steps
    assert harness.counts.tokens == len(harness.model.steps)
