"""EngineHost behind a real channel in the loop of the test: its answers, their messages, and nothing left behind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidInput, InvalidModel, OutOfMemory
from frameworks.core.progress import working
from frameworks.engine.process.host import hosted_model
from frameworks.engine.process.host.model_source import HostedModel
from frameworks.engine.process.wire.messages import (
    Answer,
    Cancel,
    Close,
    Closed,
    Failed,
    Load,
    Loaded,
    LoadFailed,
    LoadProgress,
    Needs,
)
from frameworks.engine.process.wire.serialization import answer_from_plain, error_from_plain, spec_from_plain
from tests.support.batch_models import DoublingModel, Gate, numbers
from tests.support.engine_hosts import (
    ARENA_BYTES,
    CPU,
    SETTINGS,
    ArrayModel,
    FakeSource,
    array_rows,
    hosted,
    measured,
)
from tests.support.loops import in_loop, settle, soon

LARGE = (64, 256)  # 64 KiB of float32


def outputs(answer: Answer) -> dict[str, Any]:
    value = answer_from_plain(answer.answer)
    assert isinstance(value, dict)
    return value


@in_loop
async def test_load_answers_needs_and_spec() -> None:
    model = ArrayModel()
    async with hosted(FakeSource(model)) as link:
        link.send(measured(Path("/absent")))
        assert (await link.next(Needs)).needs.host_bytes == 7
        link.send(Load(CPU, SETTINGS))
        loaded = await link.next(Loaded)
        assert (loaded.memory_bytes, loaded.load_s, loaded.warm_up_s) == (5, 0.25, 0.125)
        assert spec_from_plain(loaded.spec) == model.spec


@in_loop
async def test_load_receives_grant_of_device() -> None:
    grants: list[int | None] = []

    class NotedSource(FakeSource):
        def load(self, device: Device) -> HostedModel:
            grants.append(device.grant_bytes)
            return super().load(device)

    async with hosted(NotedSource(ArrayModel())) as link:
        link.send(measured(Path("/absent")))
        await link.next(Needs)
        link.send(Load(replace(CPU, grant_bytes=2**40), SETTINGS))
        await link.next(Loaded)
    assert grants == [2**40]


@in_loop
async def test_load_sends_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_model, "PROGRESS_S", 0.005)
    gate = Gate()

    class SlowSource(FakeSource):
        def load(self, device: Device) -> HostedModel:
            with working("load", "m"), working("quantize") as work:
                work.phase("layers", 8, "layers", 3)
                gate()
            return super().load(device)

    async with hosted(SlowSource(ArrayModel())) as link:
        link.send(Load(CPU, SETTINGS))
        assert await link.next(LoadProgress) == LoadProgress("quantize: layers", 3, 8, "layers")
        gate.open()
        await link.next(Loaded)


@pytest.mark.parametrize("error", [InvalidModel("damaged"), OutOfMemory("too large"), KeyError("of a library")])
@in_loop
async def test_load_error_keeps_process(error: Exception) -> None:
    async with hosted(FakeSource(error=error)) as link:
        link.send(Load(CPU, SETTINGS))
        failure = error_from_plain((await link.next(LoadFailed)).error)
        assert type(failure) is (RuntimeError if isinstance(error, KeyError) else type(error))
        assert str(error) in str(failure)
        link.send(Close())
        await link.next(Closed)


@pytest.mark.parametrize("shape", [(1, 4), LARGE])
@in_loop
async def test_answer_has_outputs_and_times(shape: tuple[int, int]) -> None:
    async with hosted(FakeSource(ArrayModel())) as link:
        await link.load()
        request = array_rows(*shape)
        number = link.infer(request)
        answer = await link.next(Answer)
        assert answer.id == number
        np.testing.assert_array_equal(outputs(answer)["y"], np.asarray(request.inputs["x"]) * 2)
        assert answer.queue_s >= 0
        assert answer.compute_s > 0
        del answer


@in_loop
async def test_full_arena_sends_answer_inline() -> None:
    async with hosted(FakeSource(ArrayModel())) as link:
        await link.load()
        rows = ARENA_BYTES // 4 // 1024 // 4
        held = []
        for _ in range(5):
            link.infer(array_rows(rows, 1024))
            held.append(outputs(await link.next(Answer))["y"])
        assert [array[0, 1] for array in held] == [4.0] * 5
        assert link.answers.stats().reads < 5
        del held


@in_loop
async def test_blocks_are_freed_when_answer_is_sent() -> None:
    gate = Gate()
    async with hosted(FakeSource(ArrayModel(gate, runs_by_shape=False))) as link:
        await link.load()
        link.infer(array_rows(*LARGE))
        await soon(gate.arrived.is_set)
        assert link.num_leases == 1
        gate.open()
        answer = outputs(await link.next(Answer))
        await soon(lambda: link.requests.stats().leases == 0)
        assert link.answers.stats().reads == 1
        del answer
        await soon(lambda: link.num_leases == 0)


@in_loop
async def test_cancelled_request_frees_blocks_without_answer() -> None:
    gate = Gate()
    model = ArrayModel(gate, runs_by_shape=False)
    async with hosted(FakeSource(model)) as link:
        await link.load()
        running, waiting = link.infer(array_rows(64, 256)), link.infer(array_rows(64, 128))
        await soon(gate.arrived.is_set)
        link.send(Cancel(waiting))
        link.send(Cancel(running))
        link.send(Cancel(77))
        await settle()
        gate.open()
        last = link.infer(array_rows(1, 4))
        assert (await link.next(Answer)).id == last
        # Of the first request one batch runs, and of the second none.
        assert model.executed == [[8], [1]]
        assert not link.of(Failed)


@in_loop
async def test_error_of_request_spares_others() -> None:
    async with hosted(FakeSource(DoublingModel())) as link:
        await link.load()
        bad, good = link.infer(numbers("bad")), link.infer(numbers(2))
        failed = await link.next(Failed)
        assert failed.id == bad
        error = error_from_plain(failed.error)
        assert isinstance(error, InvalidInput)
        assert (error.field, error.reason) == ("x", "not a number")
        assert (await link.next(Answer)).id == good


def broken(_: object) -> None:
    raise ZeroDivisionError("of a graph")


@in_loop
async def test_foreign_error_is_named() -> None:
    async with hosted(FakeSource(DoublingModel(broken))) as link:
        await link.load()
        link.infer(numbers(1))
        error = error_from_plain((await link.next(Failed)).error)
        assert type(error) is RuntimeError
        assert "ZeroDivisionError: of a graph" in str(error)


@in_loop
async def test_output_of_unknown_type_fails_request() -> None:
    class Strange(DoublingModel):
        def infer(self, batch: Any) -> dict[str, Any]:
            return {"y": [object()]}

    async with hosted(FakeSource(Strange())) as link:
        await link.load()
        link.infer(numbers(1))
        assert "object" in (await link.next(Failed)).error.message


@in_loop
async def test_failed_request_frees_blocks() -> None:
    async with hosted(FakeSource(ArrayModel(broken))) as link:
        await link.load()
        link.infer(array_rows(*LARGE))
        await link.next(Failed)
        await soon(lambda: link.num_leases == 0)
