"""EngineHost sends counts, times and the begin of runs in the right order."""

import time
from pathlib import Path

import numpy as np
import pytest

from frameworks.engine.process.wire.messages import Answer, Begun, Cancel, Counted, Counts, Ping, Pong, Proceed
from frameworks.scheduling.batch import inline
from frameworks.text.config import TextConfig
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import PairRequest, TensorBatch, TextRequest
from tests.support.batch_models import DoublingModel, Gate, numbers
from tests.support.engine_hosts import (
    ArrayModel,
    FakeSource,
    HostLink,
    TextModel,
    array_rows,
    hosted,
)
from tests.support.loops import in_loop, settle, soon
from tests.support.models.text_files import write_tokenizer


def tokenizer(folder: Path) -> TextTokenizer:
    write_tokenizer(folder)
    config = TextConfig(16, 0, None, True, "", False, "", "bert", ("relevant", "other"), False, False)
    return TextTokenizer(folder, config)


@pytest.fixture
def light_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each run be a light one, however busy the machine is."""
    monkeypatch.setattr(inline, "LIGHT_S", 60.0)


@pytest.mark.usefixtures("light_runs")
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
        # Before that, a cancelled batch does not run.
        await soon(gate.arrived.is_set)
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
        first = await link.next(Pong)
        assert (first.number, first.running_s) == (1, 0.0)
        await link.load()
        link.send(Ping(2))
        second = await link.next(Pong)
        assert (second.number, second.running_s) == (2, 0.0)
        assert first.at_s < second.at_s <= time.perf_counter()
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


async def _all_answered(link: HostLink, count: int) -> None:
    await soon(lambda: len(link.of(Answer)) == count)


@pytest.mark.usefixtures("light_runs")
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
