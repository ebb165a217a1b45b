"""Images of conversations: their bytes are held from before they are decoded until the texts have ended."""

import asyncio
from dataclasses import replace

import pytest

from frameworks.core.errors import InvalidInput
from frameworks.core.text_lengths import TextLimit
from frameworks.core.timings import Timings
from frameworks.engine.images import HeldImages
from frameworks.generation.types import Conversation, GenerateRequest, Stopping
from tests.frameworks.engine.image_prompts import MAX_BYTES, TENSOR_BYTES, CountedLimit, ImagePrompts, serving, talk
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, settle, soon, task
from tests.support.step_models import CONTEXT, StepGate


@in_loop
async def test_bytes_are_held_until_text_has_ended() -> None:
    gate, steps = Gate(), StepGate(1)
    prompts = ImagePrompts(gate)
    async with serving(prompts, steps) as harness:
        text = task(harness.text(talk(b"12", b"12345")))
        await soon(gate.arrived.is_set)
        # Before any image is prepared, as many bytes as the largest file has.
        assert harness.memory.held_bytes == 10
        gate.open()
        await soon(lambda: len(harness.model.steps) == 2)
        assert harness.memory.held_bytes == 10
        steps.open()
        assert await text == "��abc�"
        harness.check_released(10)
        assert harness.timings.decode_s > 0
    [name] = prompts.threads
    assert name.startswith("image")
    assert prompts.limits == [(TextLimit(CONTEXT - 1, CONTEXT - 1), CONTEXT - 1)]


@in_loop
async def test_sequences_have_images_of_prompt() -> None:
    prompts = ImagePrompts()
    async with serving(prompts) as harness:
        await harness.text(talk(b"1", b"2", num_choices=2))
        first, second = harness.model.given
        assert first.media is second.media
        assert first.media is not None
        assert [group.key for group in first.media.groups] == [-2, -3]
        assert first.prompt_ids == (255, 255, *b"abc")
        assert [[each.data for each in images] for images in prompts.checked] == [[b"1", b"2"]]
        # The last of both texts ends the hold.
        harness.check_released(2)


@in_loop
async def test_texts_hold_nothing() -> None:
    prompts = ImagePrompts()
    async with serving(prompts) as harness:
        harness.memory.held_bytes = MAX_BYTES
        assert await harness.text(talk()) == "system"
        assert await harness.text(GenerateRequest(("abc",), stopping=Stopping(max_tokens=3))) == "abc"
        assert [each.media for each in harness.model.given] == [None, None]
        harness.memory.held_bytes = 0
        harness.check_released()
    assert prompts.checked == []
    assert prompts.threads == []


@in_loop
async def test_later_images_hold_what_earlier_ones_took() -> None:
    async with serving(ImagePrompts()) as harness:
        await harness.text(talk(b"1"))
        await harness.text(talk(b"1", b"2"))
        await harness.text(talk(b"1" * 100))
        await harness.text(talk(b"1"))
        harness.check_released(1, 2 * TENSOR_BYTES, 100, TENSOR_BYTES)


@in_loop
async def test_requests_wait_for_bytes_in_order() -> None:
    steps = StepGate(1)
    async with serving(ImagePrompts(tensor_bytes=900), steps) as harness:
        first = await harness.begin(talk(b"1" * 900))
        second = task(harness.begin(talk(b"2" * 200)))
        third = task(harness.begin(talk(b"3")))
        await settle()
        assert harness.memory.holds == [900]
        steps.open()
        # Texts alone do not wait.
        assert await harness.text(talk()) == "system"
        first.close()
        for each in (second, third):
            (await each).close()
        harness.check_released(900, 900, 900)


@in_loop
async def test_time_of_waiting_is_that_of_queue() -> None:
    async with serving(ImagePrompts()) as harness:
        assert harness.memory.try_hold(MAX_BYTES)
        waiting = task(harness.begin(talk(b"1")))
        await settle()
        await asyncio.sleep(0.02)
        assert not waiting.done()
        harness.memory.release(MAX_BYTES)
        generation = await waiting
        assert harness.timings.queue_s >= 0.02
        generation.close()
        harness.check_released(MAX_BYTES, 1)


@in_loop
async def test_request_above_bound_runs_alone() -> None:
    async with serving(ImagePrompts()) as harness:
        assert await harness.text(talk(b"1" * (2 * MAX_BYTES))) == "�abc�a"
        harness.check_released(2 * MAX_BYTES)


@in_loop
async def test_model_without_images_refuses_first_one() -> None:
    async with serving(None) as harness:
        with pytest.raises(InvalidInput) as caught:
            await harness.begin(talk(b"1", b"2"))
        assert caught.value.field == "messages[1].images[0]"
        assert caught.value.message.endswith("as the model reads no images, got one; name a model that does")
        assert await harness.text(talk()) == "system"
        harness.check_released()


@in_loop
async def test_release_without_hold_is_harmless() -> None:
    memory = CountedLimit()
    held = HeldImages(memory)
    held.release()
    await held.hold(5, Timings())
    held.release()
    held.release()
    assert (memory.holds, memory.releases, memory.held_bytes) == ([5], [5], 0)


def test_only_conversation_with_images_has_them() -> None:
    with_image, without = talk(b"1").prompts[0], talk().prompts[0]
    assert isinstance(with_image, Conversation)
    assert isinstance(without, Conversation)
    assert (with_image.has_images, without.has_images) == (True, False)


@in_loop
async def test_bytes_that_images_did_not_take_are_released() -> None:
    steps = StepGate(1)
    async with serving(ImagePrompts(), steps) as harness:
        generation = await harness.begin(talk(b"1" * 900))
        assert harness.memory.held_bytes == TENSOR_BYTES
        steps.open()
        generation.close()


@in_loop
async def test_videos_hold_bytes_of_their_frames() -> None:
    asked = talk(b"12", b"123")
    [conversation] = asked.prompts
    assert isinstance(conversation, Conversation)
    messages = tuple(
        replace(each, images=tuple(replace(image, is_video=True) for image in each.images))
        for each in conversation.messages
    )
    async with serving(ImagePrompts()) as harness:
        await harness.text(replace(asked, prompts=(replace(conversation, messages=messages),)))
        # As many bytes as the files have for each, and those of the frames.
        assert harness.memory.holds == [2 * 3 + 5]
        harness.check_released(11)
