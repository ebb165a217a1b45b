"""The hand-over of batches: its time, its instance, and the callbacks of the callers."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import ModelFailed
from frameworks.core.timings import Timings
from frameworks.types import TokenBatch
from tests.frameworks.scheduling.batch.dispatching import (
    Harness,
    RowModel,
    answers_of,
    errors_of,
    first_run,
    rows,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, settle, soon, task, worker_threads_end


class TestStart:
    @in_loop
    async def test_request_starts_at_hand_over(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        started: list[int] = []

        def ask(harness: Harness, x: int) -> "asyncio.Task[object]":
            return task(harness.run(rows(x), begin=lambda: started.append(x)))

        async with running_dispatcher(model) as harness:
            first = ask(harness, 0)
            await first_run(gate)
            assert started == [0]
            others = [ask(harness, i) for i in (1, 2)]
            await soon(lambda: harness.dispatcher.queue_depth == 2)
            assert started == [0]
            others[0].cancel()
            await asyncio.wait([others[0]])
            gate.open()
            await asyncio.gather(first, others[1])
        assert started == [0, 2]

    @in_loop
    async def test_split_request_starts_with_first_part(self) -> None:
        gates = [Gate(), Gate(), Gate()]
        calls = iter(gates)
        started: list[bool] = []
        async with running_dispatcher(RowModel(lambda _: next(calls)()), max_rows=2) as harness:
            requests = task(harness.run(rows(*range(6)), begin=lambda: started.append(True)))
            await first_run(gates[0])
            assert started
            for gate in gates:
                gate.open()
            await requests


class TestDeadlines:
    @in_loop
    @pytest.mark.parametrize("max_rows", [1, 8], ids=["in the next batch", "queued"])
    async def test_expired_request_is_never_executed(self, max_rows: int) -> None:
        gate = Gate()
        model = RowModel(gate)

        async def in_time(harness: Harness, *x: int) -> list[int]:
            async with asyncio.timeout(0.01):
                answer: list[int] = await harness.send(*x)
            return answer

        async with running_dispatcher(model, max_rows=max_rows) as harness:
            first = harness.send(0)
            await first_run(gate)
            late = [task(in_time(harness, 10 * i, 10 * i + 1, 10 * i + 2)) for i in range(1, 4)]
            patient = harness.send(1)
            assert await errors_of(*late) == [TimeoutError] * 3
            gate.open()
            assert await answers_of(first, patient) == [[0], [1]]
        assert model.executed == [[0], [1]]

    @in_loop
    async def test_request_expired_during_delay_is_never_executed(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, max_rows=2, max_delay_s=60) as harness:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await harness.run(rows(1))
            # A full batch is not delayed.
            assert await harness.send(2, 3) == [2, 3]
        assert model.executed == [[2, 3]]


class DispatcherClock:
    """A clock of the dispatcher that runs ahead of that of the requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        monkeypatch.setattr("frameworks.scheduling.batch.dispatcher.time", self)

    def perf_counter(self) -> float:
        return time.perf_counter() + self._ahead_s

    def pass_time(self, seconds: float) -> None:
        self._ahead_s += seconds
        pass_time(seconds)

    def reset(self) -> None:
        self._ahead_s = 0.0


class TestDelay:
    @in_loop
    async def test_delayed_batch_starts_after_max_delay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, clock = RowModel(), DispatcherClock(monkeypatch)
        async with running_dispatcher(model, max_delay_s=HANGS_AFTER_S) as harness:
            timings = [Timings(), Timings()]
            first = harness.dispatcher.submit(rows(0), timings=timings[0])
            submitted_s = time.perf_counter()
            await asyncio.sleep(0.02)
            between_s = time.perf_counter() - submitted_s
            second = harness.dispatcher.submit(rows(1), timings=timings[1])
            clock.pass_time(HANGS_AFTER_S / 2)
            await settle()
            assert model.executed == []
            # The delay counts from the first request.
            clock.pass_time(HANGS_AFTER_S / 2 - between_s / 2)
            await asyncio.gather(first, second)
            assert model.executed == [[0, 1]]
            assert timings[0].queue_s >= HANGS_AFTER_S
            assert timings[1].queue_s <= timings[0].queue_s - between_s
        assert harness.batch_sizes == {2: 1}

    @in_loop
    async def test_later_arrivals_do_not_extend_delay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, clock = RowModel(), DispatcherClock(monkeypatch)
        async with running_dispatcher(model, max_rows=10_000, max_delay_s=HANGS_AFTER_S) as harness:
            for round_ in range(3):
                clock.reset()
                requests = []
                for i in range(6):
                    assert len(model.executed) == round_
                    requests.append(harness.send(i))
                    await settle()
                    clock.pass_time(HANGS_AFTER_S / 6)
                assert await answers_of(*requests) == [[i] for i in range(6)]
        assert model.executed == [[*range(6)]] * 3

    @in_loop
    async def test_full_batch_skips_delay(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, max_rows=3, max_delay_s=60) as harness:
            assert await answers_of(harness.send(0), harness.send(1, 2)) == [[0], [1, 2]]
            assert await answers_of(*(harness.send(i) for i in range(6))) == [[i] for i in range(6)]
        assert [len(batch) for batch in model.executed] == [3, 3, 3]

    @in_loop
    async def test_request_cancelled_during_delay_is_never_executed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, clock = RowModel(), DispatcherClock(monkeypatch)
        async with running_dispatcher(model, max_delay_s=HANGS_AFTER_S) as harness:
            one, cancelled = harness.send(0), harness.send(1)
            await settle()  # both are submitted and the delay has begun
            assert harness.dispatcher.queue_depth == 2
            cancelled.cancel()
            clock.pass_time(HANGS_AFTER_S)
            assert await answers_of(one) == [[0]]
        assert model.executed == [[0]]


