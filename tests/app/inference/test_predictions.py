"""Predictions of a task's inputs, each by a request of its own."""

import asyncio
from typing import Any

import pytest

from app.inference.predictions import PredictionStream, predict_each
from app.inference.response_cache import key_of
from frameworks.core.errors import DeadlineExceeded, InvalidInput
from frameworks.tasks.inputs import build_request
from frameworks.tasks.speaking import TEXT_TO_AUDIO
from frameworks.tasks.types import TaskAnswer, TaskRequest
from tests.support.loops import in_loop

TEXTS = [f"text {number}" for number in range(20)]
REQUEST = TaskRequest([{"text": text} for text in TEXTS], {"seed": 1})


class Engine:
    """Answer a request of one input by its text. `refused`: the text that is refused."""

    def __init__(self, refused: str = "", seconds: float = 0.0) -> None:
        self.asked: list[str] = []
        self.most_at_once = self._at_once = 0
        self._refused = refused
        self._seconds = seconds

    async def run(self, request: TaskRequest) -> TaskAnswer:
        [task_input] = request.inputs
        assert request.parameters == {"seed": 1}
        self.asked.append(task_input["text"])
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(self._seconds)
        self._at_once -= 1
        if task_input["text"] == self._refused:
            raise InvalidInput("text", "expected another one")
        return TaskAnswer([task_input["text"].upper()])


@in_loop
async def test_predictions_have_order_of_inputs() -> None:
    engine = Engine()
    answer = await predict_each(engine.run, REQUEST)
    assert answer.predictions == [text.upper() for text in TEXTS]
    assert 1 < engine.most_at_once < len(TEXTS)


@in_loop
async def test_refused_input_is_named_by_position() -> None:
    with pytest.raises(InvalidInput, match=r"text\[3\]: expected another one"):
        await predict_each(Engine(refused="text 3").run, REQUEST)


@in_loop
async def test_stream_asks_for_next_when_read() -> None:
    engine = Engine()
    stream = PredictionStream(engine.run, REQUEST, None)
    assert await anext(stream) == "TEXT 0"
    assert engine.asked == ["text 0"]
    assert [each async for each in stream] == [text.upper() for text in TEXTS[1:]]
    assert engine.most_at_once == 1
    assert stream.ready() == []


@in_loop
async def test_stream_ends_at_deadline() -> None:
    stream = PredictionStream(Engine(seconds=10).run, REQUEST, 0.01)
    with pytest.raises(DeadlineExceeded, match="timeout_ms"):
        await anext(stream)


@pytest.mark.parametrize(
    ("parameters", "is_random"), [({}, True), ({"seed": 0}, False), ({"speaking_rate": 2.0}, True)]
)
def test_key_is_absent_without_seed(parameters: dict[str, Any], is_random: bool) -> None:
    request = build_request(TEXT_TO_AUDIO, [{"text": "a"}], parameters, ["text"])
    assert request.is_random is is_random
    assert (key_of(("tenant",), request)[0] is None) is is_random
