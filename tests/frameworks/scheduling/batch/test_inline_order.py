"""Inline runs serve the requests of one priority in the order of their arrival."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.tenants import DEFAULT_TENANT
from frameworks.core.timings import Timings
from frameworks.scheduling.batch.inline import InlineExecutor
from frameworks.scheduling.batch.request import BatchCounts, Request
from frameworks.scheduling.batch.splitting import BatchCeiling
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.scheduling.merging.rows import BatchSignature
from frameworks.types import DEFAULT_PRIORITY, TensorBatch

_MAX_ROWS = 4
_MOST_ROUNDS = 2


class _Callers:
    """Callers that each send the next request after the answer to the last. Runs advance a simulated clock."""

    def __init__(self, run_s: float) -> None:
        self.now_s = 0.0
        self._run_s = run_s
        self._sent = 0
        self.answered: list[tuple[int, int]] = []
        """The caller and the number of each request, in the order of the answers."""
        worker: Any = SimpleNamespace(model=SimpleNamespace(infer=self._infer), number=0)
        enqueue = cast(Any, None)
        self._executor = InlineExecutor(_MAX_ROWS, lambda: worker, enqueue, enqueue, BatchCeiling(), BatchCounts())
        self._share = SharedDevice().clock.share(DEFAULT_TENANT)

    def _infer(self, batch: TensorBatch) -> Any:
        self.now_s += self._run_s
        return {"y": batch.inputs["x"]}

    async def call(self, caller: int, width: int, times: int) -> None:
        signature = BatchSignature(1, width, width, True)
        self._executor.policy.learn(width, 1, 1e-6)
        for _ in range(times):
            batch = TensorBatch({"x": np.zeros((1, width), np.float32)})
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            number = self._sent = self._sent + 1
            request = Request(batch, signature, self._share, DEFAULT_PRIORITY, lambda: None, Timings(), future)
            assert self._executor.try_accept(request)
            await future
            self.answered.append((caller, number))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=24), st.sampled_from([0.0, 0.0009, 0.003]))
def test_inline_request_overtaken_by_two_rounds_at_most(widths: list[int], run_s: float) -> None:
    async def run() -> list[tuple[int, int]]:
        callers = _Callers(run_s)
        clock = SimpleNamespace(perf_counter=lambda: callers.now_s, thread_time=lambda: 0.0)
        with mock.patch("frameworks.scheduling.batch.inline.time", clock):
            await asyncio.gather(*(callers.call(caller, width, 6) for caller, width in enumerate(widths)))
        return callers.answered

    answered = asyncio.run(run())
    assert len(answered) == 6 * len(widths)
    for position, (_, number) in enumerate(answered):
        before: dict[int, int] = {}
        for caller, other in answered[:position]:
            before[caller] = before.get(caller, 0) + (other > number)
        assert max(before.values(), default=0) <= _MOST_ROUNDS
