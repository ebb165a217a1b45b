"""A group of engines whose processes are fakes: tests begin and answer the requests that each has."""

import asyncio
from typing import Any

import numpy as np

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from frameworks.engine.group import EngineGroup
from frameworks.engine.process.wire.messages import Answer, Cancel, Infer
from frameworks.engine.process.wire.serialization import answer_to_plain
from frameworks.types import DEFAULT_PRIORITY, ModelSpec, TensorBatch
from tests.frameworks.engine.process.fake_link import SPEC, Harness

ROOM = 8
"""Rows that one process gets before it answers: two batches of four."""


class FakeGroup:
    """Requests have distinct values, which the processes return."""

    def __init__(self, size: int = 2, spec: ModelSpec = SPEC) -> None:
        self.members = [Harness(spec=spec) for _ in range(size)]
        self.engine: EngineGroup

    async def open(self) -> "FakeGroup":
        for each in self.members:
            await each.engine.open()
        self.engine = EngineGroup(self.members[0].settings, [each.engine for each in self.members], 1)
        return self

    def submit(
        self,
        value: float,
        priority: int = DEFAULT_PRIORITY,
        tenant: Tenant = DEFAULT_TENANT,
        rows: int = 1,
        timings: Timings | None = None,
    ) -> "asyncio.Future[Any]":
        batch = TensorBatch({"x": np.full(rows, value, np.float32)})
        return self.engine.submit(batch, priority, timings=timings, tenant=tenant)

    def fill(self) -> "list[asyncio.Future[Any]]":
        """Give each process all that it has room for: negative values."""
        return [self.submit(-1.0 - number) for number in range(ROOM * len(self.members))]

    def has(self, member: int) -> list[float]:
        """Return the requests that a process has and has not answered, in order of their arrival there."""
        link = self.members[member].link
        over = {message.id for message in link.sent_of(Cancel)} | answered(link.sent_of(Infer), link)
        return [value_of(each) for each in link.sent_of(Infer) if each.id not in over]

    def begin(self, member: int, value: float) -> None:
        link = self.members[member].link
        link.begin(*(each.id for each in link.sent_of(Infer) if value_of(each) == value))

    def answer(self, member: int, *values: float, queue_s: float = 0.5) -> None:
        """Answer these requests of a process, or all."""
        link = self.members[member].link
        for each in link.sent_of(Infer):
            if value_of(each) in (values or self.has(member)):
                link.sent.remove(each)
                link.receive(Answer(each.id, answer_to_plain({"y": np.array([value_of(each)])}), queue_s, 0.25))


def answered(sent: list[Infer], link: Any) -> set[int]:
    """Return the numbers of requests that the engine has no more."""
    calls = link.engine._calls._calls
    return {message.id for message in sent if message.id not in calls}


def value_of(message: Infer) -> float:
    """Return the value that tells a request from the others."""
    _, inputs, *_ = message.request
    return float(inputs["x"][0])


async def values(*futures: "asyncio.Future[Any]") -> list[Any]:
    """Return the answer of each request, or the type of its error."""
    results = await asyncio.gather(*futures, return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else float(each["y"][0]) for each in results]
