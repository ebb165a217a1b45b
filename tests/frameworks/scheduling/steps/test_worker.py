"""One generating model on one thread: who joins, who leaves, who reads too slowly, and what is told of it."""

import asyncio
import time
from itertools import chain

import pytest

from frameworks.errors import Overloaded
from frameworks.scheduling.steps import token_feed
from frameworks.scheduling.steps.token_feed import TokenFeed
from frameworks.scheduling.steps.worker import StepCounts
from tests.frameworks.scheduling.steps.stepping import arrival, house_of, read_all, text_of
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.step_models import CONTEXT, KV_BYTES_PER_TOKEN, EchoModel, echo


@in_loop
async def test_sequences_share_steps_and_each_reader_gets_its_own() -> None:
    prompts = [f"prompt {i}" for i in range(10)]
    async with house_of(EchoModel()) as house:
        feeds = [house.open(prompt, 5 + i) for i, prompt in enumerate(prompts)]
        texts = await asyncio.gather(*map(read_all, feeds))
        assert [text_of(tokens) for tokens in texts] == [echo(prompt, 5 + i) for i, prompt in enumerate(prompts)]
        assert {tokens[-1].finish_reason for tokens in texts} == {"length"}
        assert max(map(len, house.model.steps)) == 4
        assert sorted(house.begun) == list(range(1, 11))


@in_loop
async def test_one_that_comes_later_joins_the_next_step() -> None:
    gate = Gate()
    async with house_of(EchoModel(gate)) as house:
        first = house.open("abc")
        await arrival(gate)
        second = house.open("xyz")
        gate.open()
        assert text_of(await read_all(first)) == b"abcab"
        assert text_of(await read_all(second)) == b"xyzxy"
        assert house.model.steps == [[1], [1, 2], [1, 2], [1, 2], [1, 2], [2]]


@in_loop
async def test_without_work_the_thread_sleeps() -> None:
    async with house_of(EchoModel()) as house:
        await asyncio.sleep(0.05)
        assert (house.model.steps, house.model.empty_steps) == ([], 1)
        assert len(await read_all(house.open())) == 5
        await asyncio.sleep(0.05)
        assert (len(house.model.steps), house.model.empty_steps) == (5, 1)
        assert not house.worker.is_running


@in_loop
async def test_one_that_is_let_go_leaves_within_a_step_and_harms_nobody() -> None:
    gate = Gate()
    async with house_of(EchoModel(gate)) as house:
        gone, stays = house.open("abc", 1000), house.open("xyz")
        await arrival(gate)
        gone.close()
        assert house.worker.num_sequences == 1
        gate.open()
        assert text_of(await read_all(stays)) == b"xyzxy"
        assert house.model.steps[0] == [1, 2]
        assert house.model.steps[1] == [2]
        assert await read_all(gone) == []
        assert house.counts.tokens == 6


@in_loop
async def test_after_the_last_was_let_go_the_figures_are_those_of_nobody() -> None:
    slow = EchoModel(lambda _: time.sleep(0.002))
    async with house_of(slow) as house:
        feed = house.open("abcd", 1000)
        await feed.read()
        assert house.worker.is_running
        assert house.worker.stats.running == 1
        assert house.worker.stats.kv_used_bytes >= 5 * KV_BYTES_PER_TOKEN
        feed.close()
        await soon(lambda: not house.worker.is_running)
        assert (house.worker.stats.running, house.worker.stats.kv_used_bytes) == (0, 0)
        assert house.model.empty_steps == 2


@in_loop
async def test_a_lane_says_how_its_model_stands_before_anybody_asks_it_something() -> None:
    async with house_of(EchoModel(slots=2)) as house:
        await soon(lambda: house.worker.stats.kv_total_bytes == 2 * CONTEXT * KV_BYTES_PER_TOKEN)


@in_loop
async def test_one_that_waits_is_let_go_before_it_begins() -> None:
    gate = Gate()
    async with house_of(EchoModel(gate, slots=1)) as house:
        first, waiting = house.open("abc"), house.open("xyz")
        await arrival(gate)
        waiting.close()
        gate.open()
        await read_all(first)
        assert house.begun == [1]
        assert {i for step in house.model.steps for i in step} == {1}


