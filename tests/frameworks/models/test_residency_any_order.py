"""Random orders of requests and commands with little memory: the ledger is correct, all requests end."""

import asyncio
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from structlog.testing import capture_logs

import frameworks.models.versions.states
from frameworks.core.errors import (
    InvalidInput,
    InvalidModel,
    ModelExists,
    ModelFailed,
    ModelNotFound,
    ModelUnavailable,
    ModelUnloaded,
    OutOfMemory,
    VersionNotFound,
)
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.traffic import Share
from tests.frameworks.models.sized_registry import SizedRegistry, check_settled, infer, make_versions
from tests.support.fake_probe import GIB
from tests.support.loops import worker_threads_end
from tests.support.managing import entry, make_manager, permit

# A model with two instances, two models with version folders, and one that needs all the memory.
PLAIN, LATEST, ALL, LARGE = "plain", "latest", "all", "large"
NAMES = st.sampled_from([PLAIN, LATEST, ALL, LARGE])
VERSIONED = st.sampled_from([LATEST, ALL])
VERSIONS = st.sampled_from(["1", "2"])
PARTS = st.sampled_from([PLAIN, LARGE, *(f"{name}/{number}" for name in (LATEST, ALL) for number in "12")])
CAPACITY = 2 * GIB
MAX_REQUESTS = 4


