"""The server's end of an engine process, and a host of one in the loop of the test."""

import asyncio
import itertools
import os
import pickle
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from frameworks.core.channel.channel import Channel
from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.local import LocalEngine, start_local_engine
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.host.event_loop import ServedProcess
from frameworks.engine.process.host.model_source import HostedModel, ModelSource
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.process.wire.counts import add_counts
from frameworks.engine.process.wire.messages import (
    Counts,
    Free,
    FromEngine,
    Infer,
    Load,
    Loaded,
    Measure,
    Needs,
    ToEngine,
)
from frameworks.engine.process.wire.serialization import SentRequest, request_to_plain, spec_from_plain
from frameworks.engine.process.wire.shared_tensors import SharedTensors
from frameworks.engine.registries import RegistrySettings
from frameworks.engine.threads import EngineThreads
from frameworks.runtime import BatchModel, LoadedModel
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import (
    TEXT_OUTPUT,
    Array,
    Batch,
    ModelSpec,
    TensorBatch,
    TensorType,
    TextSpec,
    TokenBatch,
    Value,
    ValueSpec,
)
from memory.shared_arena import SharedArena
from tests.support.batch_models import Behaviour, DoublingModel
from tests.support.loops import soon, task

SETTINGS = EngineSettings("m", BatchLimits(8), 1.0)
CPU = Device("cpu", 0, "cpu", 1, 1)
DEFAULT_TENANT = ("", 1.0, False)
ARENA_BYTES = 4 * 1024**2

Kind = TypeVar("Kind", bound=FromEngine)


class ArrayModel(DoublingModel):
    """Double float32 rows [n, columns]."""

    def __init__(self, behaviour: Behaviour | None = None, runs_by_shape: bool = True) -> None:
        super().__init__(behaviour)
        numbers = TensorType("float32", (-1, -1))
        self.spec = ModelSpec(
            "fake",
            "tensor",
            (ValueSpec("x", numbers),),
            (ValueSpec("y", numbers),),
            "cpu",
            "float32",
            0,
            batched_inputs=frozenset({"x"}),
            runs_by_shape=runs_by_shape,
        )

    def infer(self, batch: Batch) -> dict[str, Value]:
        assert isinstance(batch, TensorBatch)
        x = batch.inputs["x"]
        assert isinstance(x, np.ndarray)
        self.executed.append([len(x)])
        if self.behaviour:
            self.behaviour(x[:, 0].tolist())
        return {"y": x * 2}


