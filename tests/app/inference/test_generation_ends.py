"""How a generation ends before its time: deadlines, callers that leave or do not read, models that die."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from frameworks.errors import DeadlineExceeded, Draining, InvalidInput, ModelFailed, Overloaded
from frameworks.generation.types import Prompt
from frameworks.scheduling.steps import token_feed
from tests.app.inference.generating import asks, generating, read
from tests.frameworks.scheduling.steps.harness import wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.step_models import EchoModel, EchoRegistry


def slowly(_: list[str]) -> None:
    time.sleep(0.002)


class SlowTokenizer(EchoRegistry):
    """Its model's tokenizer takes longer than anybody waits."""

    def make(self) -> EchoModel:
        model = super().make()
        model.tokenizer.behaviour = self._wait
        return model

    @staticmethod
    def _wait(_: Prompt) -> None:
        time.sleep(0.2)


@in_loop
async def test_a_text_that_is_not_at_its_end_at_the_deadline_is_ended() -> None:
    async with generating(slowly) as house, house.begin(asks("abc", max_tokens=4000), left_s=0.1) as generation:
        texts: list[str] = []
        with pytest.raises(DeadlineExceeded, match="timeout_ms"):
            await read(generation, texts)
        assert texts
        assert ("abc" * 4000).startswith("".join(texts))
        await soon(lambda: not house.made[0].has_work)
        assert 0.05 < house.last_timings.compute_s < 1
        with pytest.raises(DeadlineExceeded):
            await anext(generation)


@in_loop
async def test_at_the_deadline_the_slot_is_free_also_if_nobody_reads() -> None:
    async with generating(slowly) as house, house.begin(asks("abc", max_tokens=4000), left_s=0.05):
        await soon(lambda: house.made[0].has_work)
        await soon(lambda: not house.made[0].has_work)


@in_loop
async def test_what_waits_at_the_deadline_is_never_run() -> None:
    gate = Gate()
    async with generating(gate) as house:
        first = task(house.whole(asks(*"abcd")))
        await wait_for_arrival(gate)
        with pytest.raises(DeadlineExceeded):
            await house.whole(asks("late"), left_s=0.02)
        assert house.last_timings.queue_s >= 0.02
        assert house.last_timings.compute_s == 0.0
        gate.open()
        await first
        begun = {i for step in house.made[0].steps for i in step}
        assert len(begun) == 4


@in_loop
@pytest.mark.parametrize("left_s", [0.0, -1.0])
async def test_a_deadline_that_has_passed_is_refused(left_s: float) -> None:
    async with generating() as house:
        with pytest.raises(DeadlineExceeded):
            await house.whole(asks("abc"), left_s=left_s)
        assert house.made[0].given == []


@in_loop
async def test_the_deadline_counts_while_prompts_are_tokenized() -> None:
    async with generating(registry=SlowTokenizer()) as house:
        started_s = time.perf_counter()
        with pytest.raises(DeadlineExceeded):
            await house.whole(asks("x" * 2000), left_s=0.02)
        assert time.perf_counter() - started_s < 0.15
        assert house.made[0].given == []


@in_loop
async def test_an_answer_in_time_leaves_no_timer_behind() -> None:
    async with generating() as house, house.begin(asks("abc"), left_s=0.05) as generation:
        await generation.whole()
        await asyncio.sleep(0.07)
        with pytest.raises(StopAsyncIteration):
            await anext(generation)


@in_loop
async def test_a_caller_that_leaves_takes_its_sequences_along() -> None:
    async with generating(slowly) as house:
        reader = task(house.whole(asks("abc", "xyz", n=2, max_tokens=4000)))
        await soon(lambda: len(house.made[0].running) == 4)
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()
        steps = len(house.made[0].steps)
        await soon(lambda: not house.made[0].has_work)
        assert len(house.made[0].steps) <= steps + 2


