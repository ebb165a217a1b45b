"""Early ends of generation: deadlines, cancelled and idle readers, dead models."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import DeadlineExceeded, Draining, InvalidInput, ModelFailed, Overloaded
from frameworks.scheduling.steps import token_feed
from tests.app.inference.generating import generate_request, generating, read
from tests.frameworks.scheduling.steps.harness import wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, soon, task
from tests.support.step_models import EchoModel, EchoRegistry, StepGate


def sleep_2_ms(_: list[str]) -> None:
    time.sleep(0.002)


class HeldTokenizer(EchoRegistry):
    """A model whose tokenizer waits until `gate` is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def make(self) -> EchoModel:
        model = super().make()
        model.tokenizer.behaviour = self.gate
        return model


@in_loop
async def test_deadline_cancels_running_text() -> None:
    steps = StepGate(3)
    started_s = time.perf_counter()
    async with (
        generating(steps) as harness,
        harness.begin(generate_request("abc", max_tokens=4000), left_s=HANGS_AFTER_S) as generation,
    ):
        texts = [(await anext(generation)).text for _ in range(3)]
        held_s = time.perf_counter()
        await asyncio.sleep(0.01)
        held_s = time.perf_counter() - held_s
        pass_time(HANGS_AFTER_S)
        with pytest.raises(DeadlineExceeded, match="timeout_ms"):
            await read(generation, texts)
        assert "".join(texts) == "abc"
        steps.open()
        await soon(lambda: not harness.models[0].has_work)
        assert len(harness.models[0].steps) <= 4
        assert held_s < harness.last_timings.compute_s < time.perf_counter() - started_s
        with pytest.raises(DeadlineExceeded):
            await anext(generation)


@in_loop
async def test_deadline_frees_slot_without_reader() -> None:
    steps = StepGate(3)
    async with (
        generating(steps) as harness,
        harness.begin(generate_request("abc", max_tokens=4000), left_s=HANGS_AFTER_S) as generation,
    ):
        await soon(lambda: len(harness.models[0].steps) == 4)
        pass_time(HANGS_AFTER_S)
        await soon(lambda: generation._feed.is_over)  # type: ignore[attr-defined]
        steps.open()
        await soon(lambda: not harness.models[0].has_work)
        assert len(harness.models[0].steps) == 4


@in_loop
async def test_queued_text_at_deadline_never_runs() -> None:
    gate = Gate()
    async with generating(gate) as harness:
        first = task(harness.collect(generate_request(*"abcd")))
        await wait_for_arrival(gate)
        late = task(harness.collect(generate_request("late"), left_s=HANGS_AFTER_S))
        await soon(lambda: harness.manager.slot("m").requests.waiting == 4 + 1)
        waiting_s = time.perf_counter()
        await asyncio.sleep(0.02)
        waited_s = time.perf_counter() - waiting_s
        pass_time(HANGS_AFTER_S)
        with pytest.raises(DeadlineExceeded):
            await late
        assert harness.last_timings.queue_s >= waited_s
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
    registry = HeldTokenizer()
    async with generating(registry=registry) as harness:
        late = task(harness.collect(generate_request("x" * 2000), left_s=HANGS_AFTER_S))
        await wait_for_arrival(registry.gate)
        pass_time(HANGS_AFTER_S)
        # The tokenizer is still held: the deadline does not wait for it.
        with pytest.raises(DeadlineExceeded):
            await late
        registry.gate.open()
    assert harness.models[0].given == []


@in_loop
async def test_answer_in_time_cancels_timer() -> None:
    async with generating() as harness, harness.begin(generate_request("abc"), left_s=HANGS_AFTER_S) as generation:
        await generation.collect()
        pass_time(HANGS_AFTER_S)
        await asyncio.sleep(0.001)
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
        await soon(lambda: bool(harness.models[0].aborted))
        await soon(lambda: not harness.models[0].has_work)
        texts: list[str] = []
        with pytest.raises(Overloaded, match="tokens behind"):
            await read(generation, texts)
        assert "".join(texts) == "abcabcabcab"


@in_loop
async def test_dead_model_fails_answer() -> None:
    def end_thread(_prompts: list[str]) -> None:
        raise SystemExit

    async with generating(end_thread) as harness:
        with capture_logs(), pytest.raises(ModelFailed):
            await harness.collect(generate_request("abc", "xyz"))
        with pytest.raises(ModelFailed):
            await harness.collect(generate_request("abc"))


@in_loop
async def test_failed_choice_fails_answer_and_aborts_others() -> None:
    steps = StepGate(3)
    async with generating(steps) as harness:
        with pytest.raises(InvalidInput, match="came to nothing"):
            await harness.collect(generate_request("ab\1", "xyz", max_tokens=4000))
        steps.open()
        await soon(lambda: not harness.models[0].has_work)
        assert len(harness.models[0].steps) <= 4


