"""Random changes of a supervisor beside random requests: none is lost, and none runs on a closed engine."""

import asyncio
import threading
from collections import Counter
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from frameworks.core.errors import Draining, ModelUnloaded
from frameworks.models.replicas.manager import ReplicaManager
from frameworks.models.replicas.messages import (
    Abandon,
    Applied,
    Drained,
    EndModelRequests,
    LoadForRequest,
    ShareState,
    VersionState,
)
from frameworks.models.versions.states import ModelState as State
from frameworks.models.versions.version import VersionNotLoaded
from tests.support.batch_models import FakeRegistry, numbers
from tests.support.fake_supervisor import FakeSupervisor, supervised, version_state
from tests.support.loops import HANGS_AFTER_S, settle, soon, task
from tests.support.managing import permit

VERSIONS = ("1", "2")


class Load:
    """One load of a version at the supervisor."""

    def __init__(self, serving: int, prepare: int) -> None:
        self.serving = serving
        self.prepare = prepare
        """The number of the last Prepare."""
        self.is_drained = False


class Version:
    """A version as the supervisor has it. `load`: is ready or drains; `next_load`: is being prepared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.REGISTERED
        self.next_state = State.UNLOADED
        self.load: Load | None = None
        self.next_load: Load | None = None

    @property
    def published(self) -> VersionState:
        serving = 0 if self.load is None else self.load.serving
        return version_state(self.name, self.state, serving, self.next_state)


class Server:
    """A supervisor that does one order at a time, and checks the messages of the worker."""

    def __init__(self, supervisor: FakeSupervisor, replica: ReplicaManager) -> None:
        self.supervisor = supervisor
        self.replica = replica
        self.versions = {name: Version(name) for name in VERSIONS}
        self.old: list[Load] = []
        self.share: ShareState | None = None
        self.serving = 0
        self.in_use: Counter[int] = Counter()
        """Requests in progress by load."""
        self.ended: set[int] = set()
        """Loads whose requests were ended by an order."""
        self.requests: list[asyncio.Task[Any]] = []
        self.problems: list[str] = []
        supervisor.load = self.load_for_request
        supervisor.link.handle(Drained, self.note_drained)
        self.publish()

    @property
    def loads(self) -> list[Load]:
        current = [load for version in self.versions.values() for load in (version.load, version.next_load) if load]
        return [*current, *self.old]

    def publish(self) -> None:
        self.supervisor.publish(*(each.published for each in self.versions.values()), canary=self.share)

    def prepare(self, version: Version, serving: int) -> int:
        return self.supervisor.prepare(serving, version.name)

    def note_drained(self, message: Drained) -> None:
        [load] = [each for each in self.loads if each.serving == message.serving]
        version = next((each for each in self.versions.values() if each.load is load), None)
        is_draining = load in self.old or (version is not None and version.state is State.DRAINING)
        if self.in_use[message.serving]:
            self.problems.append("a load with requests was drained")
        if load.is_drained:
            self.problems.append("a load was drained twice")
        if is_draining:
            load.is_drained = True
        elif self.supervisor.has_answer(load.prepare):
            self.problems.append("a load that is ready again was drained")

    # Orders: each does nothing where it does not apply.

    def start_load(self, version: Version) -> None:
        if version.next_load is None and version.state is not State.DRAINING:
            self.serving += 1
            version.next_load = Load(self.serving, self.prepare(version, self.serving))

    def make_ready(self, version: Version) -> None:
        load = version.next_load
        if load is not None and self.supervisor.has_answer(load.prepare):
            if version.load is not None:
                self.old.append(version.load)
            version.load, version.next_load, version.state = load, None, State.READY
            self.publish()

    async def serve(self, version: Version) -> None:
        self.start_load(version)
        load = version.next_load
        if load is not None:
            await soon(lambda: version.next_load is not load or self.supervisor.has_answer(load.prepare))
            self.make_ready(version)

    def abandon(self, version: Version) -> None:
        if version.next_load is not None:
            self.supervisor.link.send(Abandon(version.next_load.serving))
            version.next_load = None

    def evict(self, version: Version) -> None:
        self.drain(version, State.REGISTERED)

    def unload(self, version: Version) -> None:
        self.drain(version, State.UNLOADED)

    def drain(self, version: Version, next_state: State) -> None:
        if version.state is State.READY:
            version.state, version.next_state = State.DRAINING, next_state
            self.publish()

    def end_drain(self, version: Version) -> None:
        load = version.load
        if version.state is State.DRAINING and load is not None and load.serving not in self.ended:
            load.prepare, load.is_drained = self.prepare(version, load.serving), False
            version.state = State.READY
            self.publish()

    def end_requests(self, version: Version) -> None:
        if version.state is State.DRAINING and version.load is not None:
            self.ended.add(version.load.serving)
            self.supervisor.link.send(EndModelRequests(version.load.serving))

    def finish_drain(self, version: Version) -> None:
        if version.state is State.DRAINING and version.load is not None and version.load.is_drained:
            version.state, version.load = version.next_state, None
            self.publish()

    def split(self, version: Version) -> None:
        self.share = None if version.name == "1" else ShareState("2", 50.0)
        self.publish()

    # Requests.

    def begin(self, version: Version) -> None:
        self.requests.append(task(self.request(len(self.requests))))

    def cancel(self, version: Version) -> None:
        for each in self.requests[:: 2 if version.name == "1" else 3]:
            each.cancel()

    async def request(self, x: int) -> None:
        serving = 0
        try:
            with permit() as held:
                version = await self.acquired(held)
                serving = version.serving_id
                self.in_use[serving] += 1
                held.queue(version.model.requests)
                outputs = await version.engine().submit(numbers(x), begin=held.begin)
                assert outputs["y"] == [2 * x]
                self.in_use[serving] -= 1
                serving = 0
        except ModelUnloaded:
            return
        except Draining:
            assert self.ended
        finally:
            if serving:
                self.in_use[serving] -= 1

    async def acquired(self, held: Any) -> Any:
        while True:
            version = self.replica.slot("m").route()
            try:
                spec = version.spec_for(held)
            except VersionNotLoaded:
                await self.replica.wait_for(version, held)
                continue
            if version.acquire(held, spec):
                return version

    async def load_for_request(self, question: LoadForRequest) -> None:
        version = self.versions[question.version]
        while version.state is State.DRAINING:
            await asyncio.sleep(0.001)
            self.finish_drain(version)
        if version.state is State.REGISTERED:
            await self.serve(version)

    def have_requests_ended(self) -> bool:
        """Complete the drains that requests wait for."""
        for version in self.versions.values():
            self.finish_drain(version)
        return all(each.done() for each in self.requests)

    def is_empty(self) -> bool:
        """Unload all versions."""
        for version in self.versions.values():
            self.abandon(version)
            self.unload(version)
            self.finish_drain(version)
        return all(load.is_drained for load in self.loads)

    async def rest(self) -> None:
        """Complete all orders. All requests end, and every load that was drained is reported."""
        await soon(self.have_requests_ended)
        await soon(self.is_empty)
        await soon(lambda: not self.replica._models.servings)
        assert self.replica.is_idle
        assert not self.problems
        for each in self.requests:
            assert each.cancelled() or each.exception() is None, each.exception()
        answered = [message.number for message in self.supervisor.of(Applied)]
        assert len(answered) == len(set(answered))


ORDERS = (
    "serve", "serve", "start_load", "make_ready", "abandon", "evict", "unload", "end_drain", "end_requests",
    "finish_drain", "split", "begin", "begin", "begin", "cancel",
)  # fmt: skip
STEPS = st.tuples(st.sampled_from((*ORDERS, "hold", "release", "wait")), st.sampled_from(VERSIONS), st.integers(0, 3))


def in_turn(*orders: str) -> list[tuple[str, str, int]]:
    return [(order, "1", 3) for order in orders]


@given(st.lists(STEPS, max_size=40))
@example(in_turn("serve", "evict", "wait", "begin", "wait", "finish_drain"))
@example(in_turn("serve", "hold", "begin", "wait", "evict", "begin", "end_drain", "wait", "begin", "release", "wait"))
@example(in_turn("serve", "evict", "end_drain", "begin", "evict", "wait", "end_drain", "begin"))
@example(in_turn("serve", "hold", "begin", "wait", "serve", "begin", "unload", "release", "wait", "finish_drain"))
def test_changes_keep_all_requests(steps: list[tuple[str, str, int]]) -> None:
    gate = threading.Event()
    gate.set()

    def hold(_: object) -> None:
        assert gate.wait(HANGS_AFTER_S)

    async def run() -> None:
        registry = FakeRegistry(hold)
        async with supervised(registry) as (supervisor, replica):
            server = Server(supervisor, replica)
            await soon(lambda: "m" in replica.slots_by_name)
            try:
                for order, name, rounds in steps:
                    if order in ("hold", "release"):
                        gate.clear() if order == "hold" else gate.set()
                    elif order == "wait":
                        await settle()
                    else:
                        done = getattr(server, order)(server.versions[name])
                        if done is not None:
                            await done
                    for _ in range(rounds):
                        await asyncio.sleep(0)
            finally:
                gate.set()
            await server.rest()
            await soon(lambda: all(model.is_closed for model in registry.made))

    asyncio.run(run())
