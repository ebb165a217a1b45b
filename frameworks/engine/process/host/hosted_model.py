"""Own the model of an engine process: load it, report its counts, close it. The requests of all clients use it."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import ProtocolError
from frameworks.core.errors import RoundhouseError
from frameworks.engine.process.host.hosted_calls import HostedClient
from frameworks.engine.process.host.hosted_engine import HostedEngine, progress_now
from frameworks.engine.process.host.model_source import ModelSource
from frameworks.engine.process.wire.messages import (
    Close,
    Closed,
    EndRequests,
    FromEngine,
    Load,
    LoadFailed,
    LoadProgress,
    Measure,
    Needs,
    ToEngine,
)
from frameworks.engine.process.wire.serialization import error_to_plain
from frameworks.engine.threads import EngineThreads

log = structlog.get_logger(__name__)

PROGRESS_S = 1.0
"""Between two reports of a load."""


class EngineHost(HostedEngine):
    """The first client is the owner: it gives the orders, and is the reporter until the process ends."""

    def __init__(self, source: ModelSource, tidy: Callable[[], None], end: Callable[[int], None]) -> None:
        """`tidy`: called when no request is left. `end`: called with the exit status when the process has to end."""
        super().__init__(EngineThreads(), tidy, self._end_with_engine)
        self._source = source
        self._end = end
        self._owner: Channel[ToEngine]
        # A load, or the close.
        self._task: asyncio.Task[None] | None = None
        self.orders = {
            Measure: self._measure,
            Load: self._load,
            EndRequests: self._end_requests,
            Close: self._close,
        }

    def add(self, sender: Channel[ToEngine]) -> HostedClient:
        """Note a client; the first one is the owner."""
        if not self.clients:
            self._owner = sender
        return super().add(sender)

    def abort(self) -> None:
        """End the engine without an answer: the process ends."""
        if self._task is not None:
            self._task.cancel()
        super().abort()
        self._threads.close()

    def _measure(self, message: Measure) -> None:
        self._start_task(self._reply_from_thread(self._source.measure, message, Needs))

    def _load(self, message: Load) -> None:
        if self.engine is not None:
            raise ProtocolError("expected one load, got another one")
        self._start_task(
            self._reply_from_thread(self._source.load, message.device, partial(self.start, message.engine))
        )

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._task = self._loop.create_task(work)

    async def _reply_from_thread(
        self, work: Callable[[Any], Any], argument: object, reply: Callable[[Any], FromEngine]
    ) -> None:
        """Send the reply made of the result of `work(argument)`, or its error."""
        # The thread ends with the load, and with it the OpenMP threads of the load, see Loader.
        thread = ThreadPoolExecutor(1, thread_name_prefix="load")
        try:
            message = reply(await self._reported(self._loop.run_in_executor(thread, work, argument)))
        except Exception as error:
            if not isinstance(error, RoundhouseError):
                log.exception("model failed to load")
            message = LoadFailed(error_to_plain(error))
        finally:
            thread.shutdown(wait=False)
        self._owner.send(message)

    async def _reported(self, load: "asyncio.Future[Any]") -> Any:
        """Return the result of a load; send its progress meanwhile."""
        sent: LoadProgress | None = None
        try:
            while not (await asyncio.wait([load], timeout=PROGRESS_S))[0]:
                found = progress_now("load")
                if found is not None and found != sent and self._owner.is_open:
                    sent = found
                    self._owner.send(found)
            return load.result()
        finally:
            load.cancel()

    def _end_requests(self, message: EndRequests) -> None:
        if self.engine is not None:
            self.engine.end_requests()

    def _close(self, message: Close) -> None:
        self._is_over = True
        self._start_task(self._close_engine())

    async def _close_engine(self) -> None:
        if self.engine is not None:
            await self.engine.close()
        self._owner.send(Closed())
        self._end(0)

    def _end_with_engine(self) -> None:
        log.error("engine process ends, as its model has ended")
        self._end(1)
