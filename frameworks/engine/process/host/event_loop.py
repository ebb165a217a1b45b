"""Run the event loop of an engine process: the channels to its clients, their shared memory, and the model."""

import asyncio
import itertools
import os
import socket
import traceback
from collections.abc import Callable, Sequence

import structlog
import uvloop

from frameworks.core.channel.channel import Channel
from frameworks.core.channel.descriptors import DescriptorSocket
from frameworks.core.channel.messages import ProtocolError
from frameworks.engine.process.host.hosted_model import EngineHost
from frameworks.engine.process.host.model_source import ModelSource
from frameworks.engine.process.host.session import ClientSession
from frameworks.engine.process.wire.arguments import StartArguments
from frameworks.engine.process.wire.messages import Free, ToEngine
from frameworks.engine.process.wire.shared_tensors import SharedTensors
from memory.garbage import collect
from memory.shared_arena import SharedArena

log = structlog.get_logger(__name__)

_SENT_POLL_S = 0.005
_TRIM_S = 1.0
_NUM_DESCRIPTORS = 3


def serve(arguments: StartArguments) -> int:
    """Answer the server until it closes the engine or ends. Returns the exit status."""
    control, requests, answers, clients = arguments.fds
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(control, requests, answers, clients))


async def _serve(control: int, requests: int, answers: int, clients: int) -> int:
    process = ServedProcess(_attached(requests), _attached(answers), ModelSource())
    await process.owner.channel.open(socket.socket(fileno=control))
    descriptors = DescriptorSocket(socket.socket(fileno=clients))
    accepting = asyncio.get_running_loop().create_task(process.accept(descriptors))
    try:
        return await process.ended()
    finally:
        accepting.cancel()
        descriptors.close()


def _attached(fd: int) -> SharedArena:
    return SharedArena.attach(fd, os.fstat(fd).st_size)


class ServedClient:
    """The channel to one client and what it uses. Owned by the event loop."""

    def __init__(
        self,
        host: EngineHost,
        requests: SharedArena,
        answers: SharedArena,
        is_owner: bool,
        on_end: Callable[["ServedClient", str, int], None],
        on_failure: Callable[[], None],
    ) -> None:
        """`requests`: written by the client. `answers`: written here.

        `on_end`: called with the reason when the connection has ended, and with an exit status: not 0 for a damaged
        message. `on_failure`: called in the handler of another exception.
        """
        self._on_end = on_end
        self._on_failure = on_failure
        self.tensors = SharedTensors(answers, requests, self._send_free)
        self.channel: Channel[ToEngine] = Channel(ToEngine, self._received, self._lost, self.tensors, self.tensors.find)
        self._session = ClientSession(host, self.channel, self.tensors.freed, is_owner, self.close)
        self.is_open = True

    def close(self) -> None:
        """Cancel the requests, send the messages before, and close the connection. Tensors in use keep their memory.

        A second call does nothing.
        """
        if not self.is_open:
            return
        self.is_open = False
        self._session.abort()
        self.channel.close()
        self.tensors.close()

    def _received(self, messages: Sequence[ToEngine]) -> None:
        try:
            self._session.received(messages)
        except ProtocolError as error:
            self._on_end(self, f"it received a damaged message: {error.message}", 1)
        except Exception:  # noqa: BLE001 - the process ends
            self._on_failure()

    def _lost(self, reason: str) -> None:
        self._on_end(self, reason, 0)

    def _send_free(self, message: Free) -> None:
        # Blocks are also released after the end of the channel.
        if self.channel.is_open:
            self.channel.send(message)


class ServedProcess:
    """The model and its clients. Owned by the event loop."""

    def __init__(self, requests: SharedArena, answers: SharedArena, source: ModelSource) -> None:
        """`requests`, `answers`: the arenas of the owner, the server that has started this process."""
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._host = EngineHost(source, self._tidy, self._end)
        # Those whose tensors are still in use after their end, too.
        self._clients: list[ServedClient] = []
        self.owner = self._add(requests, answers, is_owner=True)

    @property
    def num_tensors_in_use(self) -> int:
        """Number of blocks of all clients that are not read to the end, also of those that have ended."""
        return sum(client.tensors.num_in_use for client in self._clients)

    async def accept(self, descriptors: DescriptorSocket) -> None:
        """Serve the clients whose descriptors arrive; the owner numbers them from 1."""
        for number in itertools.count(1):
            group = await descriptors.take(number)
            try:
                await self.serve_client(group)
            except Exception:
                log.exception("client of engine process not accepted")

    async def serve_client(self, descriptors: Sequence[int]) -> None:
        """Serve a further client with its control socket, arena of requests, and arena of answers; takes them over.

        Raises OSError and SharedMemoryError; the client then finds its connection closed.
        """
        if len(descriptors) != _NUM_DESCRIPTORS:  # this process has reached its limit of descriptors
            for each in descriptors:
                os.close(each)
            raise OSError(f"expected {_NUM_DESCRIPTORS} descriptors of a client, got {len(descriptors)}")
        control, requests, answers = descriptors
        connection = socket.socket(fileno=control)
        client = self._add(_attached(requests), _attached(answers), is_owner=False)
        await client.channel.open(connection)
        self._host.describe(client.channel)

    async def ended(self) -> int:
        """Wait for the end; return the exit status. All messages before it are sent."""
        while not self._ended.done():
            self._trim()
            await asyncio.wait([self._ended], timeout=_TRIM_S)
        status = self._ended.result()
        while self._has_unsent:  # noqa: ASYNC110 - the channels have no event for it
            await asyncio.sleep(_SENT_POLL_S)
        for client in self._clients:
            client.close()
        self._host.abort()
        return status

    @property
    def _has_unsent(self) -> bool:
        return any(client.channel.is_open and client.channel.buffered_bytes for client in self._clients)

    def _add(self, requests: SharedArena, answers: SharedArena, is_owner: bool) -> ServedClient:
        client = ServedClient(self._host, requests, answers, is_owner, self._note_end, self._fail)
        self._clients.append(client)
        return client

    def _note_end(self, client: ServedClient, reason: str, status: int) -> None:
        """End the process with its owner; another client ends alone."""
        if client is self.owner:
            (log.error if status else log.info)("engine process ends", reason=reason)
            self._end(status)
        else:
            (log.error if status else log.info)("client of engine process ends", reason=reason)
            client.close()

    def _fail(self) -> None:
        # Not to the log: the server finds the cause, such as a lack of memory, in the last output.
        traceback.print_exc()
        self._end(1)

    def _trim(self) -> None:
        self._clients = [each for each in self._clients if each.is_open or each.tensors.num_in_use]
        for client in self._clients:
            client.tensors.trim()

    def _tidy(self) -> None:
        """Free the tensors of requests that failed: the frames of an error are freed by a garbage collection."""
        if self.num_tensors_in_use:
            collect()

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)
