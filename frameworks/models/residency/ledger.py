"""Account for the memory of models and collections: reserve it, evict versions for it, and release it."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf

import structlog

from frameworks.core.devices import Device, DeviceManager, ModelNeeds
from frameworks.core.errors import EvictionNeeded, InvalidModel, OutOfMemory
from frameworks.models.residency.placement import (
    choose_devices,
    choose_victim,
    is_evictable,
    is_pinned,
    reserved_bytes,
    with_grants,
)
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from memory.budget import Budget
from memory.sizes import format_size

log = structlog.get_logger(__name__)

_EVICTED = None
HOST = "cpu"
"""The memory that holds collections."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a version is loaded. `keep`: a version that must not be evicted for it."""

    may_evict: bool = True
    keep: ModelVersion | None = None


class Holding:
    """Memory of the host that holds no model, such as that of a collection. It is never evicted."""

    def __init__(self, ledger: "MemoryLedger", owner: str) -> None:
        self._ledger, self._owner = ledger, owner

    def __str__(self) -> str:
        return self._owner

    async def resize(self, size_bytes: int, *, may_evict: bool) -> None:
        """Reserve so many bytes in all. `may_evict`: models for it. Raises OutOfMemory, and then changes nothing."""
        await self._ledger.hold(self, size_bytes, may_evict=may_evict)

    def settle(self, size_bytes: int) -> None:
        """Reserve the bytes that are in use, without a wait; fewer where not as many are left."""
        self._ledger.settle(self, size_bytes)

    def release(self) -> None:
        """Free all of it."""
        self._ledger.release_holding(self)


