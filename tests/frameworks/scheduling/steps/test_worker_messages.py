"""When a step worker is told: at once where somebody waits for single tokens, else of several steps together."""

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
from tests.frameworks.scheduling.steps.stepping import House, arrival, house_of, text_of
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon
from tests.support.step_models import EchoModel, echo

STEP_S = 0.001


def slow(prompts: list[str]) -> None:
    if prompts:
        time.sleep(STEP_S)


async def arrivals(feed: TokenFeed) -> list[list[ArrivedToken]]:
    """What each look into the feed found."""
    found = []
    while arrived := await feed.read():
        found.append(arrived)
    return found


@pytest.fixture(autouse=True)
def long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the steps here is told because time has passed."""
    monkeypatch.setattr(worker_module, "_MAX_DELIVERY_DELAY_S", 60.0)


@in_loop
async def test_a_text_that_is_read_whole_comes_with_its_beginning_and_its_end() -> None:
    async with house_of(EchoModel(slow)) as house:
        looks = await arrivals(house.open("abc", 50, is_read_whole=True))
        assert [len(look) for look in looks] == [1, 49]
        assert text_of([each.token for look in looks for each in look]) == echo("abc", 50)
        times = [each.arrived_s for look in looks for each in look]
        # Each has the time of its own step.
        assert all(later - earlier >= STEP_S for earlier, later in pairwise(times))


@in_loop
async def test_who_reads_in_pieces_hears_of_every_step_whoever_is_beside() -> None:
    async with house_of(EchoModel(slow)) as house:
        whole = asyncio.ensure_future(arrivals(house.open("xyz", 60, is_read_whole=True)))
        looks = await arrivals(house.open("abc", 40))
        assert text_of([each.token for look in looks for each in look]) == echo("abc", 40)
        # More only where the loop was late.
        assert len(looks) > 20
        assert text_of([each.token for look in await whole for each in look]) == echo("xyz", 60)


@in_loop
async def test_after_some_time_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_MAX_DELIVERY_DELAY_S", 5 * STEP_S)
    async with house_of(EchoModel(slow)) as house:
        looks = await arrivals(house.open("abc", 100, is_read_whole=True))
        assert 3 <= len(looks) <= 22
        assert sum(map(len, looks)) == 100


@in_loop
async def test_what_was_computed_before_a_step_failed_comes_before_the_error() -> None:
    steps = 0

    def fails_at_ten(prompts: list[str]) -> None:
        nonlocal steps
        steps += bool(prompts)
        if prompts and steps == 10:
            raise OutOfMemory("no room")

    async with house_of(EchoModel(fails_at_ten)) as house:
        feed = house.open("abc", 50, is_read_whole=True)
        read: list[ArrivedToken] = []
        while len(read) < 9:
            read += await feed.read()
        with pytest.raises(OutOfMemory, match="no room"):
            await feed.read()
        assert text_of([each.token for each in read]) == echo("abc", 9)
        assert house.counts.tokens == 9


@in_loop
async def test_when_the_last_is_let_go_nothing_that_was_counted_is_lost() -> None:
    gate = Gate()
    async with house_of(EchoModel(gate)) as house:
        feed = house.open("abc", 1000, is_read_whole=True)
        await arrival(gate)
        gate.open()
        await feed.read()
        await soon(lambda: len(house.model.steps) > 20)
        feed.close()
        await soon(lambda: not house.worker.is_running)
        assert house.counts.tokens == len(house.model.steps)
        assert house.worker.stats.running == 0


@in_loop
async def test_nothing_is_lost_where_the_lane_ends_with_texts_untold() -> None:
    told: list[int] = []
    stepped = StepWorker._deliver

    def listening(worker: StepWorker, steps: Iterable[CompletedStep]) -> None:
        steps = list(steps)
        told.append(len(steps))
        stepped(worker, steps)

    with patch.object(StepWorker, "_deliver", listening):
        house = House(EchoModel(slow))
        feed = house.open("abc", 1000, is_read_whole=True)
        await feed.read()
        feed.close()
        await asyncio.wait_for(house.worker.close(), 5)
    assert sum(told) == len(house.model.steps) + house.model.empty_steps
    assert house.counts.tokens == len(house.model.steps)