@in_loop
async def test_a_reader_is_woken_once_a_step_at_most_and_gets_all_of_it() -> None:
    async with house_of(EchoModel(lambda _: time.sleep(0.001))) as house:
        feed = TokenFeed(lambda: None)
        for _ in range(4):
            house.open("abc", 50, feed=feed)
        reads = []
        while arrived := await feed.read():
            reads.append([each.token.sequence_id for each in arrived])
        assert len(reads) <= len(house.model.steps)
        assert sum(map(len, reads)) == 200
        # In order of arrival, not one sequence after the other.
        assert sorted(list(chain(*reads))[:4]) == [1, 2, 3, 4]


@in_loop
async def test_a_feed_ends_when_the_last_of_its_sequences_has() -> None:
    async with house_of(EchoModel()) as house:
        feed = house.open("abc", 3)
        house.open("xyz", 6, feed=feed)
        tokens = await read_all(feed)
        assert [text_of([t for t in tokens if t.sequence_id == i]) for i in (1, 2)] == [b"abc", b"xyzxyz"]


@in_loop
async def test_a_reader_that_is_too_far_behind_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_feed, "MAX_UNREAD_TOKENS", 20)
    async with house_of(EchoModel(lambda _: time.sleep(0.002))) as house:
        slow, quick = house.open("abc", 1000), house.open("xyz", 60)
        assert text_of(await read_all(quick)) == echo("xyz", 60)
        await soon(lambda: slow.is_over)
        # What came in time is still read.
        assert text_of([each.token for each in await slow.read()]) == echo("abc", 21)
        with pytest.raises(Overloaded, match="tokens behind"):
            await slow.read()
        assert 1 in house.model.aborted


@in_loop
async def test_what_was_computed_is_counted() -> None:
    model = EchoModel(preempt_at=2, slots=1)
    model.warm_up()
    async with house_of(model) as house:
        warmed_up = len(model.steps)
        for feed in [house.open("abcd", 4), house.open("abcd", 4)]:
            await read_all(feed)
        assert house.counts == StepCounts(tokens=8, prompt_tokens=8, prefix_hit_tokens=3, preemptions=2, texts=2)
        assert house.counts.steps.sizes.total() == len(model.steps) - warmed_up


@in_loop
async def test_steps_are_counted_by_how_many_sequences_ran() -> None:
    gate = Gate()
    async with house_of(EchoModel(gate)) as house:
        first = house.open("abc", 4)
        await arrival(gate)
        second = house.open("xyz", 2)
        await asyncio.sleep(0.01)
        gate.open()
        await asyncio.gather(read_all(first), read_all(second))
        assert house.model.steps == [[1], [1, 2], [1, 2], [1]]
        assert house.counts.steps.sizes == {1: 2, 2: 2}
        assert house.counts.steps.seconds[1] > 0.01
        assert 0 < house.counts.steps.seconds[2] < 10
        # The steps that nobody was in, of a model at rest, are none.
        assert house.model.empty_steps > 0


@in_loop
async def test_a_reader_that_is_cancelled_may_come_again() -> None:
    gate = Gate()
    async with house_of(EchoModel(gate)) as house:
        feed = house.open()
        reader = task(feed.read())
        await arrival(gate)
        reader.cancel()
        await asyncio.wait([reader])
        gate.open()
        assert text_of(await read_all(feed)) == b"abcab"


@in_loop
async def test_a_reader_that_waits_is_not_slow_when_the_loop_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_feed, "MAX_UNREAD_TOKENS", 20)
    async with house_of(EchoModel()) as house:
        reader = task(read_all(house.open("abc", 500)))
        await asyncio.sleep(0)
        until_s = time.monotonic() + 5
        while len(house.model.steps) < 500 and time.monotonic() < until_s:
            time.sleep(0.001)  # noqa: ASYNC251 - the loop is held up
        assert text_of(await reader) == echo("abc", 500)


@in_loop
async def test_the_times_of_beginning_and_arrival_ride_along() -> None:
    async with house_of(EchoModel(lambda _: time.sleep(0.02), slots=1)) as house:
        started_s = time.perf_counter()
        first, second = house.open("abc", 2), house.open("xyz", 2)
        arrived = [(await feed.read())[0].arrived_s - started_s for feed in (first, second)]
        assert first.begun_s is not None
        assert second.begun_s is not None
        assert 0 <= first.begun_s - started_s < arrived[0]
        assert 0.04 <= second.begun_s - started_s <= arrived[1] - 0.02
        await read_all(second)