class ResidencyMachine(RuleBasedStateMachine):
    """The loop runs only within a rule; tasks of a rule continue during the next rules."""

    @initialize()
    def start_manager(self) -> None:
        self.logs = capture_logs()
        self.logs.__enter__()
        self.short_retries = patch.object(frameworks.models.versions.states, "delay_after", lambda failures: 0.002)
        self.short_retries.start()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.unblocked = threading.Event()
        self.unblocked.set()
        self.loads: list[list[Any]] = []
        """The instances of each load, whose specs have the bytes of all of them."""
        self.registry = self.make_registry()
        self.manager = make_manager(self.registry, drain_timeout_s=60, max_model_bytes=CAPACITY)
        self.requests: dict[asyncio.Task[Any], object] = {}
        self.commands: list[asyncio.Task[Any]] = []
        self.cancelled: set[asyncio.Task[Any]] = set()
        for name in (LATEST, ALL):
            make_versions(Path(self.folder.name) / name, 1, 2)
        for name in (PLAIN, LATEST, ALL, LARGE):
            self.register(name)
        self.runner.run(self.manager.__aenter__())

    def make_registry(self) -> SizedRegistry:
        machine = self

        class Blocked(SizedRegistry):
            def load(self, *arguments: Any) -> Any:
                machine.wait()
                instances = super().load(*arguments)
                machine.loads.append(instances)
                return instances

        registry = Blocked(self.behave)
        registry.sizes[LARGE] = CAPACITY
        registry.estimates[LARGE] = GIB  # the measurement finds the difference
        return registry

    def wait(self) -> None:
        assert self.unblocked.wait(60)

    def behave(self, x: list[object]) -> None:
        self.wait()
        if x == ["die"]:
            raise SystemExit

    def entry(self, name: str, load: Literal["lazy", "startup"] = "lazy") -> tuple[OnnxModelEntry, Path]:
        policy = "all" if name == ALL else "latest"
        settings = {"version_policy": policy, "instances": 1 + (name == PLAIN), "max_concurrent_requests": MAX_REQUESTS}
        return entry(name, load=load, **settings), Path(self.folder.name) / name

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        async def starting() -> "asyncio.Task[Any]":
            task = asyncio.get_running_loop().create_task(coroutine)
            await asyncio.sleep(0)
            return task

        return self.runner.run(starting())

    @rule(name=NAMES)
    def register(self, name: str) -> None:
        is_known = name in self.manager.slots_by_name
        try:
            self.manager.register("fake", *self.entry(name))
        except ModelExists:
            assert is_known
        else:
            assert not is_known

    def request(self, name: str, x: object, version: str | None = None) -> None:
        self.requests[self.start(infer(self.manager, name, x, version))] = x

    def command(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.commands.append(self.start(coroutine))

    @rule(names=st.lists(NAMES, min_size=1, max_size=6), last=st.one_of(st.integers(0, 99), st.just("bad")))
    def ask(self, names: list[str], last: object) -> None:
        for x, name in zip([*range(len(names) - 1), last], names, strict=True):
            self.request(name, x)

    @rule(name=VERSIONED, version=VERSIONS)
    def ask_a_version(self, name: str, version: str) -> None:
        self.request(name, 1, version)

    @rule(name=NAMES)
    def kill(self, name: str) -> None:
        self.request(name, "die")

    @rule(name=NAMES)
    def load(self, name: str) -> None:
        self.command(self.manager.load(name))

    @rule(name=VERSIONED, version=VERSIONS)
    def swap(self, name: str, version: str) -> None:
        self.command(self.manager.load(name, version))

    @rule(name=VERSIONED)
    def roll_back(self, name: str) -> None:
        self.command(self.manager.rollback(name))

    @rule(name=VERSIONED, version=VERSIONS, kind=st.sampled_from(["canary", "shadow"]), ends=st.booleans())
    def split(self, name: str, version: str, kind: str, ends: bool) -> None:
        self.command(self.manager.split(name, kind, None if ends else Share(version, 50)))

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        self.command(self.manager.unload(name))

    @rule(name=VERSIONED, version=VERSIONS)
    def unload_a_version(self, name: str, version: str) -> None:
        self.command(self.manager.unload(name, version))

    @rule()
    def refresh(self) -> None:
        self.command(self.manager.refresh(PLAIN, frozenset("1")))

    @rule(name=NAMES)
    def replace(self, name: str) -> None:
        async def replacing() -> None:
            await self.manager.remove(name)
            self.register(name)

        self.command(replacing())

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.command(self.manager.remove(name))

    @rule(name=NAMES, load=st.sampled_from(["lazy", "startup"]))
    def add(self, name: str, load: Literal["lazy", "startup"]) -> None:
        self.command(self.manager.add("fake", *self.entry(name, load)))

    @rule(part=PARTS)
    def toggle_broken(self, part: str) -> None:
        self.registry.broken ^= {part}

    @precondition(lambda self: self.commands or self.requests)
    @rule(choice=st.integers(0, 1000))
    def cancel(self, choice: int) -> None:
        tasks = [*self.commands, *self.requests]
        task = tasks[choice % len(tasks)]
        if not task.done():
            task.cancel()
            self.cancelled.add(task)
        self.runner.run(asyncio.sleep(0))

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.004]))
    def run_loop(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule()
    def block(self) -> None:
        self.unblocked.clear()

    @rule()
    def unblock(self) -> None:
        self.unblocked.set()

    @rule()
    def settle(self) -> None:
        """Let all tasks end and check their results; then check that every model answers unless it was unloaded."""
        self.unblocked.set()
        self.registry.broken.clear()
        self.runner.run(self.wait_for_all())
        refusals = (ModelNotFound, VersionNotFound, InvalidModel, OutOfMemory)
        for task, x in self.requests.items():
            self.check_ended(task, (*refusals, ModelUnavailable, *([InvalidInput] if x == "bad" else [])))
        for task in self.commands:
            self.check_ended(task, (*refusals, ModelExists, InvalidInput))
        self.requests, self.commands = {}, []
        check_settled(self.manager)
        assert [slot.queue_depth for slot in self.manager.slots] == [0] * len(self.manager.slots)
        passing = (ModelState.LOADING, ModelState.DRAINING)
        assert [
            version for slot in self.manager.slots for version in slot.versions.values() if version.state in passing
        ] == []
        self.runner.run(self.all_answer())
        check_settled(self.manager)
        there = sum(
            instances[0].spec.memory_bytes
            for instances in self.loads
            if not all(model.is_closed for model in instances)
        )
        assert there <= self.manager.residency.ledger.budget.used("cpu"), "every model in memory is in the ledger"

    async def wait_for_all(self) -> None:
        tasks = {*self.commands, *self.requests}
        if tasks:
            await asyncio.wait(tasks, timeout=60)
        if self.manager.residency._tasks:
            await asyncio.wait(self.manager.residency._tasks, timeout=60)
            await asyncio.sleep(0)
        assert not self.manager.residency._tasks

    async def all_answer(self) -> None:
        async with asyncio.timeout(60):
            for slot in self.manager.slots:
                if slot.route().state is ModelState.UNLOADED:
                    continue
                for _ in range(5):
                    try:
                        await infer(self.manager, slot.name, 2)
                        break
                    except (ModelFailed, OutOfMemory):
                        await asyncio.sleep(0.003)  # until the next retry
                    except ModelUnloaded:
                        break  # the canary was chosen
                else:
                    raise AssertionError(f"{slot.name}, {slot.state}: {slot.reason}")

    def check_ended(self, task: "asyncio.Task[Any]", refusals: tuple[type[Exception], ...]) -> None:
        assert task.done(), "every request ends"
        if task.cancelled():
            assert task in self.cancelled
        else:
            assert task.exception() is None or isinstance(task.exception(), refusals), task.exception()

    @invariant()
    def ledger_is_correct(self) -> None:
        if not hasattr(self, "manager"):
            return
        ledger = self.manager.residency.ledger
        ledger.check_integrity()
        assert ledger.budget.used("cpu") <= CAPACITY
        # A refresh may load the plain model during the load of the version that it replaces.
        at_once = {part: count for part, count in self.registry.most_at_once.items() if part != PLAIN}
        assert all(count == 1 for count in at_once.values()), at_once

    @invariant()
    def shown_state_is_correct(self) -> None:
        for slot in self.manager.slots if hasattr(self, "manager") else []:
            assert 0 <= slot.queue_depth <= slot.requests.inflight <= MAX_REQUESTS
            assert (slot.reason is not None) == (slot.state is ModelState.FAILED)
            if slot.state is ModelState.READY:
                assert slot.canary is not None or slot.route() is slot.active
                assert slot.spec is not None
                assert slot.loads > 0
            else:
                with permit() as held, pytest.raises(ModelUnavailable):
                    slot.active.spec_for(held)

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        try:
            self.settle()
            self.runner.run(self.shut_down())
            assert all(
                version.state is ModelState.UNLOADED for s in self.manager.slots for version in s.versions.values()
            )
            assert self.manager.residency.ledger.versions == []
            assert worker_threads_end()
            self.manager._loader._threads.shutdown(wait=True)
            assert self.registry.are_all_closed
        finally:
            self.unblocked.set()
            self.runner.close()
            self.folder.cleanup()
            self.short_retries.stop()
            self.logs.__exit__(None, None, None)

    async def shut_down(self) -> None:
        await self.manager.__aexit__(None, None, None)


TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),  # shrinking an order that hangs would take too long
)
