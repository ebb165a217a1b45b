"""One running engine process: its owner's connection, those of further clients, and its end."""

import asyncio
import itertools
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import structlog

from frameworks.core.channel.descriptors import DescriptorSocket, socket_pair
from frameworks.core.channel.messages import ProtocolError
from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import ModelFailed
from frameworks.core.progress import Work, current
from frameworks.engine.contract import EngineSettings
from frameworks.engine.process.client.connection import ARENA_BYTES, PROTOCOL, ProcessLink
from frameworks.engine.process.client.launch import EngineProcess, LaunchOptions, launch
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.exit_reason import ExitReason
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.process.wire.messages import (
    FromEngine,
    Load,
    Loaded,
    LoadFailed,
    LoadProgress,
    Measure,
    Needs,
    ToEngine,
)
from frameworks.engine.process.wire.serialization import error_from_plain, spec_from_plain
from frameworks.engine.registries import RegistrySettings
from frameworks.runtime import ModelEntry
from memory.shared_arena import SharedArena
from memory.shared_memory import SharedMemory

log = structlog.get_logger(__name__)

# A process whose connection has ended is ending itself.
_END_S = 5.0

Reply = TypeVar("Reply", Needs, Loaded)


class RunningProcess(ProcessLink):
    """Implement OwnerLink. Owned by the event loop. Until the model is loaded, one question waits for its reply."""

    def __init__(
        self, process: EngineProcess, written: SharedArena, read: SharedArena, clients: socket.socket, model: str
    ) -> None:
        """`written`: for tensors of requests; `read`: for those of answers. `clients`: one end of `socket_pair`, the
        process has the other one. Call `open` next.
        """
        super().__init__(written, read)
        self._process = process
        self._model = model
        self._receive = self._received_reply
        self._clients = DescriptorSocket(clients)
        self._numbers = itertools.count(1)
        self._engine: ProcessEngine | None = None
        # Of the load.
        self._work: Work | None = None
        self._reply: asyncio.Future[FromEngine] | None = None
        self._is_closed = False
        self._lost_label: str | None = None
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def open(self) -> None:
        """Connect the channel."""
        await self._channel.open(self._process.connection)

    @property
    def pid(self) -> int:
        return self._process.pid

    def attach(self) -> list[int]:
        if self._process.exit_reason is not None:
            raise ModelFailed(self._process.exit_reason.message)
        with ExitStack() as always, ExitStack() as on_failure:
            control, theirs = (always.enter_context(each) for each in socket.socketpair())
            memory = [always.enter_context(_shared_memory()) for _ in range(2)]
            ours = []
            for each in (control.fileno(), *memory):
                ours.append(os.dup(each))
                on_failure.callback(os.close, ours[-1])
            self._clients.send(next(self._numbers), [theirs.fileno(), *memory])
            on_failure.pop_all()
        return ours

    async def measure(self, framework: str, entry: ModelEntry, path: Path, settings: RegistrySettings) -> ModelNeeds:
        """Return what the model needs of a device. Raises InvalidModel, and ModelFailed where the process ended."""
        message = Measure(framework, pickle.dumps(entry), str(path), pickle.dumps(settings))
        return (await self._ask(message, Needs)).needs

    async def load(self, device: Device, settings: EngineSettings, engine: ProcessEngine) -> Started:
        """Load the model that was measured. From then on messages go to `engine`.

        Raises InvalidModel, OutOfMemory, and ModelFailed where the process ended.
        """
        self._work = current()
        loaded = await self._ask(Load(device, settings), Loaded)
        try:
            spec = spec_from_plain(loaded.spec)
        except ProtocolError as error:
            self.kill(PROTOCOL, error.message)
            raise ModelFailed(f"the engine process described its model wrongly: {error.message}") from None
        self._engine, self._receive = engine, engine.received
        return Started(self, loaded, spec)

    def kill(self, label: str, reason: str) -> None:
        self._lost_label = self._lost_label or label
        self._process.kill(reason)

    def abandon(self, reason: str) -> None:
        self.kill("aborted", reason)

    async def ended(self, within_s: float) -> None:
        self._is_closed = True
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait_ended()
        except TimeoutError:
            log.warning("engine process did not end", model=self._model)
            self._process.kill("it did not end")
        await self._watching

    async def _ask(self, message: ToEngine, kind: type[Reply]) -> Reply:
        loop = asyncio.get_running_loop()
        if self._process.exit_reason is not None:
            raise ModelFailed(self._process.exit_reason.message)
        self._reply = loop.create_future()
        self.send(message)
        try:
            reply = await self._reply
        except asyncio.CancelledError:
            self.kill("aborted", "its load was cancelled")
            raise
        finally:
            self._reply = None
        if isinstance(reply, LoadFailed):
            raise error_from_plain(reply.error)
        if not isinstance(reply, kind):
            self.kill(PROTOCOL, f"expected {kind.__name__}, got {type(reply).__name__}")
            raise ModelFailed("the engine process answered with another message; the log has its output")
        return reply

    def _received_reply(self, messages: Sequence[FromEngine]) -> None:
        for message in messages:
            if isinstance(message, LoadProgress):
                if self._work is not None:
                    self._work.phase(message.what, message.total, message.unit, message.done)
                continue
            if self._reply is None or self._reply.done():
                raise ProtocolError(f"expected no message, got {type(message).__name__}")
            self._reply.set_result(message)

    def _channel_lost(self, reason: str) -> None:
        """A process that ends closes its connection first; one that goes on is ended."""
        asyncio.get_running_loop().call_later(_END_S, self.kill, PROTOCOL, reason)

    async def _watch(self) -> None:
        """Wait for the end of the process, and report it to the engine."""
        reason = await self._process.wait_ended()
        self._close_connection()
        self._clients.close()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ModelFailed(reason.message))
        if self._engine is not None and not self._is_closed:
            self._engine.lost(Loss(self._label(reason), reason.message))
        if reason.native_output and not self._is_closed:
            log.error("output of the engine process", model=self._model, pid=self.pid, output=reason.native_output)

    def _label(self, reason: ExitReason) -> str:
        if self._lost_label is not None and reason.kind == "killed":
            return self._lost_label
        return reason.label


async def start_process(options: LaunchOptions) -> RunningProcess:
    """Start a process without a model. Raises OSError if no process, descriptor or shared memory is left."""
    with ExitStack() as on_failure, ExitStack() as always:
        written = SharedArena.create(ARENA_BYTES)
        on_failure.callback(written.close)
        read = SharedArena.create(ARENA_BYTES)
        on_failure.callback(read.close)
        clients, theirs = socket_pair()
        on_failure.enter_context(clients)
        always.enter_context(theirs)
        process = launch(options, (written.fd, read.fd, theirs.fileno()))
        on_failure.pop_all()
    running = RunningProcess(process, written, read, clients, options.model)
    try:
        await running.open()
    except BaseException:
        running.kill("aborted", "its channel was not opened")
        raise
    return running


@contextmanager
def _shared_memory() -> Iterator[int]:
    """Return the descriptor of memory for the tensors of one direction, open within the block. Raises OSError."""
    memory = SharedMemory.create(ARENA_BYTES)
    try:
        yield memory.fd
    finally:
        memory.close()