class MemoryLedger:
    """Reserve memory for each version that is loaded, being loaded or being unloaded, and for collections.

    Owned by the event loop.
    """

    def __init__(
        self,
        devices: DeviceManager,
        evict: Callable[[ModelVersion], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
        min_residency_s: float = 0.0,
    ) -> None:
        """`evict(version)` drains and unloads a version, and releases its memory here. `min_residency_s`: a version is
        not evicted earlier for a request.
        """
        self.budget = Budget({})
        """Replaced when the manager has measured the devices."""
        self.evictions: Counter[str] = Counter()
        """By model."""
        self._devices = devices
        self._evict = evict
        self._clock = clock
        self._min_residency_s = min_residency_s
        self._orders: Counter[ModelVersion] = Counter()
        self._fetching: set[ModelVersion] = set()
        self._versions: set[ModelVersion] = set()
        self._holdings: set[Holding] = set()
        # Evictions run one at a time, in order of arrival: two at once would evict the same, or too many.
        self._evicting = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def versions(self) -> list[ModelVersion]:
        """The versions that hold memory."""
        return list(self._versions)

    @contextmanager
    def ordered(self, version: ModelVersion) -> Iterator[None]:
        """Load a version by an operator's order within the block: loads for requests wait for its end."""
        self._orders[version] += 1
        self.notify()  # the load may have begun for a request
        try:
            yield
        finally:
            self._orders[version] -= 1
            self._orders += Counter()  # drops zeros
            self.notify()

    @contextmanager
    def fetching(self, version: ModelVersion) -> Iterator[None]:
        """Fetch the files of a version within the block. Other loads do not wait for it, even if it is ordered."""
        self._fetching.add(version)
        self.notify()
        try:
            yield
        finally:
            self._fetching.discard(version)
            self.notify()

    def is_ordered(self, version: ModelVersion) -> bool:
        """Whether an operator waits for the load of the version."""
        return version in self._orders

    async def reserve(self, version: ModelVersion, needs: ModelNeeds, options: LoadOptions) -> list[Device]:
        """Reserve memory for each process of a version on its best device; evict others where necessary and allowed.

        A load for a request waits for the loads that operators have ordered, and for the minimum residency of others.
        Returns the device of each process; of a version without processes one device.

        Raises OutOfMemory where the version fits on no device; EvictionNeeded where it may not evict; InvalidModel
        without a device for "cuda:*".
        """
        needs = _as_measured(version, needs)
        is_first = True
        while True:
            self._changed.clear()
            if self._orders.keys() - self._fetching and not self.is_ordered(version):
                await self._wait_for_change(inf)
                continue
            async with self._evicting:
                candidates = await asyncio.to_thread(self._candidates, version, needs, is_first)
                is_first = False
                devices = self._place(version, candidates, needs, options.keep)
                reserved = reserved_bytes(devices, needs)
                full = next((each for each in devices if reserved[each.memory_id] > self._free(each)), None)
                if full is None:
                    self._warn_of_cpu(version, candidates, devices, needs)
                    for memory, size in reserved.items():
                        self.budget.reserve(version, memory, size)
                    self._versions.add(version)
                    return with_grants(devices, needs, self.budget.free)
                if not options.may_evict:
                    raise EvictionNeeded(
                        f"{version} needs {format_size(reserved[full.memory_id])}; {self._describe([full])}; "
                        "the first request to it loads it"
                    )
                wait_s = await self._evict_one(full.memory_id, options.keep, self.is_ordered(version))
            # Without the lock: the version that has to finish first may need it.
            await self._wait_for_change(wait_s)

    async def record_measured(self, version: ModelVersion, options: LoadOptions) -> bool:
        """Replace the reserved bytes of each device by the measured ones, with evictions where they are more.

        Returns False where too few versions can be evicted now.
        """
        async with self._evicting:
            for memory, measured in version.memory_on.items():
                while measured - self.budget.held_by(version, memory) > max(0, self.budget.free(memory)):
                    if not options.may_evict or await self._evict_one(memory, options.keep, True) is not _EVICTED:
                        return False
                self.budget.correct(version, memory, measured)
            return True

    def grow(self, version: ModelVersion, more_bytes: int) -> None:
        """Add to the memory of a loaded version in this process, without evictions. Raises OutOfMemory."""
        [memory] = version.memory_on
        [kind] = version.measured_by_kind
        if more_bytes > max(0, self.budget.free(memory)):
            raise OutOfMemory(
                f"{version} needs {format_size(more_bytes)} more, {memory} has "
                f"{format_size(max(0, self.budget.free(memory)))} left for models; unload a model, or raise "
                "memory.max_model_memory"
            )
        version.memory_bytes += more_bytes
        version.process_bytes = [version.memory_bytes]
        version.memory_on, version.measured_by_kind = {memory: version.memory_bytes}, {kind: version.memory_bytes}
        self.budget.correct(version, memory, version.memory_bytes)
        self.notify()

    def holding(self, owner: str) -> Holding:
        """Return a reservation of no bytes for what is no model. `owner`: for messages."""
        return Holding(self, owner)

    @property
    def held_bytes(self) -> int:
        """The bytes that are reserved for collections."""
        return sum(self.budget.held_by(each) for each in self._holdings)

    async def hold(self, holding: Holding, size_bytes: int, *, may_evict: bool) -> None:
        """Reserve so many bytes for a collection in all; evict models where necessary and allowed.

        It waits for the minimum residency of models, as a load for a request. Raises OutOfMemory where it does not fit,
        and then changes nothing.
        """
        while True:
            self._changed.clear()
            async with self._evicting:
                available = (await asyncio.to_thread(self._devices.host)).free_bytes
                more = size_bytes - self.budget.held_by(holding)
                free = max(0, min(self.budget.free(HOST), available))
                if more <= free:
                    self._set_held(holding, size_bytes)
                    return
                evictable = sum(self.budget.held_by(v, HOST) for v in self._versions if not is_pinned(v))
                if not may_evict or more > free + evictable:
                    raise OutOfMemory(
                        f"{holding}: expected {format_size(more)} more memory for it, got {format_size(free)}: "
                        f"{HOST} has {format_size(max(0, self.budget.free(HOST)))} of "
                        f"{format_size(self.budget.limit(HOST))} left for models and collections and "
                        f"{format_size(available)} free; unload a model, or raise memory.max_model_memory"
                    )
                wait_s: float | None = inf
                if not self._orders.keys() - self._fetching:
                    wait_s = await self._evict_one(HOST, None, False)
            await self._wait_for_change(wait_s)

    def settle(self, holding: Holding, size_bytes: int) -> None:
        """Reserve the bytes that a collection has in use; those that are left where it is more."""
        free = self.budget.held_by(holding) + max(0, self.budget.free(HOST))
        self._set_held(holding, min(size_bytes, free))
        self.notify()

    def release_holding(self, holding: Holding) -> None:
        """Free the memory of a collection."""
        self.budget.release(holding)
        self._holdings.discard(holding)
        self.notify()

    def _set_held(self, holding: Holding, size_bytes: int) -> None:
        if holding in self._holdings:
            self.budget.correct(holding, HOST, size_bytes)
        else:
            self.budget.reserve(holding, HOST, size_bytes)
            self._holdings.add(holding)

    def release(self, version: ModelVersion) -> None:
        """Free the memory of a version."""
        self.budget.release(version)
        self._versions.discard(version)
        self.notify()

    def notify(self) -> None:
        """Let loads that wait for memory try again: a version was loaded, unloaded or became idle."""
        self._changed.set()

    def check_integrity(self) -> None:
        """Raise AssertionError where the ledger differs from the memory that the versions hold."""
        held = {owner for device in self.budget.devices for owner in self.budget.owners(device)}
        assert held == self._versions | self._holdings, f"held by {held}, in memory are {self._versions}"
        for version in self._versions:
            if version.state is ModelState.READY:
                assert self.budget.held_by(version) == version.memory_bytes, f"{version}: held and measured differ"
                for memory, measured in version.memory_on.items():
                    held_there = self.budget.held_by(version, memory)
                    assert held_there == measured, f"{version}: held and measured differ on {memory}"
            assert version.state not in (ModelState.REGISTERED, ModelState.UNLOADED), f"{version} is {version.state}"
        for device in self.budget.devices:
            assert self.budget.free(device) >= 0, f"{device}: more is reserved than available"

    def _candidates(self, version: ModelVersion, needs: ModelNeeds, is_first: bool) -> list[list[Device]]:
        """Return the candidates of each process. Blocks. Raises InvalidModel without a device for "cuda:*"."""
        wanted = self._devices.wanted(needs)
        if not wanted:
            raise InvalidModel(
                f'{version}: device: expected a CUDA device for "cuda:*", found none that it can use; set another '
                "device, or check the driver and performance.enable_gpu"
            )
        name = version.model.name
        return [self._devices.candidates(name, replace(needs, wanted=each), is_first) for each in wanted]

    def _free(self, device: Device) -> int:
        return min(self.budget.free(device.memory_id), device.free_bytes)

    def _place(
        self, version: ModelVersion, candidates: list[list[Device]], needs: ModelNeeds, keep: ModelVersion | None
    ) -> list[Device]:
        """Return the device of each process. Raises OutOfMemory where one of them fits on no candidate."""

        def evictable(device: Device) -> int:
            return self._free(device) + sum(
                self.budget.held_by(other, device.memory_id)
                for other in self._versions
                if other is not keep and not is_pinned(other)
            )

        devices = choose_devices(candidates, needs, self._free, evictable)
        if len(devices) < len(candidates):
            there = candidates[len(devices)]
            count = "" if len(candidates) == 1 else f" for each of {len(candidates)} processes"
            kept = f" beside version {keep.version}, which serves" if keep else ""
            raise OutOfMemory(
                f"{version} needs {format_size(min(map(needs.on, there)))}{count}{kept}; "
                f"{self._describe(there)}; unload or unpin a model, raise memory.max_model_memory"
                + (', or set device = "auto"' if needs.wanted not in ("auto", "cpu") else "")
            )
        return devices

    def _warn_of_cpu(
        self, version: ModelVersion, candidates: list[list[Device]], devices: list[Device], needs: ModelNeeds
    ) -> None:
        for there, device in zip(candidates, devices, strict=True):
            if device.kind == "cpu" and there[0].kind != "cpu":
                log.warning(
                    "model fits on no accelerator, taking the CPU",
                    model=version.model.name,
                    needs=format_size(needs.accelerator_bytes),
                    devices=self._describe(there[:-1]),
                )

    async def _evict_one(self, memory: str, keep: ModelVersion | None, is_urgent: bool) -> float | None:
        """Evict one version. Otherwise return the seconds until one may be evicted; infinite where none is loaded."""
        others = [v for v in self._versions if v is not keep and is_evictable(v) and self._is_on(v, memory)]
        victim = choose_victim(others, self._clock(), self._min_residency_s, is_urgent)
        if victim is None:
            return inf
        if victim.wait_s:
            for other in others:
                idle = other.idle_future()
                idle.remove_done_callback(self._notify_idle)
                idle.add_done_callback(self._notify_idle)
            return victim.wait_s
        version = victim.version
        log.info("model evicted", model=version.model.name, version=version.version, memory_bytes=version.memory_bytes)
        self.evictions[version.model.name] += 1
        await self._evict(version)
        return _EVICTED

    def _notify_idle(self, _: asyncio.Future[None]) -> None:
        self.notify()

    async def _wait_for_change(self, wait_s: float | None) -> None:
        """Wait for the seconds or for `notify`; not at all after an eviction."""
        if wait_s is _EVICTED:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wait_s == inf else wait_s):
                await self._changed.wait()

    def _is_on(self, version: ModelVersion, memory: str) -> bool:
        return version in self.budget.owners(memory)

    def _describe(self, devices: list[Device]) -> str:
        return ", ".join(
            f"{device.id} has {format_size(max(0, self.budget.free(device.memory_id)))} of "
            f"{format_size(self.budget.limit(device.memory_id))} left for models and {format_size(device.free_bytes)} "
            "free"
            for device in devices
        )


def _as_measured(version: ModelVersion, needs: ModelNeeds) -> ModelNeeds:
    """Replace the estimates by the measurements of the last load."""
    by_kind = version.measured_by_kind
    on_accelerators = [size for kind, size in by_kind.items() if kind != "cpu"]
    return replace(
        needs,
        host_bytes=by_kind.get("cpu", needs.host_bytes),
        accelerator_bytes=max(on_accelerators, default=needs.accelerator_bytes),
    )
