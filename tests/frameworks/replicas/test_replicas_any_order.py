"""Random orders and requests over real replicas, which die and connect again: all of them agree, and nothing hangs."""

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from structlog.testing import capture_logs

import frameworks.models.load_failures
from app.workers.messages import ToWorker
from frameworks.devices import DeviceManager
from frameworks.errors import ModelNotFound, ModelUnavailable, OutOfMemory, RoundhouseError, VersionNotFound
from frameworks.models.loader import Loader
from frameworks.models.slot import ModelSlot, ModelState
from frameworks.models.traffic import Share
from frameworks.replicas.control import ControlLink
from frameworks.replicas.manager import ReplicaManager
from frameworks.settings import PerformanceSettings, SchedulingSettings
from tests.frameworks.models.sized_registry import SizedRegistry, make_versions
from tests.frameworks.replicas.fake_workers import Supervisor
from tests.support.batch_models import numbers
from tests.support.control_links import connect
from tests.support.fake_probe import GIB, FakeProbe
from tests.support.loops import settle, soon, worker_threads_end
from tests.support.managing import make_manager, opened, permit, register

PLAIN, LATEST, ALL = "plain", "latest", "all"
NAMES = st.sampled_from([PLAIN, LATEST, ALL])
VERSIONED = st.sampled_from([LATEST, ALL])
VERSIONS = st.sampled_from(["1", "2"])
NUMBERS = st.integers(0, 1)
INDEXES = st.integers(0, 9)


class Replica:
    """A worker, whose models are loaded here."""

    def __init__(self, number: int) -> None:
        self.registry = SizedRegistry()
        self.loader = Loader({"fake": lambda: self.registry}, DeviceManager(FakeProbe()))
        self.link = ControlLink(number, ToWorker)
        self.models = ReplicaManager(self.link, self.loader, PerformanceSettings(), SchedulingSettings())
        self.is_alive = True

    async def ask(self, name: str, x: int) -> None:
        with permit() as held:
            version = await opened(self.models, held, name)
            held.queue(version.model.requests)
            result = await version.engine().submit(numbers(x), begin=held.begin)
            assert result["y"] == [2 * x]
            await asyncio.sleep(0.001)

    async def end(self) -> None:
        self.is_alive = False
        self.link.close()
        await self.models.close(drain_timeout_s=60)


