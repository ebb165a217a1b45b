"""Run the event loop of an engine process: its channel, its shared memory, and the host of its model."""

import asyncio
import os
import socket
import traceback
from collections.abc import Sequence

import structlog
import uvloop

from frameworks.engine.process.arguments import StartArguments
from frameworks.engine.process.channel import Channel
from frameworks.engine.process.host import EngineHost
from frameworks.engine.process.messages import Free, ProtocolError, ToEngine
from frameworks.engine.process.model_source import FileSource, ModelSource
from frameworks.engine.process.shared_tensors import SharedTensors
from memory.garbage import collect
from memory.shared_arena import SharedArena

log = structlog.get_logger(__name__)

_SENT_POLL_S = 0.005
_TRIM_S = 1.0


def serve(arguments: StartArguments) -> int:
    """Answer the server until it closes the engine or ends. Returns the exit status."""
    control, requests, answers = arguments.fds
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(socket.socket(fileno=control), _attached(requests), _attached(answers)))


async def _serve(control: socket.socket, requests: SharedArena, answers: SharedArena) -> int:
    process = ServedProcess(requests, answers, FileSource())
    await process.channel.open(control)
    return await process.ended()


def _attached(fd: int) -> SharedArena:
    return SharedArena.attach(fd, os.fstat(fd).st_size)


class ServedProcess:
    """The channel to the server and what it uses. Owned by the event loop."""

    def __init__(self, requests: SharedArena, answers: SharedArena, source: ModelSource) -> None:
        """`requests`: written by the server. `answers`: written here."""
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.tensors = SharedTensors(answers, requests, self._send_free)
        self.channel: Channel[ToEngine] = Channel(ToEngine, self._received, self._lost, self.tensors, self.tensors.find)
        self._host = EngineHost(self.channel, source, self.tensors.freed, self._tidy, self._end)

    async def ended(self) -> int:
        """Wait for the end; return the exit status. All messages before it are sent."""
        while not self._ended.done():
            self.tensors.trim()
            await asyncio.wait([self._ended], timeout=_TRIM_S)
        status = self._ended.result()
        while self.channel.is_open and self.channel.buffered_bytes:  # noqa: ASYNC110 - the channel has no event for it
            await asyncio.sleep(_SENT_POLL_S)
        self.channel.close()
        self._host.abort()
        return status

    def _received(self, messages: Sequence[ToEngine]) -> None:
        try:
            self._host.received(messages)
        except ProtocolError as error:
            log.error("engine process ends, as it received a damaged message", reason=error.message)
            self._end(1)
        except Exception:  # noqa: BLE001 - the process ends
            # Not to the log: the server finds the cause, such as a lack of memory, in the last output.
            traceback.print_exc()
            self._end(1)

    def _send_free(self, message: Free) -> None:
        # Blocks are also released after the end of the channel.
        if self.channel.is_open:
            self.channel.send(message)

    def _tidy(self) -> None:
        """Free the tensors of requests that failed: the frames of an error are freed by a garbage collection."""
        if self.tensors.num_in_use:
            collect()

    def _lost(self, reason: str) -> None:
        log.info("engine process ends", reason=reason)
        self._end(0)

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)
