"""Random orders and requests over fake and real workers, which die and connect again: all agree, nothing hangs."""

import asyncio
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from structlog.testing import capture_logs

import frameworks.models.versions.states
from frameworks.core.channel.messages import ChannelLost
from frameworks.core.errors import (
    Draining,
    InvalidInput,
    ModelNotFound,
    ModelUnavailable,
    ModelUnloaded,
    OutOfMemory,
    RoundhouseError,
    VersionNotFound,
)
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.traffic import Share
from tests.frameworks.models.replicas.fake_workers import FakeWorker, Supervisor
from tests.frameworks.models.sized_registry import SizedRegistry, error_of, make_versions
from tests.support.control_links import connect
from tests.support.fake_probe import GIB
from tests.support.loops import HANGS_AFTER_S, settle, soon, worker_threads_end
from tests.support.managing import ask, make_manager, register
from tests.support.server_workers import Replica

PLAIN, LATEST, ALL = "plain", "latest", "all"
NAMES = st.sampled_from([PLAIN, LATEST, ALL])
VERSIONED = st.sampled_from([LATEST, ALL])
VERSIONS = st.sampled_from(["1", "2"])
WORKERS = st.integers(0, 2)
REPLICAS = st.integers(3, 4)
INDEXES = st.integers(0, 9)
CAPACITY = 2 * GIB


