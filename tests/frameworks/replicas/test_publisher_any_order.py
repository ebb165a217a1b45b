"""Random orders beside workers that apply late, fail, die and connect again: all of them agree, and nothing hangs."""

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
from frameworks.engine.process.messages import ChannelLost
from frameworks.errors import RoundhouseError
from frameworks.models.slot import ModelSlot, ModelState
from frameworks.models.traffic import Share
from tests.frameworks.models.sized_registry import SizedRegistry, make_versions
from tests.frameworks.replicas.fake_workers import FakeWorker, Supervisor
from tests.support.fake_probe import GIB
from tests.support.loops import settle, soon, worker_threads_end
from tests.support.managing import make_manager, register

PLAIN, LATEST, ALL = "plain", "latest", "all"
NAMES = st.sampled_from([PLAIN, LATEST, ALL])
VERSIONED = st.sampled_from([LATEST, ALL])
VERSIONS = st.sampled_from(["1", "2"])
NUMBERS = st.integers(0, 2)
INDEXES = st.integers(0, 9)
CAPACITY = 2 * GIB


class PublisherMachine(RuleBasedStateMachine):
    """The loop runs only within a rule; tasks of a rule continue during the next rules."""

    @initialize()
    def start(self) -> None:
        self.logs = capture_logs()
        self.logs.__enter__()
        self.patches = [
            patch.object(frameworks.models.load_failures, "_MAX_RETRY_S", 0.002),
            patch("frameworks.replicas.shared_engine._MAX_RETRY_S", 0.002),
        ]
        for each in self.patches:
            each.start()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.registry = SizedRegistry()
        self.manager = make_manager(self.registry, drain_timeout_s=60, max_model_bytes=CAPACITY)
        self.workers: dict[int, FakeWorker] = {}
        self.requests: list[tuple[FakeWorker, int]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.checked: set[int] = set()
        for name in (LATEST, ALL):
            make_versions(Path(self.folder.name) / name, 1, 2)
        self.runner.run(self.open())
        for number in range(2):
            self.connect(number)

    async def open(self) -> None:
        await self.manager.__aenter__()
        self.supervisor = Supervisor(self.manager)
        self.manager.on_changed(self.check_new_loads)
        for name in (PLAIN, LATEST, ALL):
            self.register_model(name)

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

    @rule(number=NUMBERS)
    def connect(self, number: int) -> None:
        if number in self.workers and self.workers[number].is_alive:
            return

        async def connecting() -> None:
            self.workers[number] = await self.supervisor.join(number, is_held=True)
            self.workers[number].allow()
            await settle()

        self.runner.run(connecting())

    @rule(number=NUMBERS)
    def die(self, number: int) -> None:
        self.of(number, lambda worker: worker.die())

    @rule(number=NUMBERS)
    def hold(self, number: int) -> None:
        self.of(number, lambda worker: worker.hold())

    @rule(number=NUMBERS, count=st.integers(1, 4))
    def allow(self, number: int, count: int) -> None:
        self.of(number, lambda worker: worker.allow(count))

    @rule(number=NUMBERS)
    def fail(self, number: int) -> None:
        self.of(number, lambda worker: setattr(worker, "fails", 1))

    def of(self, number: int, act: Any) -> None:
        async def acting() -> None:
            worker = self.workers.get(number)
            if worker is not None and worker.is_alive:
                act(worker)
            await settle()

        self.runner.run(acting())

    @rule(number=NUMBERS, name=NAMES)
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

    @rule(name=NAMES)
    def break_or_mend(self, name: str) -> None:
        for part in (name, f"{name}/1", f"{name}/2"):
            self.registry.broken ^= {part}

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
        """End all requests; then every task ends, and all workers agree with the supervisor."""
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
        self.registry.broken.clear()
        await soon(self.agree)
        self.manager.residency.ledger.check_integrity()

    def agree(self) -> bool:
        """Return whether each worker has what the supervisor has; raises AssertionError for what must never differ."""
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
            self.manager._loader._threads.shutdown(wait=True)
            assert self.registry.are_all_closed
            assert self.supervisor.publisher._engines == {}
        finally:
            self.runner.close()
            self.folder.cleanup()
            for each in self.patches:
                each.stop()
            self.logs.__exit__(None, None, None)

    async def shut_down(self) -> None:
        async with asyncio.timeout(60):
            await self.manager.__aexit__(None, None, None)
        for worker in self.workers.values():
            if worker.is_alive:
                worker.die()
        await soon(lambda: not self.supervisor.workers.links)


TestPublisherMachine = PublisherMachine.TestCase
TestPublisherMachine.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),  # shrinking an order that hangs would take too long
)
