"""Random orders of operators, lost workers and requests, over a supervisor with workers."""

import asyncio
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frameworks.errors import Draining, ModelUnloaded
from frameworks.models.version import ModelState
from tests.frameworks.models.sized_registry import SizedRegistry
from tests.support.batch_models import FakeRegistry
from tests.support.fake_probe import GIB
from tests.support.loops import HANGS_AFTER_S, settle, soon, task
from tests.support.managing import ask, make_manager, register
from tests.support.server_workers import ServerWorkers, server_workers

NAMES = ("a", "b", "c")
_ORDERS = ("load", "unload", "cut_unload", "force_unload", "refresh", "cancel_order", "kill", "join", "hold", "release")
STEPS = st.tuples(
    st.sampled_from((*_ORDERS, "begin", "begin", "begin", "begin", "cancel", "wait")),
    st.integers(0, 2),
    st.integers(0, 4),
)


class Traffic:
    """Orders and requests to three models, of which two fit in memory."""

    def __init__(self, server: ServerWorkers, gate: threading.Event) -> None:
        self.server = server
        self.manager = server.manager
        self.gate = gate
        self.requests: list[tuple[int, asyncio.Task[Any]]] = []
        """With the number of its worker."""
        self.orders: list[asyncio.Task[Any]] = []
        self.lost: set[int] = set()
        """Requests of lost workers, by index."""

    def load(self, index: int) -> None:
        self.orders.append(task(self.manager.load(NAMES[index])))

    def unload(self, index: int) -> None:
        self.orders.append(task(self.manager.unload(NAMES[index])))

    def cut_unload(self, index: int) -> None:
        order = task(self.manager.unload(NAMES[index]))
        self.orders.append(order)
        asyncio.get_running_loop().call_later(0.002, order.cancel)

    def force_unload(self, index: int) -> None:
        self.orders.append(task(self.manager.unload(NAMES[index], drain_timeout_s=0.001)))

    def refresh(self, index: int) -> None:
        self.orders.append(task(self.manager.refresh(NAMES[index], frozenset({"1"}))))

    def cancel_order(self, index: int) -> None:
        for order in self.orders[index::3]:
            order.cancel()

    async def kill(self, index: int) -> None:
        if index in self.server.replicas:
            self.lost |= {number for number, (worker, _) in enumerate(self.requests) if worker == index}
            await self.server.kill(index)

    async def join(self, index: int) -> None:
        if index not in self.server.replicas:
            async with asyncio.timeout(HANGS_AFTER_S):
                await self.server.join(index)

    def hold(self, _: int) -> None:
        self.gate.clear()

    def release(self, _: int) -> None:
        self.gate.set()

    def begin(self, index: int) -> None:
        for number, replica in self.server.replicas.items():
            x = len(self.requests)
            self.requests.append((number, task(ask(replica, x, NAMES[index]))))

    def cancel(self, index: int) -> None:
        for _, request in self.requests[index::3]:
            request.cancel()

    async def wait(self, _: int) -> None:
        await settle()

    def check(self, number: int, request: "asyncio.Task[Any]") -> None:
        """A request is answered, unless it was cancelled, its model unloaded, or its worker lost."""
        if request.cancelled():
            return
        error = request.exception()
        if error is None:
            assert request.result() == [2 * number]
        elif number not in self.lost:
            assert isinstance(error, Draining | ModelUnloaded), error

    async def rest(self) -> None:
        """Let all orders and requests end, then unload all models."""
        self.gate.set()
        for order in self.orders:
            await soon(order.done)
            assert order.cancelled() or order.exception() is None, order.exception()
        for number, (_, request) in enumerate(self.requests):
            await soon(request.done)
            self.check(number, request)
        for name in NAMES:
            await self.manager.unload(name)
        await self.server.publisher.applied()
        for replica in self.server.replicas.values():
            await soon(lambda replica=replica: replica.is_idle)  # type: ignore[misc]
            assert not replica._models.servings
            assert [slot.state for slot in replica.slots] == [ModelState.UNLOADED] * 3
        assert not self.manager.residency.ledger.versions


@given(st.lists(STEPS, max_size=30))
def test_orders_keep_all_requests(steps: list[tuple[str, int, int]]) -> None:
    gate = threading.Event()
    gate.set()

    def hold(_: object) -> None:
        assert gate.wait(HANGS_AFTER_S)

    async def run() -> None:
        manager = make_manager(SizedRegistry(), max_model_bytes=2 * GIB)
        async with server_workers(manager, lambda: FakeRegistry(hold)) as server:
            for name in NAMES:
                register(manager, name, load="lazy")
            await server.publisher.applied()
            traffic = Traffic(server, gate)
            try:
                for step, index, rounds in steps:
                    done = getattr(traffic, step)(index)
                    if done is not None:
                        await done
                    for _ in range(rounds):
                        await asyncio.sleep(0)
            finally:
                gate.set()
            await traffic.rest()
        registries = [registry for registry in server.registries if isinstance(registry, FakeRegistry)]
        await soon(lambda: all(model.is_closed for registry in registries for model in registry.made))

    asyncio.run(run())
