"""Test how sequences join and end on one worker, slow readers, and counts."""

import asyncio
import time
from itertools import chain

import pytest

from frameworks.core.errors import Overloaded
from frameworks.core.tenants import Tenant
from frameworks.scheduling.steps import token_feed
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.token_feed import TenantTokens, TokenFeed
from tests.frameworks.scheduling.steps.harness import read_all, running_worker, text_of, wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import HANGS_AFTER_S, in_loop, soon, task
from tests.support.step_models import CONTEXT, KV_BYTES_PER_TOKEN, EchoModel, StepGate, echo


@in_loop
async def test_sequences_share_steps_and_readers_get_own_tokens() -> None:
    prompts = [f"prompt {i}" for i in range(10)]
    async with running_worker(EchoModel()) as harness:
        feeds = [harness.open(prompt, 5 + i) for i, prompt in enumerate(prompts)]
        texts = await asyncio.gather(*map(read_all, feeds))
        assert [text_of(tokens) for tokens in texts] == [echo(prompt, 5 + i) for i, prompt in enumerate(prompts)]
        assert {tokens[-1].finish_reason for tokens in texts} == {"length"}
        assert max(map(len, harness.model.steps)) == 4
        assert sorted(harness.begun) == list(range(1, 11))


@in_loop
async def test_later_sequence_joins_next_step() -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate)) as harness:
        first = harness.open("abc")
        await wait_for_arrival(gate)
        second = harness.open("xyz")
        gate.open()
        assert text_of(await read_all(first)) == b"abcab"
        assert text_of(await read_all(second)) == b"xyzxy"
        assert harness.model.steps == [[1], [1, 2], [1, 2], [1, 2], [1, 2], [2]]


@in_loop
async def test_idle_thread_runs_no_steps() -> None:
    async with running_worker(EchoModel()) as harness:
        await soon(lambda: harness.model.empty_steps == 1)
        await asyncio.sleep(0.05)
        assert (harness.model.steps, harness.model.empty_steps) == ([], 1)
        assert len(await read_all(harness.open())) == 5
        await asyncio.sleep(0.05)
        assert (len(harness.model.steps), harness.model.empty_steps) == (5, 1)
        assert not harness.worker.is_running


@in_loop
async def test_aborted_sequence_ends_within_one_step() -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate)) as harness:
        gone = harness.open("abc", 1000)
        await wait_for_arrival(gate)
        stays = harness.open("xyz")
        gone.close()
        assert harness.worker.num_sequences == 1
        gate.open()
        assert text_of(await read_all(stays)) == b"xyzxy"
        assert harness.model.steps == [[1], [2], [2], [2], [2], [2]]
        assert await read_all(gone) == []
        assert harness.counts.tokens == 6


@in_loop
async def test_stats_are_zero_after_last_abort() -> None:
    steps = StepGate(1)
    async with running_worker(EchoModel(steps)) as harness:
        feed = harness.open("abcd", 1000)
        await feed.read()
        assert harness.worker.is_running
        assert harness.worker.stats.running == 1
        assert harness.worker.stats.kv_used_bytes >= 5 * KV_BYTES_PER_TOKEN
        feed.close()
        steps.open()
        await soon(lambda: not harness.worker.is_running)
        assert (harness.worker.stats.running, harness.worker.stats.kv_used_bytes) == (0, 0)
        assert harness.model.empty_steps == 2


@in_loop
async def test_worker_reports_stats_before_first_sequence() -> None:
    async with running_worker(EchoModel(slots=2)) as harness:
        await soon(lambda: harness.worker.stats.kv_total_bytes == 2 * CONTEXT * KV_BYTES_PER_TOKEN)


@in_loop
async def test_queued_sequence_is_aborted_before_it_begins() -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate, slots=1)) as harness:
        first, waiting = harness.open("abc"), harness.open("xyz")
        await wait_for_arrival(gate)
        waiting.close()
        gate.open()
        await read_all(first)
        assert harness.begun == [1]
        assert {i for step in harness.model.steps for i in step} == {1}


@in_loop
async def test_reader_is_woken_at_most_once_per_step() -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate, slots=5)) as harness:
        # The sequences join one step, after that of another.
        harness.open("xyz")
        await wait_for_arrival(gate)
        feed = TokenFeed(lambda: None)
        for _ in range(4):
            harness.open("abc", 50, feed=feed)
        gate.open()
        reads = []
        while arrived := await feed.read():
            reads.append([each.token.sequence_id for each in arrived])
        assert len(reads) <= len(harness.model.steps)
        assert sum(map(len, reads)) == 200
        # In order of wait_for_arrival, not one sequence after the other.
        assert sorted(list(chain(*reads))[:4]) == [2, 3, 4, 5]


@in_loop
async def test_feed_ends_with_its_last_sequence() -> None:
    async with running_worker(EchoModel()) as harness:
        feed = harness.open("abc", 3)
        harness.open("xyz", 6, feed=feed)
        tokens = await read_all(feed)
        assert [text_of([t for t in tokens if t.sequence_id == i]) for i in (1, 2)] == [b"abc", b"xyzxyz"]


