"""The room in memory: keeps the ledger of who holds how much, finds each its place, and says who leaves for it."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

import structlog

from frameworks.devices import Device, DeviceManager, ModelNeeds
from frameworks.errors import NoRoomNow, OutOfMemory
from frameworks.models.eviction import is_bound_to_stay, may_leave, next_victim
from frameworks.models.placement import Place, place
from frameworks.models.version import ModelState, ModelVersion
from memory.budget import Budget
from memory.sizes import format_size

log = structlog.get_logger(__name__)

_ONE_LEFT = None


@dataclass(frozen=True, slots=True)
class Order:
    """How a version is brought in. `beside`: the version that stays, whatever it costs."""

    may_evict: bool = True
    beside: ModelVersion | None = None


class MemoryLedger:
    """What is loaded, is on its way in or on its way out holds its memory in the ledger, and nothing else does.

    Owned by the event loop.
    """

    def __init__(
        self,
        devices: DeviceManager,
        unload: Callable[[ModelVersion], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`unload(version)` drains and unloads a version, and releases its memory here."""
        self.budget = Budget({})
        """Measured when the house is opened."""
        self.evictions: Counter[str] = Counter()
        """By model."""
        self._devices = devices
        self._send_out = unload
        self._clock = clock
        self._versions: set[ModelVersion] = set()
        # One at a time makes room, in order of arrival: two would send out the same, or more than they need.
        self._making_room = asyncio.Lock()
        self._somebody_came_or_left = asyncio.Event()

    @property
    def versions(self) -> list[ModelVersion]:
        """Who holds memory."""
        return list(self._versions)

    async def reserve(self, version: ModelVersion, needs: ModelNeeds, order: Order) -> Device:
        """Finds the version its place, and makes room there if it must and may."""
        needs = _as_measured(version, needs)
        is_first = True
        while True:
            self._somebody_came_or_left.clear()
            async with self._making_room:
                candidates = await asyncio.to_thread(self._devices.candidates, version.model.name, needs, is_first)
                is_first = False
                chosen = self._place(version, candidates, needs, order.beside)
                device = chosen.device
                if not chosen.must_leave:
                    if device.kind == "cpu" and candidates[0].kind != "cpu":
                        log.warning(
                            "model fits on no accelerator, taking the CPU",
                            model=version.model.name,
                            needs=format_size(needs.accelerator_bytes),
                            devices=self._figures(candidates[:-1]),
                        )
                    self.budget.reserve(version, device.memory_id, needs.on(device))
                    self._versions.add(version)
                    return device
                if not order.may_evict:
                    raise NoRoomNow(
                        f"{version} needs {format_size(needs.on(device))}; {self._figures([device])}; "
                        "it is loaded when it is asked for"
                    )
                wait_s = await self._one_leaves(device.memory_id, order.beside)
            # Not with the lock held: who is being waited for may need it.
            await self._wait(wait_s)

    async def correct(self, version: ModelVersion, device: Device, order: Order) -> bool:
        """Enters what was measured in the ledger; if it is more than was thought, others leave. False if too few do."""
        memory = device.memory_id
        async with self._making_room:
            while version.memory_bytes - self.budget.held_by(version) > max(0, self.budget.free(memory)):
                if not order.may_evict or await self._one_leaves(memory, order.beside) is not _ONE_LEFT:
                    return False
            self.budget.correct(version, version.memory_bytes)
            return True

    def release(self, version: ModelVersion) -> None:
        """What the version held is free again."""
        self.budget.release(version)
        self._versions.discard(version)
        self.tell()

    def tell(self) -> None:
        """Somebody came or left: whoever waits for room looks again."""
        self._somebody_came_or_left.set()

    def check_integrity(self) -> None:
        """Raises AssertionError, with what is wrong, where the ledger is not the sum of who is in memory."""
        held = {owner for device in self.budget.devices for owner in self.budget.owners(device)}
        assert held == self._versions, f"held by {held}, in memory are {self._versions}"
        for version in self._versions:
            if version.state is ModelState.READY:
                assert self.budget.held_by(version) == version.memory_bytes, f"{version}: held and measured differ"
            assert version.state not in (ModelState.REGISTERED, ModelState.UNLOADED), f"{version} is {version.state}"
        for device in self.budget.devices:
            assert self.budget.free(device) >= 0, f"{device}: more is promised than there is"

    def _place(
        self, version: ModelVersion, candidates: list[Device], needs: ModelNeeds, beside: ModelVersion | None
    ) -> Place:
        """Raises OutOfMemory where the version fits nowhere."""

        def room(device: Device) -> int:
            return min(self.budget.free(device.memory_id), device.free_bytes)

        def largest_room(device: Device) -> int:
            return room(device) + sum(
                self.budget.held_by(other)
                for other in self._versions
                if other is not beside and not is_bound_to_stay(other) and self._is_on(other, device.memory_id)
            )

        chosen = place(candidates, needs, room, largest_room)
        if chosen is None:
            staying = f"beside version {beside.version}, which serves, " if beside else ""
            raise OutOfMemory(
                f"{version} needs {format_size(min(map(needs.on, candidates)))} {staying}and there is no such room: "
                f"{self._figures(candidates)}; unload or unpin a model, raise memory.max_model_memory"
                + (', or set device = "auto"' if needs.wanted not in ("auto", "cpu") else "")
            )
        return chosen

    async def _one_leaves(self, memory: str, beside: ModelVersion | None) -> float | None:
        """Sends out one version; else the seconds until one may leave, infinite where one must come or go first."""
        others = self._others(memory, beside)
        victim = next_victim(others, self._clock())
        if victim is None:
            return inf
        if victim.wait_s:
            for other in others:
                unused = other.unused()
                unused.remove_done_callback(self._tell_unused)
                unused.add_done_callback(self._tell_unused)
            return victim.wait_s
        version = victim.version
        log.info("model evicted", model=version.model.name, version=version.version, memory_bytes=version.memory_bytes)
        self.evictions[version.model.name] += 1
        await self._send_out(version)
        return _ONE_LEFT

    def _tell_unused(self, _: asyncio.Future[None]) -> None:
        self.tell()

    async def _wait(self, wait_s: float | None) -> None:
        """Until so many seconds have passed, or somebody came or left since the last look."""
        if wait_s is _ONE_LEFT:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wait_s == inf else wait_s):
                await self._somebody_came_or_left.wait()

    def _others(self, memory: str, beside: ModelVersion | None) -> list[ModelVersion]:
        return [v for v in self._versions if v is not beside and may_leave(v) and self._is_on(v, memory)]

    def _is_on(self, version: ModelVersion, memory: str) -> bool:
        return version in self.budget.owners(memory)

    def _figures(self, devices: list[Device]) -> str:
        return ", ".join(
            f"{device.id} has {format_size(max(0, self.budget.free(device.memory_id)))} of "
            f"{format_size(self.budget.limit(device.memory_id))} left for models and {format_size(device.free_bytes)} "
            "free"
            for device in devices
        )


def _as_measured(version: ModelVersion, needs: ModelNeeds) -> ModelNeeds:
    """With the figure of the last load instead of the estimate."""
    if version.measured_on == "cpu":
        return replace(needs, host_bytes=version.memory_bytes)
    return replace(needs, accelerator_bytes=version.memory_bytes) if version.measured_on else needs