class ReplicasMachine(RuleBasedStateMachine):
    """The loop runs only within a rule; tasks of a rule continue during the next rules."""

    @initialize()
    def start(self) -> None:
        self.logs = capture_logs()
        self.logs.__enter__()
        self.short_retries = patch.object(frameworks.models.load_failures, "_MAX_RETRY_S", 0.002)
        self.short_retries.start()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.registry = SizedRegistry()
        self.manager = make_manager(self.registry, drain_timeout_s=60, max_model_bytes=2 * GIB)
        self.replicas: dict[int, Replica] = {}
        self.all_replicas: list[Replica] = []
        self.tasks: list[asyncio.Task[None]] = []
        for name in (LATEST, ALL):
            make_versions(Path(self.folder.name) / name, 1, 2)
        self.runner.run(self.open())
        for number in range(2):
            self.join(number)

    async def open(self) -> None:
        await self.manager.__aenter__()
        self.supervisor = Supervisor(self.manager)
        for name in (PLAIN, LATEST, ALL):
            self.register_model(name)

    def register_model(self, name: str) -> ModelSlot:
        policy = "all" if name == ALL else "latest"
        return register(self.manager, name, str(Path(self.folder.name) / name), load="lazy", version_policy=policy)

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        async def starting() -> None:
            self.tasks.append(asyncio.get_running_loop().create_task(coroutine))
            await settle()

        self.runner.run(starting())

    @rule(number=NUMBERS)
    def join(self, number: int) -> None:
        async def joining() -> None:
            replica = self.replicas[number] = Replica(number)
            self.all_replicas.append(replica)
            await connect(self.supervisor.workers, replica.link)

        if number not in self.replicas or not self.replicas[number].is_alive:
            self.runner.run(joining())

    @rule(number=NUMBERS)
    def die(self, number: int) -> None:
        if number in self.replicas and self.replicas[number].is_alive:
            self.begin(self.replicas[number].end())

    @rule(number=NUMBERS, names=st.lists(NAMES, min_size=1, max_size=4))
    def ask(self, number: int, names: list[str]) -> None:
        replica = self.replicas.get(number)
        if replica is not None and replica.is_alive:
            for x, name in enumerate(names):
                self.begin(self.request(replica, name, x))

    async def request(self, replica: Replica, name: str, x: int) -> None:
        with suppress(ModelUnavailable, ModelNotFound, VersionNotFound, OutOfMemory):
            await replica.ask(name, x)

    @rule(name=NAMES)
    def load(self, name: str) -> None:
        self.begin(self.ordered(self.manager.load(name)))

    @rule(name=VERSIONED, version=VERSIONS)
    def swap(self, name: str, version: str) -> None:
        self.begin(self.ordered(self.manager.load(name, version)))

    @rule(name=VERSIONED, version=VERSIONS, ends=st.booleans())
    def split(self, name: str, version: str, ends: bool) -> None:
        self.begin(self.ordered(self.manager.split(name, "canary", None if ends else Share(version, 50))))

    @rule(name=NAMES)
    def refresh(self, name: str) -> None:
        self.begin(self.ordered(self.manager.refresh(name, frozenset({"1", "2"}))))

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        self.begin(self.ordered(self.manager.unload(name)))

    @rule(name=NAMES)
    def unload_soon(self, name: str) -> None:
        self.begin(self.ordered(self.manager.unload(name, drain_timeout_s=0.001)))

    @rule(name=NAMES, number=st.integers(-1, 1))
    def break_or_mend(self, name: str, number: int) -> None:
        registry = self.registry if number not in self.replicas else self.replicas[number].registry
        for part in (name, f"{name}/1", f"{name}/2"):
            registry.broken ^= {part}

    @rule(index=INDEXES)
    def cancel(self, index: int) -> None:
        async def cancelling() -> None:
            self.tasks[index % len(self.tasks)].cancel()
            await settle()

        if self.tasks:
            self.runner.run(cancelling())

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        async def removing() -> None:
            await self.manager.remove(name)
            if name not in self.manager.slots_by_name:
                self.register_model(name)

        self.begin(self.ordered(removing()))

    async def ordered(self, order: Coroutine[Any, Any, Any]) -> None:
        """Run an order; its caller gets the answer when all workers have applied it."""
        with suppress(RoundhouseError):
            await order
        await self.supervisor.publisher.applied()

    @rule()
    def settle_all(self) -> None:
        self.runner.run(self.settled())

    async def settled(self) -> None:
        """Wait until every task ends; then all workers agree with the supervisor, and answer."""
        await soon(lambda: all(task.done() for task in self.tasks) and not self.manager.residency._tasks)
        for task in self.tasks:
            if not task.cancelled():
                task.result()
        del self.tasks[:]
        for registry in (self.registry, *(replica.registry for replica in self.replicas.values())):
            registry.broken.clear()
        await soon(self.agree)
        self.manager.residency.ledger.check_integrity()

    def agree(self) -> bool:
        """Return whether each worker has the state of the supervisor."""
        for replica in self.replicas.values():
            for slot in self.manager.slots if replica.is_alive else []:
                own = replica.models.slots_by_name.get(slot.name)
                if own is None or own.version != slot.version:
                    return False
                for name, version in slot.versions.items():
                    is_ready = version.phase is ModelState.READY
                    if own.versions[name].is_ready is not is_ready or own.versions[name].references:
                        return False
                    if is_ready and own.versions[name].serving_id != version.serving_id:
                        return False
        return all(not version.references for slot in self.manager.slots for version in slot.versions.values())

    @invariant()
    def ledger_is_correct(self) -> None:
        if hasattr(self, "supervisor"):
            self.manager.residency.ledger.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "supervisor"):
            return
        try:
            self.runner.run(self.settled())
            self.runner.run(self.shut_down())
            assert worker_threads_end()
            for loader in (self.manager._loader, *(replica.loader for replica in self.all_replicas)):
                loader._threads.shutdown(wait=True)
            assert self.registry.are_all_closed
            assert all(replica.registry.are_all_closed for replica in self.all_replicas)
        finally:
            self.runner.close()
            self.folder.cleanup()
            self.short_retries.stop()
            self.logs.__exit__(None, None, None)

    async def shut_down(self) -> None:
        async with asyncio.timeout(60):
            for replica in self.replicas.values():
                if replica.is_alive:
                    await replica.end()
            await soon(lambda: not self.supervisor.workers.links)
            await self.manager.__aexit__(None, None, None)


TestReplicasMachine = ReplicasMachine.TestCase
TestReplicasMachine.settings = settings(
    max_examples=10,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),  # shrinking an order that hangs would take too long
)
