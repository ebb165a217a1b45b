"""Test random orders of commands and requests: every request ends, and all permits are released."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from structlog.testing import capture_logs

from frameworks.devices import DeviceManager
from frameworks.errors import InvalidInput, InvalidModel, ModelExists, ModelNotFound, ModelUnavailable
from frameworks.manager import MLFrameworkManager
from frameworks.models.loader import Loader
from frameworks.models.slot import ModelState
from frameworks.settings import OnnxModelEntry, PerformanceSettings, SchedulingSettings
from tests.support.batch_models import FakeRegistry, numbers
from tests.support.fake_probe import FakeProbe
from tests.support.loops import soon, worker_threads_end
from tests.support.managing import entry, opened, permit

NAMES = st.sampled_from("ab")
MAX_REQUESTS = 3


class AnyOrder(RuleBasedStateMachine):
    """The loop runs only within a rule; tasks of a rule continue during the next rules."""

    @initialize()
    def start_manager(self) -> None:
        self.logs = capture_logs()
        self.logs.__enter__()
        self.runner = asyncio.Runner()
        self.unblocked = threading.Event()
        self.unblocked.set()
        self.registry = FakeRegistry(self.behave, on_load=self.wait)
        self.manager = MLFrameworkManager(
            Loader({"fake": lambda: self.registry}, DeviceManager(FakeProbe())),
            PerformanceSettings(),
            SchedulingSettings(),
            drain_timeout_s=60,
        )
        self.requests: list[tuple[object, asyncio.Task[Any]]] = []
        self.commands: list[asyncio.Task[Any]] = []
        self.cancelled: set[asyncio.Task[Any]] = set()
        for name in "ab":
            self.register(name, broken=False)
        self.runner.run(self.manager.__aenter__())
        self.runner.run(self.manager.load_registered())

    def wait(self) -> None:
        assert self.unblocked.wait(60)

    def behave(self, x: list[object]) -> None:
        self.wait()
        if x == ["die"]:
            raise SystemExit

    @staticmethod
    def entry(name: str) -> OnnxModelEntry:
        """The model "b" has two instances."""
        return entry(name, max_concurrent_requests=MAX_REQUESTS, instances=1 + (name == "b"))

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        async def starting() -> "asyncio.Task[Any]":
            task = asyncio.get_running_loop().create_task(coroutine)
            await asyncio.sleep(0)
            return task

        return self.runner.run(starting())

    @rule(name=NAMES, broken=st.booleans())
    def register(self, name: str, broken: bool) -> None:
        known = [slot.name for slot in self.manager.slots]
        try:
            path = Path("broken" if broken else "files")
            self.manager.register("fake", self.entry(name), path)
        except ModelExists:
            assert name in known
        else:
            assert name not in known

    @rule(name=NAMES)
    def load(self, name: str) -> None:
        self.commands.append(self.start(self.manager.load(name)))

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        self.commands.append(self.start(self.manager.unload(name)))

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.commands.append(self.start(self.manager.remove(name)))

    @rule(name=NAMES, broken=st.booleans())
    def add(self, name: str, broken: bool) -> None:
        path = Path("broken" if broken else "files")
        self.commands.append(self.start(self.manager.add("fake", self.entry(name), path)))

    @rule(name=NAMES, xs=st.lists(st.one_of(st.integers(0, 99), st.just("bad")), min_size=1, max_size=5))
    def ask(self, name: str, xs: list[object]) -> None:
        self.requests += [(x, self.start(self.answer(name, x))) for x in xs]

    @rule(name=NAMES)
    def kill(self, name: str) -> None:
        self.requests.append(("die", self.start(self.answer(name, "die"))))

    async def answer(self, name: str, x: object) -> Any:
        with permit() as held:
            version = await opened(self.manager, held, name)
            held.queue(version.model.requests)
            result = await version.engine().submit(numbers(x), begin=held.begin)
            await asyncio.sleep(0)  # send the response
            return result["y"]

    @precondition(lambda self: self.commands or self.requests)
    @rule(choice=st.integers(0, 1000))
    def cancel(self, choice: int) -> None:
        tasks = [*self.commands, *(task for _, task in self.requests)]
        task = tasks[choice % len(tasks)]
        if not task.done():
            task.cancel()
            self.cancelled.add(task)
        self.run_loop()

    @rule()
    def run_loop(self) -> None:
        self.runner.run(asyncio.sleep(0.001))

    @rule()
    def block(self) -> None:
        self.unblocked.clear()

    @rule()
    def settle(self) -> None:
        """Let all tasks end, and check their results."""
        self.unblocked.set()
        tasks = [*self.commands, *(task for _, task in self.requests)]
        if tasks:
            self.runner.run(asyncio.wait(tasks, timeout=60))
        # A load continues after its caller was cancelled.
        self.runner.run(soon(lambda: self.manager.residency.is_idle))
        for x, task in self.requests:
            self.check_ended(task, (ModelUnavailable, ModelNotFound, *([InvalidInput] if x == "bad" else [])))
            if not task.cancelled() and task.exception() is None:
                assert isinstance(x, int)
                assert task.result() == [2 * x]
        for task in self.commands:
            self.check_ended(task, (ModelNotFound, ModelExists, InvalidModel))
        assert [slot.requests.inflight for slot in self.manager.slots] == [0] * len(self.manager.slots)
        assert [slot.queue_depth for slot in self.manager.slots] == [0] * len(self.manager.slots)
        passing = (ModelState.LOADING, ModelState.DRAINING)
        assert [slot for slot in self.manager.slots if slot.state in passing] == []
        self.requests, self.commands = [], []

    def check_ended(self, task: "asyncio.Task[Any]", refusals: tuple[type[Exception], ...]) -> None:
        assert task.done(), "every request ends"
        if task.cancelled():
            assert task in self.cancelled
        else:
            assert task.exception() is None or isinstance(task.exception(), refusals)

    @invariant()
    def shown_state_is_correct(self) -> None:
        for slot in self.manager.slots if hasattr(self, "manager") else []:
            assert 0 <= slot.queue_depth <= slot.requests.inflight <= MAX_REQUESTS
            assert (slot.reason is not None) == (slot.state is ModelState.FAILED)
            if slot.state is ModelState.READY:
                assert slot.route() is slot.active
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
            assert all(slot.state is ModelState.UNLOADED for slot in self.manager.slots)
            assert worker_threads_end()
            # A load whose caller was cancelled may end last.
            self.manager._loader._threads.shutdown(wait=True)
            assert [model for model in self.registry.made if not model.is_closed] == []
        finally:
            self.unblocked.set()
            self.runner.close()
            self.logs.__exit__(None, None, None)

    async def shut_down(self) -> None:
        await self.manager.__aexit__(None, None, None)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),  # shrinking an order that hangs would take too long
)
