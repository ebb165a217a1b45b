"""EngineHost behind a real channel in the loop of the test: its answers, their messages, and nothing left behind."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.engine.process.messages import (
    Answer,
    Begun,
    Cancel,
    Close,
    Closed,
    Counted,
    Counts,
    EndRequests,
    Failed,
    Free,
    Infer,
    Load,
    Loaded,
    LoadFailed,
    Needs,
    Ping,
    Pong,
    Proceed,
    ToEngine,
)
from frameworks.engine.process.plain import answer_from_plain, error_from_plain, request_to_plain
from frameworks.engine.process.specs import spec_from_plain
from frameworks.errors import Draining, InvalidInput, InvalidModel, ModelFailed, OutOfMemory
from frameworks.text.config import TextConfig
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import PairRequest, TensorBatch, TextRequest
from tests.support.batch_models import DoublingModel, Gate, numbers
from tests.support.engine_hosts import (
    ARENA_BYTES,
    CPU,
    DEFAULT_TENANT,
    SETTINGS,
    ArrayModel,
    FakeSource,
    HostLink,
    TextModel,
    array_rows,
    hosted,
    measured,
)
from tests.support.loops import in_loop, settle, soon
from tests.support.models.text_files import write_tokenizer

LARGE = (64, 256)  # 64 KiB of float32


def outputs(answer: Answer) -> dict[str, Any]:
    value = answer_from_plain(answer.answer)
    assert isinstance(value, dict)
    return value


def tokenizer(folder: Path) -> TextTokenizer:
    write_tokenizer(folder)
    config = TextConfig(16, 0, None, True, "", False, "", "bert", ("relevant", "other"), False, False)
    return TextTokenizer(folder, config)


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
async def test_begun_is_left_out_before_answer() -> None:
    async with hosted(FakeSource(ArrayModel())) as link:
        await link.load()
        # The first run shows that the shape is light.
        link.infer(array_rows(1, 4))
        await link.next(Answer)
        for _ in range(3):
            number = link.infer(array_rows(1, 4))
            await soon(lambda: bool(link.of(Answer)))
            assert not link.of(Begun)
            assert (await link.next(Answer)).id == number


@in_loop
async def test_begun_is_sent_for_long_run() -> None:
    gate = Gate()
    async with hosted(FakeSource(DoublingModel(gate))) as link:
        await link.load()
        first = link.infer(numbers(1))
        assert (await link.next(Begun)).ids == [first]
        gate.open()
        await link.next(Answer)


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
async def test_counts_arrive_before_last_answer() -> None:
    async with hosted(FakeSource(ArrayModel())) as link:
        await link.load()
        for rows in (1, 3):
            link.infer(array_rows(rows, 4))
            counts = await link.next(Counts)
            assert not link.of(Counts)
            await link.next(Answer)
            assert counts.batches is not None
            assert counts.batches.sizes == {rows: 1}
            assert counts.batches.seconds.keys() == {rows}
            assert counts.batches.tenant_seconds.keys() == {""}


@in_loop
async def test_cancelled_batch_is_counted() -> None:
    gate = Gate()
    async with hosted(FakeSource(DoublingModel(gate))) as link:
        await link.load()
        number = link.infer(numbers(1))
        await link.next(Begun)
        link.send(Cancel(number))
        await settle()
        gate.open()
        counts = await link.next(Counts)
        assert counts.batches is not None
        assert counts.batches.sizes == {1: 1}


@in_loop
async def test_pong_has_seconds_of_run() -> None:
    gate = Gate()
    async with hosted(FakeSource(DoublingModel(gate))) as link:
        link.send(Ping(1))
        assert await link.next(Pong) == Pong(1, 0.0)
        await link.load()
        link.send(Ping(2))
        assert await link.next(Pong) == Pong(2, 0.0)
        link.infer(numbers(1))
        await soon(gate.arrived.is_set)
        link.send(Ping(3))
        first = await link.next(Pong)
        link.send(Ping(4))
        second = await link.next(Pong)
        assert 0.0 < first.running_s < second.running_s
        gate.open()
        await link.next(Answer)


@in_loop
async def test_metered_request_waits_for_proceed(tmp_path: Path) -> None:
    async with hosted(FakeSource(TextModel(tokenizer(tmp_path), "embed"))) as link:
        await link.load()
        request = TextRequest(["the cat", "sat"])
        first, refused = (link.infer(request, is_metered=True) for _ in range(2))
        counted = [await link.next(Counted) for _ in range(2)]
        assert {(each.id, each.tokens) for each in counted} == {(first, 7), (refused, 7)}
        await settle()
        assert not link.of(Answer)
        link.send(Cancel(refused))
        link.send(Proceed(refused))
        link.send(Proceed(first))
        link.send(Proceed(first))
        assert (await link.next(Answer)).id == first
        await settle()
        assert not link.of(Answer)


@in_loop
async def test_text_request_reports_decode_time(tmp_path: Path) -> None:
    async with hosted(FakeSource(TextModel(tokenizer(tmp_path), "classify"))) as link:
        await link.load()
        link.infer(PairRequest([("the cat", "sat")]))
        assert (await link.next(Answer)).decode_s > 0


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


@in_loop
async def test_output_of_unknown_type_fails_request() -> None:
    class Strange(DoublingModel):
        def infer(self, batch: Any) -> dict[str, Any]:
            return {"y": [object()]}

    async with hosted(FakeSource(Strange())) as link:
        await link.load()
        link.infer(numbers(1))
        assert "object" in (await link.next(Failed)).error.message


async def _all_answered(link: HostLink, count: int) -> None:
    await soon(lambda: len(link.of(Answer)) == count)


@in_loop
async def test_answers_of_one_round_share_frame() -> None:
    async with hosted(FakeSource(ArrayModel())) as link:
        await link.load()
        # The first run shows that the shape is light.
        link.infer(array_rows(1, 4))
        await link.next(Answer)
        for _ in range(4):
            link.infer(TensorBatch({"x": np.ones((1, 4), np.float32)}))
        await _all_answered(link, 4)
        [frame] = [each for each in link.frames if any(isinstance(message, Answer) for message in each)]
        assert [type(message) for message in frame] == [Answer, Answer, Answer, Counts, Answer]
        assert not link.of(Begun)


@in_loop
async def test_failed_request_frees_blocks() -> None:
    async with hosted(FakeSource(ArrayModel(broken))) as link:
        await link.load()
        link.infer(array_rows(*LARGE))
        await link.next(Failed)
        await soon(lambda: link.num_leases == 0)