class TestInstances:
    @in_loop
    async def test_batch_goes_to_least_loaded_instance(self) -> None:
        gates = [Gate(), Gate()]
        models = [RowModel(gate) for gate in gates]
        async with running_dispatcher(*models, max_rows=1) as harness:
            stuck = harness.send(0)
            await first_run(gates[0])
            busy = harness.send(1)
            await first_run(gates[1])
            gates[1].open()
            assert await busy == [1]
            for i in range(2, 20):
                assert await asyncio.wait_for(harness.send(i), 60) == [i]
            assert not stuck.done()
            gates[0].open()
            assert await stuck == [0]
        assert [len(model.executed) for model in models] == [1, 19]
        assert [set(model.threads) for model in models] == [{"worker-m0"}, {"worker-m1"}]

    @in_loop
    async def test_instances_run_in_parallel(self) -> None:
        gate = Gate()
        models = [RowModel(gate) for _ in range(4)]
        async with running_dispatcher(*models, max_rows=1) as harness:
            requests = [harness.send(i) for i in range(4)]
            await soon(lambda: all(model.executed for model in models))
            gate.open()
            assert await answers_of(*requests) == [[i] for i in range(4)]
        assert [len(model.executed) for model in models] == [1] * 4

    @in_loop
    async def test_rows_over_instances_keep_their_order(self) -> None:
        gate = Gate()
        models = [RowModel(gate) for _ in range(3)]
        async with running_dispatcher(*models, max_rows=4) as harness:
            requests = harness.send(*range(50))
            await soon(lambda: all(model.executed for model in models))
            gate.open()
            assert await requests == list(range(50))

    @pytest.mark.parametrize("max_rows", [1, 8])
    def test_dead_instance_fails_only_its_batches(self, max_rows: int) -> None:
        gate, other_gate = Gate(), Gate()

        def die(_: list[int]) -> None:
            gate()
            raise SystemExit

        async def run() -> None:
            dying, living = RowModel(die), RowModel(other_gate)
            async with running_dispatcher(dying, living, max_rows=max_rows) as harness:
                first = harness.send(0)
                await first_run(gate)
                second = harness.send(1)
                await first_run(other_gate)
                waiting = [harness.send(i, i + 1, i + 2) for i in range(10, 70, 10)]
                await soon(lambda: harness.dispatcher.queue_depth > 0)
                gate.open()
                assert await errors_of(first) == [ModelFailed]
                await soon(lambda: harness.workers[0].is_dead)
                assert not harness.dispatcher.is_dead
                other_gate.open()
                assert await answers_of(second) == [[1]]
                outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
                for i, outcome in zip(range(10, 70, 10), outcomes, strict=True):
                    assert isinstance(outcome, ModelFailed) or outcome == [i, i + 1, i + 2]
                # Only the batch that the dead instance already held has failed.
                assert sum(isinstance(outcome, ModelFailed) for outcome in outcomes) <= (1 if max_rows == 1 else 3)
                assert await answers_of(*(harness.send(i) for i in range(5))) == [[i] for i in range(5)]
            assert dying.executed == [[0]]

        with capture_logs():
            asyncio.run(run())
        assert worker_threads_end()

    @in_loop
    async def test_two_instances_answer_texts_of_all_lengths(self) -> None:
        models = [RowModel(), RowModel()]
        async with running_dispatcher(*models) as harness:
            requests = [task(harness.run(TokenBatch([[i] * (1 + i * 7 % 60)]))) for i in range(200)]
            for i, result in enumerate(await asyncio.gather(*requests)):
                assert result["text"].tolist() == [[i, 1 + i * 7 % 60]]
        assert sum(len(batch) for model in models for batch in model.executed) == 200