class TextModel(DoublingModel):
    """Two numbers for each text: its number of tokens, and the sum of their ids."""

    def __init__(self, tokenizer: TextTokenizer, task: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        text = TextSpec(16, labels=("relevant", "other") if task == "classify" else (), embedding_size=2)
        self.spec = ModelSpec("fake", task, (), (), "cpu", "float32", 0, text=text)

    def infer(self, batch: Batch) -> dict[str, Value]:
        assert isinstance(batch, TokenBatch)
        return {TEXT_OUTPUT: np.array([[len(ids), sum(ids) % 7] for ids in batch.token_ids], np.float32)}


class FakeSource(ModelSource):
    """Return models that exist. `error`: raised by the load."""

    def __init__(self, *instances: Any, error: Exception | None = None) -> None:
        self.instances: LoadedModel = instances
        self.error = error

    def measure(self, message: Measure) -> ModelNeeds:
        return ModelNeeds(7, 8)

    def load(self, device: Device) -> HostedModel:
        if self.error is not None:
            raise self.error
        return HostedModel(self.instances, SharedDevice(), 5, 0.25, 0.125)


class HostLink:
    """Implement Link. `messages`: all that were received but Free, in their order; `frames`: as they came together."""

    def __init__(self, requests: SharedArena, answers: SharedArena) -> None:
        self.requests, self.answers = requests, answers
        self.tensors = SharedTensors(requests, answers, self._send_free)
        self.channel: Channel[FromEngine] = Channel(
            FromEngine, self._received, self._channel_lost, self.tensors, self.tensors.find
        )
        self.frames: list[list[FromEngine]] = []
        self.lost: str | None = None
        self.engine: ProcessEngine | None = None
        self.killed: list[str] = []
        self.counts = RunCounts()
        """The sums of the counts that were received."""
        self.process: ServedProcess
        """The host, where it runs in this loop."""
        self._numbers = itertools.count(1)

    @property
    def messages(self) -> list[FromEngine]:
        return [message for frame in self.frames for message in frame]

    @property
    def num_leases(self) -> int:
        return self.tensors.num_in_use

    def lease_body(self, nbytes: int) -> Array | None:
        return self.tensors.lease_body(nbytes)

    @property
    def is_full(self) -> bool:
        return self.channel.is_full

    def send(self, message: ToEngine) -> None:
        if self.channel.is_open:
            self.channel.send(message)

    def kill(self, label: str, reason: str) -> None:
        self.killed.append(reason)

    def abandon(self, reason: str) -> None:
        self.channel.close()

    async def ended(self, within_s: float) -> None:
        await soon(lambda: self.lost is not None)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the messages of a class."""
        return [message for message in self.messages if isinstance(message, kind)]

    async def next(self, kind: type[Kind]) -> Kind:
        """Wait for the first message of a class; forget all messages up to it."""
        await soon(lambda: bool(self.of(kind)) or self.lost is not None)
        assert self.of(kind), f"lost: {self.lost}, got {self.messages}"
        while True:
            frame = self.frames[0]
            message = frame.pop(0)
            if not frame:
                del self.frames[0]
            if isinstance(message, kind):
                return message

    def infer(self, request: SentRequest, priority: int = 5, is_metered: bool = False, span: bytes = b"") -> int:
        """Send a request; return its number. `span`: of a sampled one."""
        number = next(self._numbers)
        self.send(Infer(number, request_to_plain(request), priority, DEFAULT_TENANT, 0.0, is_metered, span))
        return number

    async def load(self, settings: EngineSettings = SETTINGS, measure: Measure | None = None) -> Loaded:
        """Measure and load the model."""
        self.send(measure or measured(Path("/absent")))
        await self.next(Needs)
        self.send(Load(CPU, settings))
        return await self.next(Loaded)

    def _received(self, messages: Sequence[FromEngine]) -> None:
        frame: list[FromEngine] = []
        for message in messages:
            if isinstance(message, Free):
                self.tensors.freed(message)
            else:
                frame.append(message)
            if isinstance(message, Counts):
                add_counts(self.counts, message)
        if frame and self.engine is not None:
            self.engine.received(frame)
        if frame:
            self.frames.append(frame)

    def _send_free(self, message: Free) -> None:
        self.send(message)

    def _channel_lost(self, reason: str) -> None:
        self.lost = reason
        if self.engine is not None:
            self.engine.lost(Loss("test", reason))


def measured(path: Path, framework: str = "onnx", **entry: Any) -> Measure:
    """Return the first message for a model."""
    entry = {"name": "m", "path": path, **entry}
    settings = RegistrySettings(max_model_size=None, cache_dir=path.parent / "cache", ageing_ms=1000.0)
    return Measure(framework, pickle.dumps(OnnxModelEntry(**entry)), str(path), pickle.dumps(settings))


def arenas() -> tuple[SharedArena, SharedArena]:
    """Return the arenas of requests and of answers."""
    return SharedArena.create(ARENA_BYTES), SharedArena.create(ARENA_BYTES)


@asynccontextmanager
async def hosted(source: ModelSource, status: int = 0) -> AsyncIterator[HostLink]:
    """Run a host in this loop. `status`: the exit status that is expected."""
    requests, answers = arenas()
    link = HostLink(requests, answers)
    theirs = [SharedArena.attach(os.dup(each.fd), ARENA_BYTES) for each in (requests, answers)]
    process = ServedProcess(theirs[0], theirs[1], source)
    link.process = process
    one, other = socket.socketpair()
    await link.channel.open(one)
    await process.owner.channel.open(other)
    ending = task(process.ended())
    try:
        yield link
        await soon(lambda: ending.done() or (link.num_leases, process.num_tensors_in_use) == (0, 0))
    finally:
        link.channel.close()
        assert await ending == status
        link.tensors.close()


async def attached(owner: HostLink) -> HostLink:
    """Connect a further client to the host of the owner. The test closes its channel."""
    requests, answers = arenas()
    link = HostLink(requests, answers)
    link.process = owner.process
    one, other = socket.socketpair()
    await link.channel.open(one)
    await owner.process.serve_client([other.detach(), os.dup(requests.fd), os.dup(answers.fd)])
    return link


@asynccontextmanager
async def both_engines(
    make: Any, settings: EngineSettings = SETTINGS
) -> AsyncIterator[tuple[tuple[LocalEngine, RunCounts], tuple[ProcessEngine, RunCounts]]]:
    """Return an engine in this process and one behind a channel, each with a model of `make` and with its counts."""
    threads, counts, remote_counts = EngineThreads(), RunCounts(), RunCounts()
    local = start_local_engine(settings, (make(),), counts, SharedDevice(), threads)
    async with hosted(FakeSource(make())) as link:

        async def start(engine: ProcessEngine) -> Started:
            loaded = await link.load(settings)
            link.engine = engine
            return Started(link, loaded, spec_from_plain(loaded.spec))

        remote = ProcessEngine(settings, remote_counts, start)
        await remote.open()
        try:
            yield (local, counts), (remote, remote_counts)
        finally:
            await asyncio.gather(local.close(), remote.close())
            threads.close()


def array_rows(rows: int, columns: int, first: float = 1.0) -> TensorBatch:
    """Return a request for an ArrayModel."""
    return TensorBatch({"x": np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) + first})


def batch_models(*models: BatchModel) -> FakeSource:
    """Return the source of these instances."""
    return FakeSource(*models)
