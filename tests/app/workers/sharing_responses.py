"""A supervisor with a cache of responses, and workers that ask it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.inference.response_cache import CacheableRequest
from app.workers.shared_responses import SharedResponses
from app.workers.worker_responses import WorkerResponses
from frameworks.replicas.control import ControlLink, Workers
from frameworks.tenants import DEFAULT_TENANT, Tenant
from frameworks.types import Answer
from memory.result_cache import ResultCache
from tests.app.workers.links import Links, linked
from tests.support.clocks import Clock
from tests.support.loops import HANGS_AFTER_S, soon, task


@dataclass
class Model:
    """A model that answers on release. `num_runs`: number of calls."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Callable[[int], Answer] = lambda run: {"y": np.array([run])}
    num_runs: int = 0

    async def __call__(self) -> Answer:
        self.num_runs += 1
        run = self.num_runs
        await self.gate.wait()
        return self.answers(run)


class Worker:
    """A worker that finds responses, and its counts."""

    def __init__(self, link: ControlLink) -> None:
        self.link = link
        self.hits: Counter[tuple[str, str]] = Counter()
        self.misses: Counter[tuple[str, str]] = Counter()
        self.responses = WorkerResponses(link, self.hits, self.misses)
        self.joined = 0

    def send(
        self,
        model: Model,
        request: CacheableRequest,
        name: str = "m",
        serving: object = 1,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "asyncio.Task[Any]":
        def joined() -> None:
            self.joined += 1

        return task(self.responses.get_or_run(tenant, name, serving, request, model, joined))

    @property
    def counts(self) -> tuple[int, int]:
        """Return the hits and misses of m."""
        return self.hits["m", ""], self.misses["m", ""]


class Server:
    """A supervisor with a cache, and its workers."""

    def __init__(self, links: Links, cache: ResultCache[bytes], responses: SharedResponses) -> None:
        self.links = links
        self.cache = cache
        self.responses = responses

    async def connect(self, number: int) -> Worker:
        return Worker(await self.links.connect(number))

    async def asked(self, count: int) -> None:
        """Wait until so many callers run a request or wait."""
        await soon(lambda: len(self.responses._runs) == count)

    def check_idle(self) -> None:
        assert len(self.responses._runs) == 0


@asynccontextmanager
async def serving(
    num_workers: int = 2, max_bytes: int = 10**6, clock: Clock | None = None
) -> AsyncIterator[tuple[Server, list[Worker]]]:
    """Yield a server with workers; a `clock`: its responses expire after 10 s."""
    workers = Workers()
    cache: ResultCache[bytes] = (
        ResultCache(max_bytes, None) if clock is None else ResultCache(max_bytes, ttl_s=10.0, clock=clock)
    )
    responses = SharedResponses(cache, workers)
    async with linked(workers) as links:
        server = Server(links, cache, responses)
        yield server, [await server.connect(number) for number in range(num_workers)]


async def outcomes(*tasks: "asyncio.Task[Any]") -> list[Any]:
    """Return answers and errors. Raises TimeoutError if a request hangs."""
    return list(await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), HANGS_AFTER_S))
