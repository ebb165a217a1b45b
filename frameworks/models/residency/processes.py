"""Start engine processes for versions: each reads the model's files, and then loads it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from frameworks.core.cpus import format_cpus, parse_cpus
from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entry_values import names_several_devices
from frameworks.engine.group import EngineGroup
from frameworks.engine.process.client.launch import LaunchOptions
from frameworks.engine.process.client.poison_requests import PoisonRequests
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.client.running_process import RunningProcess, start_process
from frameworks.engine.process.link import Started
from frameworks.engine.registries import RegistrySettings
from frameworks.models.versions.version import ModelVersion


class Starter(Protocol):
    """Owned by the event loop."""

    @property
    def loads_one_by_one(self) -> bool:
        """Whether its loads run one at a time: in processes of this machine, which needs memory for each."""
        ...

    async def needs(self, version: ModelVersion) -> ModelNeeds:
        """Return what the version needs of a device here. Raises InvalidModel, and ModelFailed where it was lost."""
        ...

    async def load(
        self, version: ModelVersion, devices: Sequence[Device]
    ) -> tuple[ProcessEngine | EngineGroup, list[Started]]:
        """Load a version; return its engine, and what was started for each device.

        Raises InvalidModel, OutOfMemory, and ModelFailed where it was lost.
        """
        ...

    def discard(self, version: ModelVersion) -> None:
        """Forget what `needs` has prepared for a load."""
        ...

    def close(self) -> None:
        """Forget all that was prepared for loads."""
        ...


BACKGROUND_NICENESS = 10
"""Niceness of a process whose callers can wait, where its entry names none: of an offline run and of a shadow."""

# The process needs no key of callers. Its OpenMP threads spin for milliseconds at each barrier if they are no more than
# the CPUs. Beside other busy processes a token then took 38 ms, and 19 ms with this limit; alone 3 ms with either.
_ENVIRONMENT = {"ROUNDHOUSE_API_KEY": None, "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}


@dataclass(slots=True)
class ProcessStarter:
    """Owned by the event loop. `settings`: of the registries; None where no model may have a process.

    A process that has read the headers of the files is kept for the load that follows.
    """

    loads_one_by_one: ClassVar[bool] = True
    settings: RegistrySettings | None
    log_level: str = "info"
    _measured: dict[ModelVersion, RunningProcess] = field(default_factory=dict)

    async def needs(self, version: ModelVersion) -> ModelNeeds:
        """Return what the version needs of a device. Raises InvalidModel, and ModelFailed where the process ended."""
        self.discard(version)
        process, needs = await self._measure(version, 0)
        self._measured[version] = process
        return needs

    async def load(
        self, version: ModelVersion, devices: Sequence[Device]
    ) -> tuple[ProcessEngine | EngineGroup, list[Started]]:
        """Load a version in a process on each device, one after the other. If one fails, the others end.

        A process with several ranks starts the others itself, on the devices that follow.

        Raises InvalidModel, OutOfMemory, and ModelFailed where a process ended.
        """
        engines, started = list[ProcessEngine](), list[Started]()
        # A request that ended one process is refused by all.
        suspects = PoisonRequests()
        try:
            for index, device in enumerate(devices[:: version.model.entry.num_ranks]):
                engine = self._engine(version, device, index, suspects)
                started.append(await engine.open())
                engines.append(engine)
        except BaseException:
            for engine in engines:
                engine.abort("the model was not loaded")
            raise
        if len(engines) == 1:
            return engines[0], started
        return EngineGroup(version.model.engine_settings, engines, version.model.entry.instances), started

    def _engine(self, version: ModelVersion, device: Device, index: int, suspects: PoisonRequests) -> ProcessEngine:
        """Return an engine that starts its process when it is opened, and again after each loss."""
        model = version.model

        async def start(engine: ProcessEngine) -> Started:
            process = self._measured.pop(version, None) if index == 0 else None
            if process is None:
                process, _ = await self._measure(version, index)
            try:
                return await process.load(device, model.settings_of_load(version.version), engine)
            except BaseException:
                process.kill("aborted", "its model was not loaded")
                raise

        return ProcessEngine(model.engine_settings, model.runs[version.version], start, poison_requests=suspects)

    def discard(self, version: ModelVersion) -> None:
        """End a process that was kept for a load."""
        process = self._measured.pop(version, None)
        if process is not None:
            process.kill("aborted", "its model is not loaded")

    def close(self) -> None:
        """End all processes that were kept for a load."""
        for version in list(self._measured):
            self.discard(version)

    async def _measure(self, version: ModelVersion, index: int) -> tuple[RunningProcess, ModelNeeds]:
        """`index`: of the process among those of the version."""
        assert self.settings is not None, "the manager has no settings of registries"
        process = await start_process(self._options(version, index))
        try:
            return process, await process.measure(
                version.model.framework, version.model.loaded_entry, version.path, self.settings
            )
        except BaseException:
            process.kill("aborted", "its model was not measured")
            raise

    def _options(self, version: ModelVersion, index: int) -> LaunchOptions:
        """Raises InvalidModel for CPUs that the server may not use."""
        entry = version.model.entry
        return LaunchOptions(
            f"{entry.name}.{index}" if names_several_devices(entry.device) else entry.name,
            cpus=select_cpus(entry.cpus),
            max_process_memory_bytes=entry.max_process_memory,
            niceness=_niceness(version),
            environment=_ENVIRONMENT,
            log_level=self.log_level,
        )


def _niceness(version: ModelVersion) -> int:
    """Return what is added to the niceness of the server for a process of the version."""
    niceness = version.model.entry.niceness
    if niceness is not None:
        return niceness
    return BACKGROUND_NICENESS if version.is_background else 0


def select_cpus(text: str | None) -> frozenset[int] | None:
    """Return the CPUs of a model's `cpus`; None for all CPUs of the server.

    Raises InvalidModel where the server may not use one of them. Not checked where the system cannot bind processes.
    """
    if text is None:
        return None
    cpus = parse_cpus(text)
    usable = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus
    if not cpus <= usable:
        raise InvalidModel(
            f'cpus: expected CPUs that the server may use ("{format_cpus(usable)}"), '
            f'got "{format_cpus(cpus - usable)}" beside them; correct the list'
        )
    return cpus
