"""The idle callback of a model runs once when its thread becomes idle."""

import asyncio
import queue
import threading

import pytest

from frameworks.scheduling import worker_inbox
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.worker_inbox import next_message
from tests.frameworks.scheduling.steps.harness import read_all, running_worker
from tests.support.batch_models import DoublingModel, numbers
from tests.support.loops import in_loop, soon
from tests.support.step_models import EchoModel


@pytest.fixture(autouse=True)
def short_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_inbox, "IDLE_AFTER_S", 0.005)


def test_available_item_skips_idle_callback() -> None:
    messages: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(100):
        messages.put(number)
    assert [next_message(messages, pytest.fail) for _ in range(100)] == [*range(100)]


def test_late_item_follows_one_idle_callback() -> None:
    messages: queue.SimpleQueue[int] = queue.SimpleQueue()
    idle_calls: list[None] = []

    def on_idle() -> None:
        idle_calls.append(None)
        threading.Timer(0.1, messages.put, [7]).start()

    assert next_message(messages, on_idle) == 7
    assert len(idle_calls) == 1


def test_failing_idle_callback_is_ignored() -> None:
    messages: queue.SimpleQueue[int] = queue.SimpleQueue()

    def on_idle() -> None:
        threading.Timer(0.05, messages.put, [7]).start()
        raise OSError("the library is missing")

    assert next_message(messages, on_idle) == 7


@in_loop
async def test_batch_model_idles_on_its_thread() -> None:
    model = DoublingModel()
    worker = BatchWorker("m", model)
    # A new worker is idle, so the number of calls does not depend on when the first batch is submitted.
    await soon(lambda: len(model.idle_calls) == 1)
    for calls in (2, 3):
        result = await worker.submit(lambda: numbers(3))
        assert result.outputs["y"] == [6]
        await soon(lambda calls=calls: len(model.idle_calls) == calls)  # type: ignore[misc]
    await asyncio.sleep(0.05)
    assert model.idle_calls == ["worker-m"] * 3
    await asyncio.wait_for(worker.close(), 60)


@in_loop
async def test_step_model_idles_between_texts_only() -> None:
    async with running_worker(EchoModel(lambda prompts: None)) as harness:
        await soon(lambda: len(harness.model.idle_calls) == 1)
        assert len(await read_all(harness.open("abc", 500))) == 500
        await soon(lambda: len(harness.model.idle_calls) == 2)
        await asyncio.sleep(0.05)
        assert harness.model.idle_calls == ["worker-m"] * 2
