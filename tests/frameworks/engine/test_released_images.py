"""Images of conversations: their bytes are released once, however the request ends."""

import asyncio
from collections.abc import Callable

import pytest

from frameworks.core.errors import DeadlineExceeded, Draining, InvalidInput
from frameworks.generation.types import Constraint, Conversation, GenerateRequest, Stopping
from tests.frameworks.engine.image_prompts import MAX_BYTES, TENSOR_BYTES, ImagePrompts, serving, talk
from tests.support.batch_models import Gate
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, settle, soon, task
from tests.support.step_models import CONTEXT, FAILING, StepGate


def refuse(_: Conversation) -> None:
    raise InvalidInput("messages[1].images[0]", "expected a file, got a damaged one")


@in_loop
async def test_images_refused_by_header_hold_nothing() -> None:
    prompts = ImagePrompts()
    prompts.refusal = InvalidInput("messages", "expected at most 1 images, got 2")
    async with serving(prompts) as harness:
        with pytest.raises(InvalidInput, match="expected at most 1 images"):
            await harness.begin(talk(b"1", b"2"))
        harness.check_released()
    assert prompts.threads == []


@pytest.mark.parametrize(
    ("behaviour", "request_", "message"),
    [
        (refuse, talk(b"123"), r"messages\[1\].images\[0\]: expected a file"),
        (None, talk(b"123", text="a" * CONTEXT), "expected fewer than 4096 tokens"),
        (None, talk(b"123", constraint=Constraint("regex", "a")), "is no choice"),
    ],
    ids=["damaged", "too long", "constraint"],
)
@in_loop
async def test_failed_preparation_releases_bytes(
    behaviour: Callable[[Conversation], None] | None, request_: GenerateRequest, message: str
) -> None:
    async with serving(ImagePrompts(behaviour)) as harness:
        with pytest.raises(InvalidInput, match=message):
            await harness.begin(request_)
        harness.check_released(3)
        assert harness.model.given == []


@in_loop
async def test_failure_of_any_kind_releases_bytes() -> None:
    def fail(_: Conversation) -> None:
        raise MemoryError

    async with serving(ImagePrompts(fail)) as harness:
        with pytest.raises(MemoryError):
            await harness.begin(talk(b"123"))
        harness.check_released(3)


@in_loop
async def test_deadline_in_preparation_releases_bytes() -> None:
    gate = Gate()
    async with serving(ImagePrompts(gate)) as harness:
        late = task(harness.begin(talk(b"123"), left_s=HANGS_AFTER_S))
        await soon(gate.arrived.is_set)
        pass_time(HANGS_AFTER_S)
        with pytest.raises(DeadlineExceeded, match="timeout_ms"):
            await late
        gate.open()
        harness.check_released(3)
        assert harness.model.given == []


@in_loop
async def test_deadline_in_wait_for_bytes_holds_nothing() -> None:
    async with serving(ImagePrompts()) as harness:
        assert harness.memory.try_hold(MAX_BYTES)
        late = task(harness.begin(talk(b"123"), left_s=HANGS_AFTER_S))
        await settle()
        pass_time(HANGS_AFTER_S)
        with pytest.raises(DeadlineExceeded):
            await late
        harness.memory.release(MAX_BYTES)
        harness.check_released(MAX_BYTES)


@in_loop
async def test_deadline_of_text_releases_bytes() -> None:
    steps = StepGate(1)
    async with serving(ImagePrompts(), steps) as harness:
        generation = await harness.begin(talk(b"123", stopping=Stopping(max_tokens=4000)), left_s=HANGS_AFTER_S)
        await anext(generation)
        assert harness.memory.held_bytes == 3
        pass_time(HANGS_AFTER_S)
        with pytest.raises(DeadlineExceeded):
            await generation.collect()
        harness.check_released(3)
        steps.open()


@in_loop
async def test_cancelled_caller_releases_bytes() -> None:
    gate = Gate()
    async with serving(ImagePrompts(gate)) as harness:
        assert harness.memory.try_hold(MAX_BYTES - 3)
        preparing = task(harness.begin(talk(b"123")))
        await soon(gate.arrived.is_set)
        waiting = task(harness.begin(talk(b"12345")))
        await settle()
        for each in (waiting, preparing):
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each
        gate.open()
        harness.memory.release(MAX_BYTES - 3)
        harness.check_released(MAX_BYTES - 3, 3)
        assert harness.model.given == []


@in_loop
async def test_caller_cancelled_as_bytes_are_granted_holds_nothing() -> None:
    async with serving(ImagePrompts()) as harness:
        assert harness.memory.try_hold(MAX_BYTES)
        waiting = task(harness.begin(talk(b"123")))
        await settle()
        harness.memory.release(MAX_BYTES)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert harness.memory.held_bytes == 0
        assert harness.memory.releases in ([MAX_BYTES], [MAX_BYTES, 3])


@in_loop
async def test_closed_text_releases_bytes_once() -> None:
    steps = StepGate(1)
    async with serving(ImagePrompts(), steps) as harness:
        generation = await harness.begin(talk(b"123", num_choices=2, stopping=Stopping(max_tokens=4000)))
        await anext(generation)
        generation.close()
        harness.check_released(3)
        generation.close()
        harness.check_released(3)
        steps.open()


@in_loop
async def test_failed_text_releases_bytes() -> None:
    async with serving(ImagePrompts()) as harness:
        generation = await harness.begin(talk(b"123", text=chr(FAILING)))
        with pytest.raises(InvalidInput, match="came to nothing"):
            await generation.collect()
        harness.check_released(3)


@in_loop
async def test_unloaded_model_releases_bytes() -> None:
    steps = StepGate(1)
    async with serving(ImagePrompts(), steps) as harness:
        generation = await harness.begin(talk(b"123", stopping=Stopping(max_tokens=4000)))
        harness.engine.end_requests()
        with pytest.raises(Draining):
            await generation.collect()
        harness.check_released(3)
        with pytest.raises(Draining):
            await harness.begin(talk(b"1"))
        harness.check_released(3, TENSOR_BYTES)
        steps.open()
