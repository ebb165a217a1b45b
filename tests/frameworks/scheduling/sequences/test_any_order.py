"""Random steps of many sequences, some cancelled, failed or idle: the answers are those of plain loops."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from frameworks.core.errors import InvalidInput, Overloaded, SequenceNotFound
from frameworks.core.tenants import Tenant
from frameworks.scheduling.sequences.state_store import SEQUENCE_BYTES, SequenceKey
from frameworks.types import Array, SequenceId
from tests.frameworks.scheduling.sequences.stepping import Stepping, load
from tests.support.loops import soon
from tests.support.models.onnx_graphs import session
from tests.support.models.onnx_recurrent import HIDDEN, INPUTS, Loop, lstm

GRAPH = lstm()
IDLE_S = 10.0
ROOM = 4
"""Sequences whose states have room."""
MAX_BYTES = ROOM * (SEQUENCE_BYTES + 2 * HIDDEN * 4)
TENANTS = (Tenant("red"), Tenant("blue"))
IDS: tuple[SequenceId, ...] = (1, 2, "1", "two")


class Sent:
    """A step that was sent."""

    def __init__(self, key: SequenceKey, x: Array, start: bool, end: bool, future: "asyncio.Future[Any]") -> None:
        self.key = key
        self.x = x
        self.start = start
        self.end = end
        self.future = future


class SequencesMachine(RuleBasedStateMachine):
    """The loop runs within rules only. `loops`: the reference of each sequence that runs, and when it had a step."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.session = session(GRAPH)
        self.random = np.random.default_rng(0)
        model = load(Path(self.folder.name), GRAPH, max_state_bytes=MAX_BYTES, max_sequence_idle_s=IDLE_S)
        self.running = self.run(self._open(model))
        self.loops: dict[SequenceKey, tuple[Loop, float]] = {}
        self.sent: list[Sent] = []

    async def _open(self, model: Any) -> Stepping:
        return Stepping(model)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @rule(
        tenant=st.sampled_from(TENANTS),
        number=st.sampled_from(IDS),
        start=st.booleans(),
        end=st.booleans(),
        is_wrong=st.sampled_from([False] * 5 + [True]),
        count=st.integers(1, 3),
    )
    def send(self, tenant: Tenant, number: SequenceId, start: bool, end: bool, is_wrong: bool, count: int) -> None:
        """Send steps of a sequence at once; only the first and the last of them have a flag."""

        async def send_all() -> None:
            for at in range(count):
                x = self.random.random((1, INPUTS + is_wrong), np.float32)
                flags = start and not at, end and at == count - 1
                future = self.running.send(number, {"x": x}, *flags, tenant=tenant)
                self.sent.append(Sent(SequenceKey(tenant.name, number), x, *flags, future))

        self.run(send_all())

    @rule(at=st.integers(0, 20))
    def cancel(self, at: int) -> None:
        if self.sent:
            self.sent[at % len(self.sent)].future.cancel()

    @rule(seconds=st.sampled_from([1.0, IDLE_S - 0.5, IDLE_S]))
    def drain_and_wait(self, seconds: float) -> None:
        """Compare all answers with the loops, in the order of the steps of each sequence; then let time pass."""

        async def drain() -> None:
            await asyncio.gather(*(each.future for each in self.sent), return_exceptions=True)
            # The last step of a sequence may have been cancelled while its batch ran.
            await soon(lambda: not self.running.sequences._lanes)

        self.run(drain())
        now_s = self.running.clock()
        for each in self.sent:
            self.check(each, now_s)
        self.sent.clear()
        self.running.clock.now_s += seconds
        self.loops = {
            key: (loop, at_s) for key, (loop, at_s) in self.loops.items() if at_s + IDLE_S > self.running.clock()
        }
        self.running.sequences.store.expire()
        assert len(self.running.sequences.store) == len(self.loops)

    def check(self, sent: Sent, now_s: float) -> None:
        loop = None if sent.start else self.loops.get(sent.key, (None, 0.0))[0]
        if sent.start:
            self.loops.pop(sent.key, None)
        if sent.key in self.loops and loop is not None:
            self.loops[sent.key] = loop, now_s
        if sent.future.cancelled():
            return
        error = sent.future.exception()
        if sent.start:
            if isinstance(error, Overloaded):
                return
            loop = Loop(self.session)
        elif loop is None:
            assert isinstance(error, SequenceNotFound), error
            return
        assert loop is not None
        if sent.x.shape[1] != INPUTS:
            assert isinstance(error, InvalidInput), error
            return
        assert error is None, error
        outputs = sent.future.result()
        assert outputs.keys() == {"prob"}
        np.testing.assert_allclose(outputs["prob"], loop.step({"x": sent.x}), rtol=0, atol=1e-6)
        if sent.end:
            self.loops.pop(sent.key, None)
        else:
            self.loops[sent.key] = loop, now_s

    @invariant()
    def bytes_are_bounded(self) -> None:
        if hasattr(self, "running"):
            self.running.sequences.check_integrity()
            assert self.running.sequences.store.total_bytes <= MAX_BYTES

    def teardown(self) -> None:
        if hasattr(self, "running"):
            self.drain_and_wait(1.0)
            self.run(self.running.dispatcher.close())
            self.runner.close()
            self.folder.cleanup()


TestSequences = SequencesMachine.TestCase
TestSequences.settings = settings(TestSequences.settings, max_examples=25, stateful_step_count=25)
