"""One running engine process: its channel, its shared memory, and its end."""

import asyncio
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from frameworks.devices import Device, ModelNeeds
from frameworks.engine.contract import EngineSettings
from frameworks.engine.process.channel import Channel
from frameworks.engine.process.exit_reason import ExitReason
from frameworks.engine.process.launch import EngineProcess, LaunchOptions, launch
from frameworks.engine.process.link import Listener, Loss, Started
from frameworks.engine.process.messages import (
    ChannelLost,
    Closed,
    EngineMessage,
    Free,
    FromEngine,
    Load,
    Loaded,
    LoadFailed,
    Measure,
    Needs,
    ProtocolError,
    ToEngine,
)
from frameworks.engine.process.plain import error_from_plain
from frameworks.engine.process.shared_tensors import SharedTensors
from frameworks.engine.process.specs import spec_from_plain
from frameworks.engine.registries import RegistrySettings
from frameworks.errors import ModelFailed
from frameworks.runtime import ModelEntry
from memory.shared_arena import SharedArena

log = structlog.get_logger(__name__)

ARENA_BYTES = 1024**3
"""Bound of the tensors of one direction. Only pages that were written take memory; tensors beyond it are copied."""

_PROTOCOL = "protocol"
# A process whose connection has ended is ending itself.
_END_S = 5.0
_TRIM_S = 1.0

# The messages that are for the link itself.
_OWN = frozenset({Free, Closed})

Reply = TypeVar("Reply", Needs, Loaded)


class RunningProcess:
    """Implement Link. Owned by the event loop. Until the model is loaded, one question waits for its reply."""

    def __init__(self, process: EngineProcess, written: SharedArena, read: SharedArena, model: str) -> None:
        """`written`: for tensors of requests; `read`: for those of answers. Call `open` next."""
        self._process = process
        self._model = model
        self._tensors = SharedTensors(written, read, self.send)
        self._channel: Channel[FromEngine] = Channel(
            FromEngine, self._received, self._channel_lost, self._tensors, self._tensors.find
        )
        self._listener: Listener | None = None
        self._reply: asyncio.Future[FromEngine] | None = None
        self._is_closed = False
        self._lost_label: str | None = None
        self._trim = asyncio.get_running_loop().call_later(_TRIM_S, self._trim_idle)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def open(self) -> None:
        """Connect the channel."""
        await self._channel.open(self._process.connection)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def num_leases(self) -> int:
        return self._tensors.num_in_use

    @property
    def is_full(self) -> bool:
        return self._channel.is_full

    def send(self, message: ToEngine) -> None:
        try:  # noqa: SIM105 - suppress takes three calls
            self._channel.send(message)
        except ChannelLost:  # the listener learns of it from the end of the process
            pass

    async def measure(self, framework: str, entry: ModelEntry, path: Path, settings: RegistrySettings) -> ModelNeeds:
        """Return what the model needs of a device. Raises InvalidModel, and ModelFailed where the process ended."""
        message = Measure(framework, pickle.dumps(entry), str(path), pickle.dumps(settings))
        return (await self._ask(message, Needs)).needs

    async def load(self, device: Device, settings: EngineSettings, listener: Listener) -> Started:
        """Load the model that was measured. From then on messages go to `listener`.

        Raises InvalidModel, OutOfMemory, and ModelFailed where the process ended.
        """
        loaded = await self._ask(Load(device, settings), Loaded)
        try:
            spec = spec_from_plain(loaded.spec)
        except ProtocolError as error:
            self.kill(_PROTOCOL, error.message)
            raise ModelFailed(f"the engine process described its model wrongly: {error.message}") from None
        self._listener = listener
        return Started(self, loaded, spec)

    def kill(self, label: str, reason: str) -> None:
        self._lost_label = self._lost_label or label
        self._process.kill(reason)

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
            self.kill(_PROTOCOL, f"expected {kind.__name__}, got {type(reply).__name__}")
            raise ModelFailed("the engine process answered with another message; the log has its output")
        return reply

    def _received(self, messages: Sequence[FromEngine]) -> None:
        try:
            if not _OWN.isdisjoint(map(type, messages)):
                messages = [message for message in messages if not self._is_own(message)]
            if self._listener is not None:
                self._listener.received(messages)
                return
            for message in messages:
                if self._reply is None or self._reply.done():
                    raise ProtocolError(f"expected no message, got {type(message).__name__}")
                self._reply.set_result(message)
        except ProtocolError as error:
            self.kill(_PROTOCOL, f"it sent a damaged message: {error.message}")

    def _is_own(self, message: EngineMessage) -> bool:
        """Process the messages that are for the link itself. Raises ProtocolError."""
        if isinstance(message, Free):
            self._tensors.freed(message)
        elif not isinstance(message, Closed):
            return False
        return True

    def _trim_idle(self) -> None:
        self._tensors.trim()
        self._trim = asyncio.get_running_loop().call_later(_TRIM_S, self._trim_idle)

    def _channel_lost(self, reason: str) -> None:
        """A process that ends closes its connection first; one that goes on is ended."""
        asyncio.get_running_loop().call_later(_END_S, self.kill, _PROTOCOL, reason)

    async def _watch(self) -> None:
        """Wait for the end of the process, and report it to the listener."""
        reason = await self._process.wait_ended()
        self._trim.cancel()
        self._channel.close()
        self._tensors.close()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ModelFailed(reason.message))
        if self._listener is not None and not self._is_closed:
            self._listener.lost(Loss(self._label(reason), reason.message))
        if reason.native_output and not self._is_closed:
            log.error("output of the engine process", model=self._model, pid=self.pid, output=reason.native_output)

    def _label(self, reason: ExitReason) -> str:
        if self._lost_label is not None and reason.kind == "killed":
            return self._lost_label
        return reason.label


async def start_process(options: LaunchOptions) -> RunningProcess:
    """Start a process without a model. Raises OSError if no process, descriptor or shared memory is left."""
    written, read = SharedArena.create(ARENA_BYTES), None
    try:
        read = SharedArena.create(ARENA_BYTES)
        process = launch(options, (written.fd, read.fd))
    except BaseException:
        written.close()
        if read is not None:
            read.close()
        raise
    running = RunningProcess(process, written, read, options.model)
    try:
        await running.open()
    except BaseException:
        running.kill("aborted", "its channel was not opened")
        raise
    return running