class ReplicasMachine(RuleBasedStateMachine):
    """The loop runs only within a rule; tasks of a rule continue during the next rules.

    `workers`: they apply messages late, fail, and check what they are sent. `replicas`: they load models and answer.
    """

    @initialize(is_calm=st.booleans())
    def start(self, is_calm: bool) -> None:
        """`is_calm`: no load fails, no worker fails and no model is removed, so no request fails for that."""
        self.logs = capture_logs()
        self.logs.__enter__()
        self.patches = [
            patch.object(frameworks.models.versions.states, "delay_after", lambda failures: 0.002),
            patch("frameworks.models.replicas.shared_engine.delay_after", lambda failures: 0.002),
        ]
        for each in self.patches:
            each.start()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.gate = threading.Event()
        self.gate.set()
        self.is_calm = is_calm
        self.registry = SizedRegistry()
        self.manager = make_manager(self.registry, drain_timeout_s=60, max_model_bytes=CAPACITY)
        self.workers: dict[int, FakeWorker] = {}
        self.replicas: dict[int, Replica[SizedRegistry]] = {}
        self.all_replicas: list[Replica[SizedRegistry]] = []
        self.requests: list[tuple[FakeWorker, int]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.checked: set[int] = set()
        for name in (LATEST, ALL):
            make_versions(Path(self.folder.name) / name, 1, 2)
        self.runner.run(self.open())
        for number in range(2):
            self.connect(number)
            self.join(3 + number)

    async def open(self) -> None:
        await self.manager.__aenter__()
        self.supervisor = Supervisor(self.manager)
        self.manager.on_changed(self.check_new_loads)
        for name in (PLAIN, LATEST, ALL):
            self.register_model(name)

    def pass_gate(self, _: object) -> None:
        assert self.gate.wait(HANGS_AFTER_S)

    @rule(is_open=st.booleans())
    def open_or_close_gate(self, is_open: bool) -> None:
        """Let the runs of the replicas wait, or continue."""
        self.gate.set() if is_open else self.gate.clear()

    def register_model(self, name: str) -> ModelSlot:
        policy = "all" if name == ALL else "latest"
        return register(self.manager, name, str(Path(self.folder.name) / name), load="lazy", version_policy=policy)

    def check_new_loads(self, name: str) -> None:
        """Each worker that serves has the engine of a load when that becomes ready."""
        slot = self.manager.slots_by_name.get(name)
        for version in [] if slot is None else slot.versions.values():
            if version.phase is ModelState.READY and version.serving_id not in self.checked:
                self.checked.add(version.serving_id)
                for worker in self.workers.values():
                    if worker.is_alive and worker.serves:
                        assert version.serving_id in worker.prepared, (worker.link.number, version)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        async def starting() -> None:
            self.tasks.append(asyncio.get_running_loop().create_task(coroutine))
            await settle()

        self.runner.run(starting())

    @rule(number=WORKERS)
    def connect(self, number: int) -> None:
        if number in self.workers and self.workers[number].is_alive:
            return

        async def connecting() -> None:
            self.workers[number] = await self.supervisor.join(number, is_held=True)
            self.workers[number].allow()
            await settle()

        self.runner.run(connecting())

    @rule(number=WORKERS)
    def die(self, number: int) -> None:
        self.of(number, lambda worker: worker.die())

    @rule(number=WORKERS)
    def hold(self, number: int) -> None:
        self.of(number, lambda worker: worker.hold())

    @rule(number=WORKERS, count=st.integers(1, 4))
    def allow(self, number: int, count: int) -> None:
        self.of(number, lambda worker: worker.allow(count))

    @precondition(lambda self: not self.is_calm)
    @rule(number=WORKERS)
    def fail(self, number: int) -> None:
        self.of(number, lambda worker: setattr(worker, "fails", 1))

    def of(self, number: int, act: Any) -> None:
        async def acting() -> None:
            worker = self.workers.get(number)
            if worker is not None and worker.is_alive:
                act(worker)
            await settle()

        self.runner.run(acting())

    @rule(number=WORKERS, name=NAMES)
    def ask(self, number: int, name: str) -> None:
        worker = self.workers.get(number)
        if worker is not None and worker.is_alive:
            self.begin(self.request(worker, name))

    async def request(self, worker: FakeWorker, name: str) -> None:
        try:
            serving = await worker.ask(name)
        except ChannelLost:
            return
        if serving is not None:
            self.requests.append((worker, serving))

    @rule(index=INDEXES)
    def answer(self, index: int) -> None:
        async def answering() -> None:
            worker, serving = self.requests.pop(index % len(self.requests))
            if worker.references[serving]:
                worker.end(serving)
            await settle()

        if self.requests:
            self.runner.run(answering())

    @rule(number=REPLICAS)
    def join(self, number: int) -> None:
        async def joining() -> None:
            replica = self.replicas[number] = Replica(number, SizedRegistry(self.pass_gate))
            self.all_replicas.append(replica)
            await connect(self.supervisor.workers, replica.link)

        if number not in self.replicas or not self.replicas[number].is_alive:
            self.runner.run(joining())

    @rule(number=REPLICAS, drain_timeout_s=st.sampled_from([60.0, 0.0]))
    def end_replica(self, number: int, drain_timeout_s: float) -> None:
        if number in self.replicas and self.replicas[number].is_alive:
            self.begin(self.replicas[number].end(drain_timeout_s))

    @rule(number=REPLICAS, names=st.lists(NAMES, min_size=1, max_size=4))
    def ask_replica(self, number: int, names: list[str]) -> None:
        replica = self.replicas.get(number)
        if replica is not None and replica.is_alive:
            for x, name in enumerate(names):
                self.begin(self.request_replica(replica, name, x))

    async def request_replica(self, replica: Replica[SizedRegistry], name: str, x: int) -> None:
        """A request is answered, unless its model is unloaded, its worker ends, or something fails."""
        error = await error_of(self.check_answer(replica, name, x))
        failures = (ModelUnavailable, ModelNotFound, VersionNotFound, OutOfMemory)
        expected = (Draining, ModelUnloaded) if self.is_calm and replica.is_alive else failures
        assert error is None or isinstance(error, expected), error

    async def check_answer(self, replica: Replica[SizedRegistry], name: str, x: int) -> None:
        assert await ask(replica.models, x, name) == [2 * x]

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

    @precondition(lambda self: not self.is_calm)
    @rule(name=NAMES, number=st.integers(2, 4))
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

    @precondition(lambda self: not self.is_calm)
    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        async def removing() -> None:
            await self.manager.remove(name)
            if name not in self.manager.slots_by_name:
                self.register_model(name)

        self.begin(self.ordered(removing()))

    async def ordered(self, order: Coroutine[Any, Any, Any]) -> None:
        """Run an order; its caller gets the answer when all workers have applied it."""
        with suppress(InvalidInput if self.is_calm else RoundhouseError):
            await order
        await self.supervisor.publisher.applied()

    @rule()
    def settle_all(self) -> None:
        self.runner.run(self.settled())

    async def settled(self) -> None:
        """End all requests; then every task ends, and all workers agree with the supervisor."""
        self.gate.set()
        async with asyncio.timeout(60):
            for worker in self.workers.values():
                if worker.is_alive:
                    worker.allow()
            while any(not task.done() for task in self.tasks) or self.manager.residency._tasks or self.requests:
                requests, self.requests = self.requests, []
                for worker, serving in requests:
                    if worker.references[serving]:
                        worker.end(serving)
                await asyncio.sleep(0.001)
        for task in self.tasks:
            if not task.cancelled():
                task.result()
        del self.tasks[:]
        for registry in (self.registry, *(replica.registry for replica in self.replicas.values())):
            registry.broken.clear()
        await soon(self.agree)
        self.manager.residency.ledger.check_integrity()

    def agree(self) -> bool:
        """Return whether each worker has the state of the supervisor, and no request holds a reference."""
        live = [worker for worker in self.workers.values() if worker.is_alive]
        for worker in live:
            ready = set()
            for slot in self.manager.slots:
                if slot.name not in worker.models or worker.models[slot.name].active != slot.version:
                    return False
                for version in slot.versions.values():
                    if worker.state(slot.name, version.version).state != version.phase:
                        return False
                    if version.phase is ModelState.READY:
                        ready.add(version.serving_id)
            if worker.prepared != ready or worker.ready != ready or not worker.serves:
                return False
        replicas = [replica for replica in self.replicas.values() if replica.is_alive]
        if not all(self.agrees(replica) for replica in replicas):
            return False
        return all(not version.references for slot in self.manager.slots for version in slot.versions.values())

    def agrees(self, replica: Replica[SizedRegistry]) -> bool:
        for slot in self.manager.slots:
            own = replica.models.slots_by_name.get(slot.name)
            if own is None or own.version != slot.version:
                return False
            for name, version in slot.versions.items():
                is_ready = version.phase is ModelState.READY
                if own.versions[name].is_ready is not is_ready or own.versions[name].references:
                    return False
                if is_ready and own.versions[name].serving_id != version.serving_id:
                    return False
        return True

    @invariant()
    def nothing_in_use_is_closed(self) -> None:
        """No load is closed while a worker that was sent it as ready has not drained it."""
        if not hasattr(self, "supervisor"):
            return
        for worker in self.workers.values():
            if worker.is_alive:
                in_use = (worker.ready | worker.draining) & worker.prepared
                assert in_use <= self.supervisor.publisher._engines.keys()
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
            assert self.supervisor.publisher._engines == {}
        finally:
            self.runner.close()
            self.folder.cleanup()
            for each in self.patches:
                each.stop()
            self.logs.__exit__(None, None, None)

    async def shut_down(self) -> None:
        async with asyncio.timeout(60):
            for name in (PLAIN, LATEST, ALL):
                await self.manager.unload(name)
            await self.supervisor.publisher.applied()
            for replica in self.replicas.values():
                if replica.is_alive:
                    await soon(lambda replica=replica: replica.models.is_idle)  # type: ignore[misc]
                    assert not replica.models._models.servings
                    assert {slot.state for slot in replica.models.slots} == {ModelState.UNLOADED}
            assert not self.manager.residency.ledger.versions
            for replica in self.replicas.values():
                if replica.is_alive:
                    await replica.end()
            await self.manager.__aexit__(None, None, None)
        for worker in self.workers.values():
            if worker.is_alive:
                worker.die()
        await soon(lambda: not self.supervisor.workers.links)


TestReplicasMachine = ReplicasMachine.TestCase
TestReplicasMachine.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),  # shrinking an order that hangs would take too long
)
