"""A supervisor that publishes what a test says, and a worker's replica over real sockets, in one event loop."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from app.workers.messages import messages_from_worker, messages_to_worker
from frameworks.core.channel.messages import ChannelMessage
from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.models.replicas.control import ControlLink
from frameworks.models.replicas.manager import ReplicaManager
from frameworks.models.replicas.messages import (
    Applied,
    Drained,
    LoadEnded,
    LoadForRequest,
    LocalCounts,
    ModelChanged,
    ModelRemoved,
    ModelState,
    Prepare,
    PrepareFailed,
    Uses,
    VersionState,
)
from frameworks.models.residency.loader import Loader
from frameworks.models.versions.states import ModelState as State
from frameworks.runtime import Registry
from tests.support.batch_models import FakeRegistry
from tests.support.control_links import open_both
from tests.support.engine_hosts import CPU
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S, soon
from tests.support.managing import entry


def version_state(
    version: str = "1",
    state: State = State.REGISTERED,
    serving: int = 0,
    next_state: State = State.UNLOADED,
    **more: Any,
) -> VersionState:
    return VersionState(
        version, f"files/{version}".encode(), state, next_state, more.pop("waits_for_load", True), serving, **more
    )


def model_state(*versions: VersionState, name: str = "m", active: str = "1", **more: Any) -> ModelState:
    settings: OnnxModelEntry = more.pop("entry", None) or entry(name)
    return ModelState(name, "fake", pickle.dumps(settings), b"files", "none", 0, list(versions), active, **more)


class FakeSupervisor:
    """`received`: all messages of the worker, in order."""

    def __init__(self, link: ControlLink) -> None:
        self.link = link
        self.number = 0
        self.received: list[ChannelMessage] = []
        self.asked: list[LoadForRequest] = []
        self.load: Callable[[LoadForRequest], Awaitable[None]] | None = None
        """Called for each load that the worker asks for. It may raise."""
        for kind in (Applied, PrepareFailed, Drained, Uses, LocalCounts):
            link.handle(kind, self.received.append)
        link.answer(LoadForRequest, self._load)

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the messages of a kind."""
        return [message for message in self.received if isinstance(message, kind)]

    @property
    def drained(self) -> list[int]:
        return [message.serving for message in self.of(Drained)]

    def send(self, make: Callable[[int], ChannelMessage]) -> int:
        """Send a numbered message."""
        self.number += 1
        self.link.send(make(self.number))
        return self.number

    def publish(self, *versions: VersionState, **more: Any) -> int:
        return self.send(lambda number: ModelChanged(number, model_state(*versions, **more)))

    def prepare(
        self, serving: int, version: str = "1", name: str = "m", is_local: bool = True, path: bytes = b"files"
    ) -> int:
        return self.send(lambda number: Prepare(number, name, version, path, serving, is_local, CPU))

    def remove(self, name: str = "m") -> int:
        return self.send(lambda number: ModelRemoved(number, name))

    def has_answer(self, number: int) -> bool:
        return any(message.number == number for message in self.of(Applied) + self.of(PrepareFailed))

    async def applied(self, number: int) -> None:
        """Wait for the Applied of a message."""
        await soon(lambda: self.has_answer(number))
        assert number in {message.number for message in self.of(Applied)}, self.of(PrepareFailed)

    async def make_ready(self, serving: int = 1, version: str = "1", **more: Any) -> None:
        """Load a version as the supervisor does: in two phases."""
        await self.applied(self.prepare(serving, version))
        await self.applied(self.publish(version_state(version, State.READY, serving), **more))

    async def _load(self, question: LoadForRequest) -> LoadEnded:
        self.asked.append(question)
        if self.load is not None:
            await self.load(question)
        return LoadEnded(question.id)


@asynccontextmanager
async def supervised(
    registry: Registry | None = None, drain_timeout_s: float = HANGS_AFTER_S
) -> AsyncIterator[tuple[FakeSupervisor, ReplicaManager]]:
    """Connect a replica, whose models run in this process, to a supervisor. After the block it is closed."""
    ours, theirs = ControlLink(0, messages_from_worker()), ControlLink(0, messages_to_worker())
    made = registry or FakeRegistry()
    loader = Loader({"fake": lambda: made}, DeviceManager(FakeProbe()))
    replica = ReplicaManager(theirs, loader, PerformanceSettings(max_batch_size=4), SchedulingSettings())
    supervisor = FakeSupervisor(ours)
    await open_both(ours, theirs)
    try:
        yield supervisor, replica
    finally:
        await replica.close(drain_timeout_s)
        theirs.close()
        ours.close()
        await asyncio.sleep(0)
