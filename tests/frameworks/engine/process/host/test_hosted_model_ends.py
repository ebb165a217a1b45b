"""EngineHost ends its requests and its process."""

import asyncio

import pytest

from frameworks.core.errors import Draining, ModelFailed
from frameworks.engine.process.wire.messages import (
    Answer,
    Begun,
    Close,
    Closed,
    EndRequests,
    Failed,
    Free,
    Infer,
    Load,
    ToEngine,
)
from frameworks.engine.process.wire.serialization import error_from_plain, request_to_plain
from tests.support.batch_models import DoublingModel, Gate, numbers
from tests.support.engine_hosts import (
    CPU,
    DEFAULT_TENANT,
    SETTINGS,
    FakeSource,
    hosted,
)
from tests.support.loops import in_loop, settle, soon


@in_loop
async def test_end_requests_fails_waiting_and_later() -> None:
    gate = Gate()
    async with hosted(FakeSource(DoublingModel(gate))) as link:
        await link.load()
        running = link.infer(numbers(1))
        await link.next(Begun)
        waiting = [link.infer(numbers(i)) for i in (2, 3)]
        link.send(EndRequests())
        later = link.infer(numbers(4))
        failed = [await link.next(Failed) for _ in range(2)]
        gate.open()
        answers = {message.id for message in [*failed, await link.next(Failed)]}
        assert answers <= {*waiting, later, running}
        assert all(isinstance(error_from_plain(each.error), Draining) for each in failed)


@in_loop
async def test_close_answers_requests_first() -> None:
    gate = Gate()
    model = DoublingModel(gate)
    async with hosted(FakeSource(model)) as link:
        await link.load()
        number = link.infer(numbers(1))
        await link.next(Begun)
        link.send(Close())
        await settle()
        gate.open()
        assert (await link.next(Answer)).id == number
        await link.next(Closed)
        assert model.is_closed


@in_loop
async def test_dead_model_ends_process() -> None:
    def leave(_: object) -> None:
        raise SystemExit

    async with hosted(FakeSource(DoublingModel(leave)), status=1) as link:
        await link.load()
        link.infer(numbers(1))
        assert isinstance(error_from_plain((await link.next(Failed)).error), ModelFailed)
        await soon(lambda: link.lost is not None)


def infer(request: object, number: int = 1) -> Infer:
    return Infer(number, request, 5, DEFAULT_TENANT, 0.0)


@pytest.mark.parametrize(
    "damaged",
    [
        [infer(["TensorBatch", {"x": 1}, "y"])],
        [infer(["os.system", "true"])],
        [infer(request_to_plain(numbers(1))), infer(request_to_plain(numbers(1)))],
        [Free([12])],
        [Load(CPU, SETTINGS)],
        [Answer(1, None, 0.0, 0.0)],
    ],
    ids=["request", "class", "number", "block", "load", "direction"],
)
@in_loop
async def test_damaged_message_ends_process(damaged: list[ToEngine]) -> None:
    async with hosted(FakeSource(DoublingModel()), status=0 if isinstance(damaged[0], Answer) else 1) as link:
        await link.load()
        for message in damaged:
            link.send(message)
        await soon(lambda: link.lost is not None)


@in_loop
async def test_request_before_load_ends_process() -> None:
    async with hosted(FakeSource(DoublingModel()), status=1) as link:
        link.infer(numbers(1))
        await soon(lambda: link.lost is not None)


@in_loop
async def test_lost_server_ends_running_requests() -> None:
    gate = Gate()
    async with hosted(FakeSource(DoublingModel(gate))) as link:
        await link.load()
        link.infer(numbers(1))
        await link.next(Begun)
        link.channel.close()
        await asyncio.sleep(0)
        gate.open()