@in_loop
async def test_reader_too_far_behind_loses_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_feed, "MAX_UNREAD_TOKENS", 20)
    async with running_worker(EchoModel(lambda _: time.sleep(0.002))) as harness:
        slow, quick = harness.open("abc", 1000), harness.open("xyz", 60)
        assert text_of(await read_all(quick)) == echo("xyz", 60)
        await soon(lambda: slow.is_over)
        # The tokens before the error are still read.
        assert text_of([each.token for each in await slow.read()]) == echo("abc", 21)
        with pytest.raises(Overloaded, match="tokens behind"):
            await slow.read()
        await soon(lambda: 1 in harness.model.aborted)


@in_loop
async def test_steps_add_to_counts() -> None:
    gate = Gate()
    model = EchoModel(gate, preempt_at=2, slots=1)
    model.warm_up()
    async with running_worker(model) as harness:
        warmed_up = len(model.steps)
        first = harness.open("abcd", 4)
        await wait_for_arrival(gate)
        second = harness.open("abcd", 4)
        gate.open()
        for feed in (first, second):
            await read_all(feed)
        assert harness.counts == StepCounts(tokens=8, prompt_tokens=8, prefix_hit_tokens=3, preemptions=2, texts=2)
        assert harness.counts.steps.sizes.total() == len(model.steps) - warmed_up


@in_loop
async def test_steps_are_counted_by_number_of_sequences() -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate)) as harness:
        first = harness.open("abc", 4)
        await wait_for_arrival(gate)
        second = harness.open("xyz", 2)
        held_s = time.perf_counter()
        await asyncio.sleep(0.01)
        opened_s = time.perf_counter()
        gate.open()
        await asyncio.gather(read_all(first), read_all(second))
        read_s = time.perf_counter()
        assert harness.model.steps == [[1], [1, 2], [1, 2], [1]]
        assert harness.counts.steps.sizes == {1: 2, 2: 2}
        assert harness.counts.steps.seconds[1] > opened_s - held_s
        assert 0 < harness.counts.steps.seconds[2] < read_s - opened_s
        # Steps without sequences are not counted.
        assert harness.model.empty_steps > 0


@in_loop
async def test_cancelled_reader_can_read_again() -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate)) as harness:
        feed = harness.open()
        reader = task(feed.read())
        await wait_for_arrival(gate)
        reader.cancel()
        await asyncio.wait([reader])
        gate.open()
        assert text_of(await read_all(feed)) == b"abcab"


@in_loop
async def test_waiting_reader_is_kept_on_slow_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_feed, "MAX_UNREAD_TOKENS", 20)
    async with running_worker(EchoModel()) as harness:
        reader = task(read_all(harness.open("abc", 500)))
        await asyncio.sleep(0)
        until_s = time.monotonic() + HANGS_AFTER_S
        while len(harness.model.steps) < 500:
            assert time.monotonic() < until_s
            time.sleep(0.001)  # noqa: ASYNC251 - the loop is held up
        assert text_of(await reader) == echo("abc", 500)


@in_loop
async def test_feed_has_times_of_begin_and_arrival() -> None:
    async with running_worker(EchoModel(lambda _: time.sleep(0.02), slots=1)) as harness:
        started_s = time.perf_counter()
        first, second = harness.open("abc", 2), harness.open("xyz", 2)
        arrived = [(await feed.read())[0].arrived_s - started_s for feed in (first, second)]
        assert first.begun_s is not None
        assert second.begun_s is not None
        assert 0 <= first.begun_s - started_s < arrived[0]
        assert 0.04 <= second.begun_s - started_s <= arrived[1] - 0.02
        await read_all(second)


@in_loop
async def test_tokens_are_counted_by_tenant() -> None:
    async with running_worker(EchoModel()) as harness:
        texts = (("", "abc", 5), ("one", "ab", 4), ("two", "abcd", 3), ("one", "a", 2))
        feeds = [harness.open(prompt, most, tenant=Tenant(name)) for name, prompt, most in texts]
        await asyncio.gather(*map(read_all, feeds))
        counts = StepCounts.total([harness.counts, harness.counts])
        assert counts.tenants == {"one": TenantTokens(2 * 3, 2 * 6), "two": TenantTokens(2 * 4, 2 * 3)}
        assert (counts.prompt_tokens, counts.tokens) == (2 * 10, 2 * 14)
        assert not harness.worker._prompt_lengths


@in_loop
async def test_cancelled_sequence_leaves_no_prompt_length() -> None:
    gate = Gate()
    async with running_worker(EchoModel(gate, slots=1)) as harness:
        running, waiting = (harness.open("abc", 5, tenant=Tenant("one")) for _ in range(2))
        waiting.close()
        gate.open()
        await read_all(running)
        assert harness.counts.tenants == {"one": TenantTokens(3, 5)}
        assert not harness.worker._prompt_lengths
