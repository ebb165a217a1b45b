"""Clients of one host in the loop of the test, and what they count."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from frameworks.engine.process.wire.messages import Answer
from frameworks.engine.process.wire.serialization import answer_from_plain
from tests.support.engine_hosts import (
    FakeSource,
    HostLink,
    attached,
    hosted,
)


@asynccontextmanager
async def sharing(model: Any, status: int = 0) -> AsyncIterator[tuple[HostLink, HostLink, HostLink]]:
    """Return an owner whose model is loaded, and two further clients. Nothing of them is left after the block."""
    async with hosted(FakeSource(model), status) as owner:
        await owner.load()
        first, second = [await attached(owner) for _ in range(2)]
        try:
            yield owner, first, second
        finally:
            for link in (first, second):
                link.channel.close()
                link.tensors.close()


def num_calls(link: HostLink) -> int:
    """Return the requests of all clients that the host has."""
    return sum(len(client.calls) for client in link.process._host.clients)


def value_of(answer: Answer) -> list[Any]:
    outputs = answer_from_plain(answer.answer)
    assert isinstance(outputs, dict)
    return list(np.asarray(outputs["y"]).tolist())


def rows_counted(owner: HostLink) -> int:
    """Return the rows of all batches that were reported to the owner."""
    return sum(rows * count for rows, count in owner.counts.batches.sizes.items())
