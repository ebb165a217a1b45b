"""Workers that apply what the supervisor sends, in order, when the test allows it; they check what they are sent."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from app.workers.messages import messages_to_worker
from frameworks.core.channel.messages import ChannelMessage
from frameworks.core.errors import ModelFailed, ModelNotFound, ModelUnavailable
from frameworks.engine.process.wire.serialization import error_to_plain
from frameworks.manager import MLFrameworkManager
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.replicas.messages import (
    Abandon,
    Applied,
    Drained,
    EndModelRequests,
    LoadForRequest,
    ModelChanged,
    ModelRemoved,
    ModelState,
    Poisonous,
    Prepare,
    PrepareFailed,
    ProcessLost,
    StateSent,
    Uses,
    VersionState,
    VersionUse,
)
from frameworks.models.replicas.publisher import Publisher
from frameworks.models.versions.states import ModelState as Phase
from tests.support.control_links import connect
from tests.support.loops import soon

KINDS = (ModelChanged, ModelRemoved, Prepare, Abandon, EndModelRequests, StateSent, ProcessLost, Poisonous)


class FakeWorker:
    """A worker in the event loop of the test. `is_held`: messages wait until the test allows them."""

    def __init__(self, number: int = 0) -> None:
        self.link = ControlLink(number, messages_to_worker())
        self.is_held = False
        self.fails = 0
        """Number of Prepares that fail next."""
        self.inbox: deque[ChannelMessage] = deque()
        self.models: dict[str, ModelState] = {}
        self.prepared: set[int] = set()
        """Loads whose engine it has."""
        self.ready: set[int] = set()
        """Loads that requests may use."""
        self.draining: set[int] = set()
        self.drained: set[int] = set()
        """Loads that it has drained since they were prepared."""
        self.references: Counter[int] = Counter()
        self.serves = False
        self.seen: list[ChannelMessage] = []
        for kind in KINDS:
            self.link.handle(kind, self._receive)

    @property
    def is_alive(self) -> bool:
        return not self.link.lost.done()

    def state(self, name: str = "m", version: str | None = None) -> VersionState:
        model = self.models[name]
        return next(each for each in model.versions if each.version == (version or model.active))

    def hold(self) -> None:
        self.is_held = True

    def allow(self, count: int = 1_000_000) -> None:
        """Apply the messages that wait, at most `count` of them; all later ones too if there are fewer."""
        while self.inbox and count:
            self._apply(self.inbox.popleft())
            count -= 1
        self.is_held = bool(self.inbox)

    def die(self) -> None:
        self.link.close()

    def begin(self, name: str = "m") -> int | None:
        """Begin a request: return the load that answers it; None if the version is not ready here."""
        if name not in self.models:
            return None
        serving = self.state(name).serving
        if serving not in self.prepared or serving not in self.ready:
            return None
        self.references[serving] += 1
        self._report(serving)
        return serving

    def end(self, serving: int) -> None:
        """End a request."""
        if not self.is_alive:
            return
        self.references[serving] -= 1
        self._report(serving)
        self._drain_idle(serving)

    async def ask(self, name: str = "m") -> int | None:
        """Begin a request, and load its model where necessary; None if it is refused. Raises ChannelLost."""
        for _ in range(20):
            serving = self.begin(name)
            if serving is not None or name not in self.models:
                return serving
            version = self.models[name].active
            try:
                await self.link.ask(lambda number: LoadForRequest(number, name, version))  # noqa: B023 - asked at once
            except (ModelUnavailable, ModelNotFound):
                return None
            await soon(lambda: not self._is_draining(name))
        return None

    def _is_draining(self, name: str) -> bool:
        return self.is_alive and name in self.models and self.state(name).state == Phase.DRAINING

    def _receive(self, message: ChannelMessage) -> None:
        self.seen.append(message)
        if self.is_held:
            self.inbox.append(message)
        else:
            self._apply(message)

    def _apply(self, message: ChannelMessage) -> None:
        match message:
            case ModelChanged(number, model):
                self._change(model)
                self.link.send(Applied(number))
            case ModelRemoved(number, name):
                self._end_loads({each.serving for each in self.models.pop(name).versions})
                self.link.send(Applied(number))
            case Prepare():
                self._prepare(message)
            case Abandon(serving):
                assert serving not in self.ready, "an abandoned load was never ready"
                self.prepared.discard(serving)
            case EndModelRequests(serving):
                self.references[serving] = 0
                self._drain_idle(serving)
            case StateSent():
                assert not self.serves
                self.serves = True

    def _prepare(self, message: Prepare) -> None:
        if self.fails:
            self.fails -= 1
            self.link.send(PrepareFailed(message.number, error_to_plain(ModelFailed("no engine here"))))
            return
        assert message.name in self.models, "the model is known"
        self.draining.discard(message.serving)
        self.drained.discard(message.serving)
        self.prepared.add(message.serving)
        self.link.send(Applied(message.number))

    def _change(self, model: ModelState) -> None:
        before = {each.serving for each in self.models[model.name].versions} if model.name in self.models else set()
        self.models[model.name] = model
        ready = {each.serving for each in model.versions if each.state == Phase.READY}
        for serving in ready:
            assert serving in self.prepared | self.drained, "ready is only what was prepared"
        self.ready |= ready
        self.draining -= ready
        self._end_loads(before - ready)

    def _end_loads(self, servings: set[int]) -> None:
        for serving in servings & self.ready:
            self.ready.discard(serving)
            if serving in self.prepared:
                self.draining.add(serving)
                self._drain_idle(serving)

    def _drain_idle(self, serving: int) -> None:
        if serving in self.draining and not self.references[serving]:
            self.draining.discard(serving)
            self.prepared.discard(serving)
            self.drained.add(serving)
            self.link.send(Drained(serving))

    def _report(self, serving: int) -> None:
        last_s = asyncio.get_running_loop().time()
        self.link.send(Uses([VersionUse(serving, self.references[serving], last_s)]))


class Supervisor:
    """A manager whose models are shared with fake workers."""

    def __init__(self, manager: MLFrameworkManager) -> None:
        self.manager = manager
        self.workers = Workers()
        self.publisher = Publisher(manager, manager.residency, manager.on_changed, self.workers)

    async def join(self, number: int = 0, is_held: bool = False) -> FakeWorker:
        """Connect a worker; wait until it has the state of all models, unless it is held."""
        worker = FakeWorker(number)
        worker.is_held = is_held
        await connect(self.workers, worker.link)
        if not is_held:
            await soon(lambda: worker.serves)
        return worker


@asynccontextmanager
async def supervising(manager: MLFrameworkManager) -> AsyncIterator[Supervisor]:
    """Yield the supervisor of a manager. All workers end before the manager."""
    async with manager:
        supervisor = Supervisor(manager)
        yield supervisor
        for link in list(supervisor.workers.links.values()):
            link.close()
        await soon(lambda: not supervisor.workers.links)


def sent(worker: FakeWorker, kind: type[ChannelMessage]) -> list[Any]:
    """Return the messages of a kind that the worker has received."""
    return [each for each in worker.seen if isinstance(each, kind)]
