"""Early ends of generation: deadlines, cancelled and idle readers, dead models."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from frameworks.errors import DeadlineExceeded, Draining, InvalidInput, ModelFailed, Overloaded
from frameworks.generation.types import Prompt
from frameworks.scheduling.steps import token_feed
from tests.app.inference.generating import generate_request, generating, read
from tests.frameworks.scheduling.steps.harness import wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.step_models import EchoModel, EchoRegistry


def sleep_2_ms(_: list[str]) -> None:
    time.sleep(0.002)


class SlowTokenizer(EchoRegistry):
    """A model whose tokenizer exceeds every deadline."""

    def make(self) -> EchoModel:
        model = super().make()
        model.tokenizer.behaviour = self._sleep
        return model

    @staticmethod
    def _sleep(_: Prompt) -> None:
        time.sleep(0.2)


@in_loop
async def test_deadline_cancels_running_text() -> None:
    async with (
        generating(sleep_2_ms) as harness,
        harness.begin(generate_request("abc", max_tokens=4000), left_s=0.1) as generation,
    ):
        texts: list[str] = []
        with pytest.raises(DeadlineExceeded, match="timeout_ms"):
            await read(generation, texts)
        assert texts
        assert ("abc" * 4000).startswith("".join(texts))
        await soon(lambda: not harness.models[0].has_work)
        assert 0.05 < harness.last_timings.compute_s < 1
        with pytest.raises(DeadlineExceeded):
            await anext(generation)


@in_loop
async def test_deadline_frees_slot_without_reader() -> None:
    async with generating(sleep_2_ms) as harness, harness.begin(generate_request("abc", max_tokens=4000), left_s=0.05):
        await soon(lambda: harness.models[0].has_work)
        await soon(lambda: not harness.models[0].has_work)


@in_loop
async def test_queued_text_at_deadline_never_runs() -> None:
    gate = Gate()
    async with generating(gate) as harness:
        first = task(harness.collect(generate_request(*"abcd")))
        await wait_for_arrival(gate)
        with pytest.raises(DeadlineExceeded):
            await harness.collect(generate_request("late"), left_s=0.02)
        assert harness.last_timings.queue_s >= 0.02
        assert harness.last_timings.compute_s == 0.0
        gate.open()
        await first
        begun = {i for step in harness.models[0].steps for i in step}
        assert len(begun) == 4


@in_loop
@pytest.mark.parametrize("left_s", [0.0, -1.0])
async def test_passed_deadline_is_refused(left_s: float) -> None:
    async with generating() as harness:
        with pytest.raises(DeadlineExceeded):
            await harness.collect(generate_request("abc"), left_s=left_s)
        assert harness.models[0].given == []


@in_loop
async def test_deadline_includes_tokenization() -> None:
    async with generating(registry=SlowTokenizer()) as harness:
        started_s = time.perf_counter()
        with pytest.raises(DeadlineExceeded):
            await harness.collect(generate_request("x" * 2000), left_s=0.02)
        assert time.perf_counter() - started_s < 0.15
        assert harness.models[0].given == []


@in_loop
async def test_answer_in_time_cancels_timer() -> None:
    async with generating() as harness, harness.begin(generate_request("abc"), left_s=0.05) as generation:
        await generation.collect()
        await asyncio.sleep(0.07)
        with pytest.raises(StopAsyncIteration):
            await anext(generation)


@in_loop
async def test_cancelled_caller_aborts_its_sequences() -> None:
    async with generating(sleep_2_ms) as harness:
        reader = task(harness.collect(generate_request("abc", "xyz", n=2, max_tokens=4000)))
        await soon(lambda: len(harness.models[0].running) == 4)
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()
        steps = len(harness.models[0].steps)
        await soon(lambda: not harness.models[0].has_work)
        assert len(harness.models[0].steps) <= steps + 2


@in_loop
async def test_closed_reader_frees_its_place() -> None:
    async with generating(sleep_2_ms) as harness, harness.begin(generate_request("abc", max_tokens=4000)) as generation:
        async for _ in generation:
            break
        generation.close()
        generation.close()
        await soon(lambda: not harness.models[0].has_work)
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
        assert generation.usage.tokens_generated >= 1


@in_loop
async def test_idle_reader_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_feed, "MAX_UNREAD_TOKENS", 10)
    async with generating(sleep_2_ms) as harness, harness.begin(generate_request("abc", max_tokens=4000)) as generation:
        await soon(lambda: harness.models[0].has_work)
        await soon(lambda: not harness.models[0].has_work)
        texts: list[str] = []
        with pytest.raises(Overloaded, match="tokens behind"):
            await read(generation, texts)
        assert "".join(texts) == "abcabcabcab"


@in_loop
async def test_dead_model_fails_answer() -> None:
    def end_thread(prompts: list[str]) -> None:
        if len(prompts) == 2:
            raise SystemExit

    async with generating(end_thread) as harness:
        with capture_logs(), pytest.raises(ModelFailed):
            await harness.collect(generate_request("abc", "xyz"))
        with pytest.raises(ModelFailed):
            await harness.collect(generate_request("abc"))


@in_loop
async def test_failed_choice_fails_answer_and_aborts_others() -> None:
    async with generating(sleep_2_ms) as harness:
        with pytest.raises(InvalidInput, match="came to nothing"):
            await harness.collect(generate_request("ab\1", "xyz", max_tokens=4000))
        await soon(lambda: not harness.models[0].has_work)
        assert len(harness.models[0].steps) < 100


@in_loop
async def test_drain_timeout_raises_draining() -> None:
    async with generating(sleep_2_ms, drain_timeout_s=0.05) as harness:
        reader = task(harness.collect(generate_request("abc", max_tokens=4000)))
        await soon(lambda: harness.models[0].has_work)
        await harness.manager.__aexit__(None, None, None)
        with pytest.raises(Draining):
            await reader


@in_loop
async def test_request_is_queued_until_first_computation() -> None:
    gate = Gate()
    async with generating(gate, max_queue_size=1) as harness:
        requests = harness.manager.slot("m").requests
        first = task(harness.collect(generate_request(*"abcd")))
        await wait_for_arrival(gate)
        assert (requests.inflight, requests.waiting) == (1, 1), "no step is complete yet"
        with pytest.raises(Overloaded, match="max_queue_size"):
            await harness.collect(generate_request("e"))
        gate.open()
        await first
        await harness.collect(generate_request("e"))


@in_loop
async def test_timings_have_queue_and_compute_seconds() -> None:
    async with generating(sleep_2_ms) as harness:
        others = task(harness.collect(generate_request(*"abcd", max_tokens=20)))
        await soon(lambda: len(harness.models[0].running) == 4)
        await harness.collect(generate_request("x" * 1001, max_tokens=10))
        timings = harness.last_timings
        assert 0 < timings.decode_s < 1
        assert 0.02 < timings.queue_s < 1
        assert 0.02 < timings.compute_s < 1
        await others


@in_loop
async def test_token_times_are_observed() -> None:
    async with generating(sleep_2_ms) as harness:
        await harness.collect(generate_request("abc", "xyz", n=2, max_tokens=6))
        metrics = harness.observer.generations["m"]
        assert sum(metrics.time_to_first_token_seconds.counts) == 1
        assert sum(metrics.inter_token_seconds.counts) == 4 * 5
        assert 0.002 <= metrics.time_to_first_token_seconds.total < 1
        assert metrics.inter_token_seconds.total >= 4 * 5 * 0.0015
        await harness.collect(generate_request("abc", max_tokens=1))
        assert sum(metrics.time_to_first_token_seconds.counts) == 2
        assert sum(metrics.inter_token_seconds.counts) == 4 * 5
        harness.observer.forget("m")
        assert harness.observer.generations == {}
