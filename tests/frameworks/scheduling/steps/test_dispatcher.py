"""Test how sequences are distributed over instances, and the death of an instance."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import Draining, ModelFailed
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.scheduling.steps.worker import StepWorker
from tests.frameworks.scheduling.steps.harness import read_all, text_of, wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.step_models import EchoModel

_ids = count(1)


def request(prompt: str = "abc", max_tokens: int = 5) -> SequenceRequest:
    return SequenceRequest(next(_ids), tuple(prompt.encode()), max_tokens, Sampling(), priority=5)


@asynccontextmanager
async def dispatcher_of(*models: EchoModel) -> AsyncIterator[StepDispatcher]:
    counts = StepCounts()
    dispatcher = StepDispatcher("m", [StepWorker("m", model, counts) for model in models])
    try:
        yield dispatcher
        await soon(lambda: not dispatcher.is_running)
        dispatcher.check_integrity()
    finally:
        await asyncio.wait_for(dispatcher.close(), 60)
        assert all(model.is_closed for model in models)


@in_loop
async def test_next_sequence_runs_on_least_busy_instance() -> None:
    gates = [Gate(), Gate()]
    models = [EchoModel(gate) for gate in gates]
    async with dispatcher_of(*models) as dispatcher:
        feeds = [dispatcher.open([request()]) for _ in range(4)]
        await asyncio.gather(*map(wait_for_arrival, gates))
        feeds[0].close()
        feeds[2].close()
        feeds += [dispatcher.open([request()]) for _ in range(2)]
        for gate in gates:
            gate.open()
        texts = [text_of(await read_all(feed)) for feed in feeds]
        assert texts == [b"", b"abcab", b"", b"abcab", b"abcab", b"abcab"]
        assert [len(model.given) for model in models] == [4, 2]


@in_loop
async def test_request_runs_on_several_instances() -> None:
    models = EchoModel(), EchoModel()
    async with dispatcher_of(*models) as dispatcher:
        requests = [request("abc", 3), request("xyz", 4)]
        begun: list[object] = []
        tokens = await read_all(dispatcher.open(requests, lambda: begun.append(None)))
        texts = [text_of([t for t in tokens if t.sequence_id == r.sequence_id]) for r in requests]
        assert texts == [b"abc", b"xyzx"]
        assert [len(model.given) for model in models] == [1, 1]
        assert len(begun) == 2
        assert [stats.prompt_tokens for stats in dispatcher.stats] == [3, 3]


@in_loop
async def test_dead_instance_fails_requests_with_sequences_there() -> None:
    gate = Gate()

    def die(_: list[str]) -> None:
        gate()
        raise SystemExit

    with capture_logs():
        async with dispatcher_of(EchoModel(die), EchoModel()) as dispatcher:
            # They are read at once: the living instance may generate more than a feed keeps.
            both = task(read_all(dispatcher.open([request(), request(max_tokens=4000)])))
            other = task(read_all(dispatcher.open([request(), request()])))
            await wait_for_arrival(gate)
            gate.open()
            with pytest.raises(ModelFailed):
                await both
            with pytest.raises(ModelFailed):
                await other
            assert not dispatcher.is_dead
            assert text_of(await read_all(dispatcher.open([request()]))) == b"abcab"


@in_loop
async def test_open_without_instance_raises_model_failed() -> None:
    def die(_: list[str]) -> None:
        raise SystemExit

    with capture_logs():
        async with dispatcher_of(EchoModel(die)) as dispatcher:
            with pytest.raises(ModelFailed):
                await read_all(dispatcher.open([request()]))
            assert dispatcher.is_dead
            assert not dispatcher.is_running
            with pytest.raises(ModelFailed):
                dispatcher.open([request()])


@in_loop
async def test_abort_fails_every_reader() -> None:
    gates = [Gate(), Gate()]
    async with dispatcher_of(*map(EchoModel, gates)) as dispatcher:
        readers = [task(read_all(dispatcher.open([request(), request()]))) for _ in range(3)]
        await asyncio.gather(*map(wait_for_arrival, gates))
        dispatcher.abort("too late")
        errors = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 60)
        assert [type(error) for error in errors] == [Draining] * 3
        for gate in gates:
            gate.open()
