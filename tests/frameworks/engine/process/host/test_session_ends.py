"""Several clients of one host in the loop of the test: each ends alone, and leaves nothing behind."""

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import pytest

from frameworks.core.channel.descriptors import DescriptorSocket, socket_pair
from frameworks.core.errors import Draining
from frameworks.engine.process.host import event_loop
from frameworks.engine.process.wire.messages import (
    Answer,
    Begun,
    Close,
    Closed,
    Counted,
    EndRequests,
    Failed,
    Free,
    Generate,
    Infer,
    Load,
    Ping,
    Pong,
    ToEngine,
)
from frameworks.engine.process.wire.serialization import error_from_plain, request_to_plain
from frameworks.generation.types import GenerateRequest, Stopping
from frameworks.types import TextRequest
from tests.frameworks.engine.process.host.test_hosted_model import LARGE
from tests.frameworks.engine.process.host.test_hosted_model_times import tokenizer
from tests.frameworks.engine.process.sharing import num_calls, rows_counted, sharing, value_of
from tests.support.batch_models import DoublingModel, Gate, numbers
from tests.support.engine_hosts import (
    CPU,
    SETTINGS,
    ArrayModel,
    FakeSource,
    HostLink,
    TextModel,
    arenas,
    array_rows,
    attached,
    hosted,
    measured,
)
from tests.support.loops import in_loop, settle, soon, task
from tests.support.step_models import EchoModel, StepGate


@in_loop
async def test_lost_client_leaves_nothing() -> None:
    gate = Gate()
    model = ArrayModel(gate, runs_by_shape=False)
    async with sharing(model) as (owner, first, second):
        tasks = len(asyncio.all_tasks())
        first.infer(array_rows(*LARGE))
        await soon(gate.arrived.is_set)
        # One runs and one waits; the other client has one that waits.
        first.infer(array_rows(2, 300))
        second.infer(array_rows(2, 256))
        await soon(lambda: num_calls(owner) == 3)
        first.channel.fail("the client has crashed")
        await soon(lambda: num_calls(owner) == 1)
        gate.open()
        assert value_of(await second.next(Answer))[0][0] == 2.0
        assert model.executed[1:] == [[2]]
        await soon(lambda: owner.process.num_tensors_in_use == 0)
        assert len(asyncio.all_tasks()) == tasks
        owner.infer(array_rows(1, 4))
        await owner.next(Answer)
        # One of the parts of the first request, the second one's, and the last.
        await soon(lambda: rows_counted(owner) == 8 + 2 + 1)


@in_loop
async def test_lost_client_ends_its_generations() -> None:
    gate = StepGate(1)
    model = EchoModel(gate)
    async with sharing(model) as (owner, first, second):
        request = request_to_plain(GenerateRequest(("hello",), stopping=Stopping(max_tokens=5)))
        for link in (first, second):
            link.send(Generate(1, request, 5, ("", 1.0, False), 0.0, None, True))
        await soon(lambda: num_calls(owner) == 2)
        first.channel.fail("the client has crashed")
        await soon(lambda: num_calls(owner) == 1)
        gate.open()
        await soon(lambda: num_calls(owner) == 0 and not model.has_work)


@in_loop
async def test_lost_client_ends_metered_requests(tmp_path: Path) -> None:
    async with sharing(TextModel(tokenizer(tmp_path), "embed")) as (owner, first, _):
        tasks = len(asyncio.all_tasks())
        first.infer(TextRequest(["the cat"]), is_metered=True)
        await first.next(Counted)
        first.channel.fail("the client has crashed")
        await soon(lambda: num_calls(owner) == 0 and len(asyncio.all_tasks()) == tasks)


@in_loop
async def test_end_of_requests_spares_other_clients() -> None:
    gate = Gate()
    async with sharing(DoublingModel(gate)) as (owner, first, second):
        running = first.infer(numbers(1))
        await first.next(Begun)
        waiting, kept = first.infer(numbers(2)), second.infer(numbers(3))
        first.send(EndRequests())
        later = first.infer(numbers(4))
        failed = [await first.next(Failed) for _ in range(2)]
        assert [message.id for message in failed] == [waiting, later]
        assert all(isinstance(error_from_plain(message.error), Draining) for message in failed)
        gate.open()
        assert (await first.next(Answer)).id == running
        assert (await second.next(Answer)).id == kept
        owner.infer(numbers(5))
        await owner.next(Answer)


@in_loop
async def test_end_of_requests_ends_generations() -> None:
    gate = StepGate(1)
    model = EchoModel(gate)
    async with sharing(model) as (owner, first, _):
        request = request_to_plain(GenerateRequest(("hello",), stopping=Stopping(max_tokens=5)))
        first.send(Generate(1, request, 5, ("", 1.0, False), 0.0, None, True))
        await soon(lambda: bool(first.messages))
        first.send(EndRequests())
        assert isinstance(error_from_plain((await first.next(Failed)).error), Draining)
        first.send(Generate(2, request, 5, ("", 1.0, False), 0.0, None, True))
        assert (await first.next(Failed)).id == 2
        gate.open()
        await soon(lambda: not model.has_work and num_calls(owner) == 0)


