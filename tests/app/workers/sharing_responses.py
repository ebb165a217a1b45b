"""A supervisor with a cache of responses, and workers that ask it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.workers.shared.responses import SharedResponses
from app.workers.worker_responses import WorkerResponses
from frameworks.models.replicas.control import ControlLink, Workers
from memory.result_cache import ResultCache
from tests.app.inference.different_requests import Sender
from tests.app.workers.links import Links, linked
from tests.support.clocks import Clock
from tests.support.loops import soon


class Worker(Sender):
    """A worker that finds responses, and its counts."""

    def __init__(self, link: ControlLink) -> None:
        super().__init__()
        self.link = link
        self.responses = WorkerResponses(link, self.hits, self.misses)


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