@in_loop
async def test_a_reader_that_breaks_off_and_closes_frees_its_place() -> None:
    async with generating(slowly) as house, house.begin(asks("abc", max_tokens=4000)) as generation:
        async for _ in generation:
            break
        generation.close()
        generation.close()
        await soon(lambda: not house.made[0].has_work)
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
        assert generation.usage.tokens_generated >= 1


@in_loop
async def test_a_reader_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_feed, "MAX_UNREAD_TOKENS", 10)
    async with generating(slowly) as house, house.begin(asks("abc", max_tokens=4000)) as generation:
        await soon(lambda: house.made[0].has_work)
        await soon(lambda: not house.made[0].has_work)
        texts: list[str] = []
        with pytest.raises(Overloaded, match="tokens behind"):
            await read(generation, texts)
        assert "".join(texts) == "abcabcabcab"


@in_loop
async def test_a_model_that_dies_fails_the_answer() -> None:
    def die(prompts: list[str]) -> None:
        if len(prompts) == 2:
            raise SystemExit

    async with generating(die) as house:
        with capture_logs(), pytest.raises(ModelFailed):
            await house.whole(asks("abc", "xyz"))
        with pytest.raises(ModelFailed):
            await house.whole(asks("abc"))


@in_loop
async def test_one_choice_that_fails_fails_the_answer_and_ends_the_others() -> None:
    async with generating(slowly) as house:
        with pytest.raises(InvalidInput, match="came to nothing"):
            await house.whole(asks("ab\1", "xyz", max_tokens=4000))
        await soon(lambda: not house.made[0].has_work)
        assert len(house.made[0].steps) < 100


@in_loop
async def test_the_end_of_the_drain_s_time_is_told() -> None:
    async with generating(slowly, drain_timeout_s=0.05) as house:
        reader = task(house.whole(asks("abc", max_tokens=4000)))
        await soon(lambda: house.made[0].has_work)
        await house.manager.__aexit__(None, None, None)
        with pytest.raises(Draining):
            await reader


@in_loop
async def test_a_request_waits_for_its_model_until_the_first_of_it_is_computed() -> None:
    gate = Gate()
    async with generating(gate, max_queue_size=1) as house:
        requests = house.manager.slot("m").requests
        first = task(house.whole(asks(*"abcd")))
        await wait_for_arrival(gate)
        assert (requests.inflight, requests.waiting) == (1, 1), "it has not computed anything yet"
        with pytest.raises(Overloaded, match="max_queue_size"):
            await house.whole(asks("e"))
        gate.open()
        await first
        await house.whole(asks("e"))


@in_loop
async def test_where_the_time_went_rides_in_the_timings() -> None:
    async with generating(slowly) as house:
        others = task(house.whole(asks(*"abcd", max_tokens=20)))
        await soon(lambda: len(house.made[0].running) == 4)
        await house.whole(asks("x" * 1001, max_tokens=10))
        timings = house.last_timings
        assert 0 < timings.decode_s < 1
        assert 0.02 < timings.queue_s < 1
        assert 0.02 < timings.compute_s < 1
        await others


@in_loop
async def test_the_times_of_tokens_are_added_up() -> None:
    async with generating(slowly) as house:
        await house.whole(asks("abc", "xyz", n=2, max_tokens=6))
        metrics = house.observer.generations["m"]
        assert sum(metrics.time_to_first_token_seconds.counts) == 1
        assert sum(metrics.inter_token_seconds.counts) == 4 * 5
        assert 0.002 <= metrics.time_to_first_token_seconds.total < 1
        assert metrics.inter_token_seconds.total >= 4 * 5 * 0.0015
        await house.whole(asks("abc", max_tokens=1))
        assert sum(metrics.time_to_first_token_seconds.counts) == 2
        assert sum(metrics.inter_token_seconds.counts) == 4 * 5
        house.observer.forget("m")
        assert house.observer.generations == {}