@in_loop
async def test_drain_timeout_raises_draining() -> None:
    gate = Gate()
    async with generating(gate, drain_timeout_s=0.05) as harness:
        reader = task(harness.collect(generate_request("abc", max_tokens=4000)))
        await wait_for_arrival(gate)
        await harness.manager.__aexit__(None, None, None)
        with pytest.raises(Draining):
            await reader
        gate.open()


@in_loop
async def test_request_is_queued_until_first_computation() -> None:
    gate = Gate()
    async with generating(gate, max_queue_size=1) as harness:
        requests = harness.manager.slot("m").requests
        first = task(harness.collect(generate_request(*"abcd")))
        await wait_for_arrival(gate)
        assert (requests.inflight, requests.waiting) == (1, 4), "no step is complete yet"
        with pytest.raises(Overloaded, match="max_queue_size"):
            await harness.collect(generate_request("e"))
        gate.open()
        await first
        await harness.collect(generate_request("e"))


@in_loop
async def test_slow_reader_holds_no_model() -> None:
    """The model is unloaded when the generation has ended; the rest of the text is read afterwards."""
    async with (
        generating() as harness,
        harness.begin(generate_request("abc", "xyz", n=2, max_tokens=300, top_logprobs=1)) as generation,
    ):
        first = await anext(generation)
        await harness.manager.unload("m")
        assert harness.models[0].is_closed
        answer = [first, *[piece async for piece in generation]]
        texts = ["".join(piece.text for piece in answer if piece.index == i) for i in range(4)]
        assert texts == ["abc" * 100, "abc" * 100, "xyz" * 100, "xyz" * 100]
        assert sum(len(piece.tokens) for piece in answer) == 1200


@in_loop
async def test_forced_unload_ends_text_after_tokens_so_far() -> None:
    steps = StepGate(3)
    async with (
        generating(steps) as harness,
        harness.begin(generate_request("abc", max_tokens=4000)) as generation,
    ):
        await soon(lambda: len(harness.models[0].steps) == 4)
        order = task(harness.manager.unload("m", drain_timeout_s=0))
        texts: list[str] = []
        with pytest.raises(Draining, match="was unloaded"):
            await read(generation, texts)
        assert "".join(texts) == "abc"
        steps.open()
        await order


@in_loop
async def test_queue_counts_texts() -> None:
    steps = StepGate(1)
    async with generating(steps, max_queue_size=8) as harness:
        requests = harness.manager.slot("m").requests
        first = task(harness.collect(generate_request("abc", n=9, max_tokens=4000)))
        # Four run at once.
        await soon(lambda: (requests.inflight, requests.waiting) == (1, 5))
        with pytest.raises(Overloaded, match="5 requests are waiting, this one counts as 4, and the max_queue_size is"):
            await harness.collect(generate_request("ab", "xy", n=2))
        assert len(harness.models[0].given) == 9
        second = task(harness.collect(generate_request("abc", n=3)))
        await soon(lambda: (requests.inflight, requests.waiting) == (2, 8))
        for reader in (first, second):
            reader.cancel()
        await asyncio.wait([first, second])
        assert (requests.inflight, requests.waiting) == (0, 0)
        steps.open()


@in_loop
async def test_timings_have_queue_and_compute_seconds() -> None:
    gate = StepGate(1)

    def held_2_ms(prompts: list[str]) -> None:
        gate(prompts)
        sleep_2_ms(prompts)

    async with generating(held_2_ms) as harness:
        others = task(harness.collect(generate_request(*"abcd", max_tokens=20)))
        await soon(lambda: len(harness.models[0].running) == 4)
        before, started_s = harness.last_timings, time.perf_counter()
        queued = task(harness.collect(generate_request("x" * 1001, max_tokens=10)))
        await soon(lambda: harness.last_timings is not before and harness.last_timings.decode_s > 0)
        held_s = time.perf_counter()
        await asyncio.sleep(0.02)
        held_s = time.perf_counter() - held_s
        gate.open()
        await queued
        timings = harness.last_timings
        assert timings.decode_s > 0
        assert timings.queue_s > held_s
        assert timings.compute_s > 10 * 0.002
        assert timings.decode_s + timings.queue_s + timings.compute_s < time.perf_counter() - started_s
        await others


@in_loop
async def test_token_times_are_observed() -> None:
    async with generating(sleep_2_ms) as harness:
        started_s = time.perf_counter()
        await harness.collect(generate_request("abc", "xyz", n=2, max_tokens=6))
        took_s = time.perf_counter() - started_s
        metrics = harness.observer.generations["m", ""]
        assert sum(metrics.time_to_first_token_seconds.counts) == 1
        assert sum(metrics.inter_token_seconds.counts) == 4 * 5
        assert 0.002 <= metrics.time_to_first_token_seconds.total < took_s
        assert 4 * 5 * 0.002 <= metrics.inter_token_seconds.total < 4 * took_s
        await harness.collect(generate_request("abc", max_tokens=1))
        assert sum(metrics.time_to_first_token_seconds.counts) == 2
        assert sum(metrics.inter_token_seconds.counts) == 4 * 5
        harness.observer.forget("m")
        assert harness.observer.generations == {}
