"""An engine process that only records: tests answer its messages themselves."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from frameworks.core.backoff import RestartBackoff
from frameworks.core.errors import ModelFailed
from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.process.wire.messages import Answer, Begun, FromEngine, Infer, Loaded, ToEngine
from frameworks.engine.process.wire.serialization import answer_to_plain
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.types import ModelSpec, TensorBatch
from tests.support.loops import soon

SPEC = ModelSpec("fake", "tensor", (), (), "cpu", "float32", 1)
CRASH = Loss("sigsegv", "the engine process ended by SIGSEGV")

Kind = TypeVar("Kind", bound=ToEngine)


class FakeLink:
    """Implement OwnerLink. `sent`: all messages, in order."""

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.sent: list[ToEngine] = []
        self.num_leases = 0
        self.is_full = False
        self.is_lost = False
        self.has_ended = False

    def send(self, message: ToEngine) -> None:
        if not self.is_lost:
            self.sent.append(message)

    def lease_body(self, nbytes: int) -> None:
        """It has no shared memory."""

    def kill(self, label: str, reason: str) -> None:
        asyncio.get_running_loop().call_soon(self.lose, Loss(label, reason))

    def abandon(self, reason: str) -> None:
        self.kill("aborted", reason)

    def attach(self) -> list[int]:
        return [1, 2, 3]

    async def ended(self, within_s: float) -> None:
        self.has_ended = True

    def lose(self, loss: Loss = CRASH) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.engine.lost(loss)

    def sent_of(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.sent if isinstance(message, kind)]

    def begin(self, *numbers: int) -> None:
        self.engine.received([Begun(list(numbers), 0.0)])

    def receive(self, *messages: FromEngine) -> None:
        self.engine.received(messages)

    def complete(self, *numbers: int) -> None:
        """Answer requests with their own numbers."""
        self.receive(*(Answer(each, answer_to_plain({"y": np.array([each])}), 0.5, 0.25) for each in numbers))


class Harness:
    """An engine whose processes are fakes. Its clock goes on by itself: no restart waits."""

    def __init__(self, max_batch_seconds: float | None = None, spec: ModelSpec = SPEC) -> None:
        self.spec = spec
        self.links: list[FakeLink] = []
        self.counts = RunCounts()
        self.failures: list[Exception] = []
        """Errors of the next starts; the start after each waits for `may_start`."""
        self.may_start = asyncio.Event()
        self.may_start.set()
        self._now_s = 0.0
        limits = BatchLimits(max_rows=4, max_tokens=None, max_delay_s=0.0)
        self.settings = EngineSettings("m", limits, 1.0, max_batch_seconds=max_batch_seconds)
        self.engine = ProcessEngine(self.settings, self.counts, self._start, RestartBackoff(self._clock))

    @property
    def link(self) -> FakeLink:
        """The latest process."""
        return self.links[-1]

    async def restarted(self, count: int = 2) -> FakeLink:
        """Wait for that many starts in all, and return the link of the last."""
        await soon(lambda: len(self.links) >= count and self.engine.outage is None)
        return self.links[count - 1]

    def submit(self, x: float = 1.0) -> "asyncio.Future[Any]":
        return self.engine.submit(TensorBatch({"x": np.array([x], np.float32)}))

    def numbers(self, link: FakeLink | None = None) -> list[int]:
        """The numbers of the requests that were sent to a process."""
        return [message.id for message in (link or self.link).sent_of(Infer)]

    async def _start(self, engine: ProcessEngine) -> Started:
        await self.may_start.wait()
        if self.failures:
            self.may_start.clear()
            raise self.failures.pop()
        self.links.append(FakeLink(engine))
        return Started(self.links[-1], Loaded(None, 1, 0.5, 0.1), self.spec)

    def _clock(self) -> float:
        self._now_s += 10.0
        return self._now_s


async def outcomes(futures: Sequence["asyncio.Future[Any]"]) -> list[Any]:
    """Return for each request its number, or the kind of its error."""
    results = await asyncio.gather(*futures, return_exceptions=True)
    return [each if isinstance(each, BaseException) else int(each["y"][0]) for each in results]


def is_failed(outcome: object) -> bool:
    return isinstance(outcome, ModelFailed) and outcome.retry_after_s is not None
