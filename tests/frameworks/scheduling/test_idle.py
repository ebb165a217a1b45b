"""The idle callback of a model runs once when its thread becomes idle."""

import asyncio
import queue
import threading

import pytest

from frameworks.scheduling import idle
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.idle import next_message
from tests.frameworks.scheduling.steps.harness import read_all, running_worker
from tests.support.batch_models import DoublingModel, numbers
from tests.support.loops import in_loop, soon
from tests.support.step_models import EchoModel


@pytest.fixture(autouse=True)
def soon_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "IDLE_AFTER_S", 0.005)


def test_available_item_skips_idle_callback() -> None:
    messages: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(100):
        messages.put(number)
    assert [next_message(messages, pytest.fail) for _ in range(100)] == [*range(100)]


def test_late_item_follows_one_idle_callback() -> None:
    messages: queue.SimpleQueue[int] = queue.SimpleQueue()
    rests: list[None] = []
    threading.Timer(0.1, messages.put, [7]).start()
    assert next_message(messages, lambda: rests.append(None)) == 7
    assert len(rests) == 1


def test_missing_idle_callback_is_allowed() -> None:
    def cannot() -> None:
        raise OSError("it has no library")

    messages: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Timer(0.05, messages.put, [7]).start()
    assert next_message(messages, cannot) == 7


@in_loop
async def test_batch_model_idles_on_its_thread() -> None:
    model = DoublingModel()
    worker = BatchWorker("m", model)
    for rests in (1, 2):
        result = await worker.submit(lambda: numbers(3))
        assert result.outputs["y"] == [6]
        await soon(lambda rests=rests: len(model.rests) == rests)  # type: ignore[misc]
    await asyncio.sleep(0.05)
    assert model.rests == ["worker-m"] * 2
    await asyncio.wait_for(worker.close(), 60)


@in_loop
async def test_step_model_idles_between_texts_only() -> None:
    async with running_worker(EchoModel(lambda prompts: None)) as harness:
        await soon(lambda: len(harness.model.rests) == 1)
        assert len(await read_all(harness.open("abc", 500))) == 500
        await soon(lambda: len(harness.model.rests) == 2)
        await asyncio.sleep(0.05)
        assert harness.model.rests == ["worker-m"] * 2