@in_loop
async def test_closed_client_gets_answers_first() -> None:
    gate = Gate()
    async with sharing(DoublingModel(gate)) as (owner, first, second):
        number = first.infer(numbers(1))
        await first.next(Begun)
        first.send(Close())
        first.send(Close())
        late = first.infer(numbers(2))
        assert (await first.next(Failed)).id == late
        assert first.lost is None
        gate.open()
        assert (await first.next(Answer)).id == number
        await first.next(Closed)
        await soon(lambda: first.lost == "the peer closed the connection")
        second.infer(numbers(3))
        await second.next(Answer)
        assert owner.lost is None


@in_loop
async def test_client_lost_while_it_closes() -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    gate = Gate()
    async with sharing(DoublingModel(gate)) as (owner, first, _):
        tasks = len(asyncio.all_tasks())
        first.infer(numbers(1))
        await first.next(Begun)
        first.send(Close())
        await soon(lambda: len(asyncio.all_tasks()) == tasks + 1)
        first.channel.fail("the client has crashed")
        await soon(lambda: len(asyncio.all_tasks()) == tasks)
        gate.open()
        await soon(lambda: num_calls(owner) == 0)
        gc.collect()
        assert errors == []


def infer(request: object, number: int = 1) -> Infer:
    return Infer(number, request, 5, ("", 1.0, False), 0.0)


@pytest.mark.parametrize(
    "damaged",
    [
        [infer(["TensorBatch", {"x": 1}, "y"])],
        [infer(["os.system", "true"])],
        [infer(request_to_plain(numbers(1))), infer(request_to_plain(numbers(1)))],
        [Free([12])],
        [Load(CPU, SETTINGS)],
        [measured(Path("/absent"))],
        [Answer(1, None, 0.0, 0.0)],
    ],
    ids=["request", "class", "number", "block", "load", "measure", "direction"],
)
@in_loop
async def test_damaged_message_ends_its_client_only(damaged: list[ToEngine]) -> None:
    gate = Gate()
    async with sharing(DoublingModel(gate)) as (owner, first, second):
        second.infer(numbers(3))
        await soon(gate.arrived.is_set)
        for message in damaged:
            first.send(message)
        await soon(lambda: first.lost is not None)
        assert num_calls(owner) == 1
        gate.open()
        assert value_of(await second.next(Answer)) == [6]
        assert owner.lost is None
        third = await attached(owner)
        third.infer(numbers(4))
        assert value_of(await third.next(Answer)) == [8]
        third.channel.close()


@in_loop
async def test_client_before_load_ends_alone() -> None:
    async with hosted(FakeSource(DoublingModel())) as owner:
        early = await attached(owner)
        early.send(Ping(1))
        await early.next(Pong)
        early.infer(numbers(1))
        await soon(lambda: early.lost is not None)
        await owner.load()


@in_loop
async def test_owner_takes_clients_with_it() -> None:
    gate = Gate()
    async with sharing(DoublingModel(gate)) as (owner, first, second):
        first.infer(numbers(1))
        await first.next(Begun)
        owner.channel.close()
        await soon(lambda: first.lost is not None and second.lost is not None)
        gate.open()


@in_loop
async def test_close_of_owner_answers_clients() -> None:
    gate = Gate()
    async with sharing(DoublingModel(gate)) as (owner, first, second):
        running, waiting = first.infer(numbers(1)), second.infer(numbers(2))
        await soon(lambda: num_calls(owner) == 2)
        owner.send(Close())
        await settle()
        gate.open()
        assert (await first.next(Answer)).id == running
        assert (await second.next(Answer)).id == waiting
        await owner.next(Closed)
        await soon(lambda: first.lost is not None and second.lost is not None)


@in_loop
async def test_closed_client_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_TRIM_S", 0.001)
    async with sharing(DoublingModel()) as (owner, first, _):
        assert len(owner.process._clients) == 3
        first.channel.close()
        await soon(lambda: len(owner.process._clients) == 2)


@in_loop
async def test_incomplete_descriptors_spare_other_clients() -> None:
    async with hosted(FakeSource(DoublingModel())) as owner:
        await owner.load()
        ours, theirs = map(DescriptorSocket, socket_pair())
        accepting = task(owner.process.accept(theirs))
        one, other = socket.socketpair()
        with one:
            with other:
                ours.send(1, [other.fileno()])
            assert await asyncio.to_thread(one.recv, 1) == b""
        link = HostLink(*arenas())
        one, other = socket.socketpair()
        with other:
            ours.send(2, [other.fileno(), link.requests.fd, link.answers.fd])
        await link.channel.open(one)
        link.infer(numbers(1))
        assert value_of(await link.next(Answer)) == [2]
        link.channel.close()
        accepting.cancel()
        ours.close()
        theirs.close()
