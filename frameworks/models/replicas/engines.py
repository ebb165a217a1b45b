"""Get the engine of a load for this worker: connect it to the process of the model, or load a small model here."""

import asyncio
from collections.abc import Sequence
from functools import partial

from frameworks.core.errors import ModelFailed
from frameworks.engine.contract import Engine, RunCounts
from frameworks.engine.group import EngineGroup
from frameworks.engine.local import start_local_engine
from frameworks.engine.process.client.client_link import ClientLink
from frameworks.engine.process.client.poison_requests import PoisonRequests
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.process.wire.messages import Loaded
from frameworks.engine.process.wire.serialization import spec_from_plain
from frameworks.models.replicas.control import ControlLink
from frameworks.models.replicas.messages import (
    Connect,
    Connected,
    KillProcess,
    Poisonous,
    Prepare,
    ProcessLost,
    Settled,
)
from frameworks.models.residency.loader import Loader
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.version import ModelVersion


class ProcessConnection:
    """Connects the worker to one engine process, and again after each loss. Owned by the event loop."""

    def __init__(
        self, link: ControlLink, model: ModelIdentity, serving: int, index: int, suspects: PoisonRequests
    ) -> None:
        """`index`: of the process among those of the load. `suspects`: of all of them."""
        self._link = link
        self.model = model.name
        self._serving = serving
        self._index = index
        self._loss: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self.suspects = suspects
        # The supervisor counts the losses.
        self.engine = ProcessEngine(model.engine_settings, RunCounts(), self._start, poison_requests=suspects)
        self.engine.on_settled = self._settle

    def lost(self, message: ProcessLost) -> None:
        """Note why the process has ended."""
        if not self._loss.done():
            self._loss.set_result(Loss(message.label, message.message))

    def _settle(self) -> None:
        self._link.send(Settled(self._serving, self._index))

    async def _start(self, engine: ProcessEngine) -> Started:
        """Connect to the process when it serves. Raises ModelFailed, and ChannelLost without the supervisor."""
        suspects = self.engine.num_suspects
        try:
            return await self._connect(engine, suspects)
        except BaseException:
            if suspects:
                self._settle()  # the other workers wait for it
            raise

    async def _connect(self, engine: ProcessEngine, suspects: int) -> Started:
        number = 0

        def request(given: int) -> Connect:
            nonlocal number
            number = given
            return Connect(given, self._serving, self._index, suspects)

        try:
            reply = await self._link.ask(request)
        except asyncio.CancelledError:
            self._link.descriptors.drop(number)  # the reply may have been sent
            raise
        assert isinstance(reply, Connected), f"expected Connected, got {type(reply).__name__}"
        # The supervisor reports the loss of a process before it connects the worker to the next one.
        self._loss = asyncio.get_running_loop().create_future()
        descriptors = await self._link.descriptors.take(reply.id)
        client = ClientLink(descriptors, self.model, self._find_loss, self._kill)
        try:
            spec = spec_from_plain(reply.spec)
            await client.open(engine)
        except BaseException:
            client.abandon("the worker does not use it")
            raise
        return Started(client, Loaded(reply.spec, reply.memory_bytes, reply.load_s, warm_up_s=0.0), spec)

    async def _find_loss(self) -> Loss:
        return await asyncio.shield(self._loss)

    def _kill(self, label: str, reason: str) -> None:
        self._link.send(KillProcess(self._serving, self._index, label, reason))


class WorkerEngines:
    """Gets the engines of loads. Owned by the event loop."""

    def __init__(self, link: ControlLink, loader: Loader) -> None:
        self._link = link
        self._loader = loader
        self._connections: dict[int, list[ProcessConnection]] = {}
        """By load, in the order of its processes."""
        link.handle(ProcessLost, self._note_loss)
        link.handle(Poisonous, self._refuse)

    async def get(self, version: ModelVersion, prepare: Prepare, counts: RunCounts) -> Engine:
        """Return the engine of a load. `version`: its model and path. `counts`: of what runs in this worker.

        Raises InvalidModel, OutOfMemory, ModelFailed, errors of libraries on damaged files, and ChannelLost without the
        supervisor.
        """
        if prepare.is_local:
            return await self._load(version, prepare, counts)
        model = version.model
        suspects = PoisonRequests(on_refused=partial(self._report_poisonous, model.name))
        connections = [
            ProcessConnection(self._link, model, prepare.serving, index, suspects)
            for index in range(prepare.num_processes)
        ]
        self._connections[prepare.serving] = connections
        try:
            engines = await self._open(connections)
        except BaseException:
            del self._connections[prepare.serving]
            raise
        if len(engines) == 1:
            return engines[0]
        return EngineGroup(model.engine_settings, engines, model.entry.instances)

    async def released(self, prepare: Prepare) -> None:
        """Note that the engine of a load is closed: return its memory to the system."""
        self._connections.pop(prepare.serving, None)
        if prepare.is_local:
            await self._loader.reclaim_memory()

    @staticmethod
    async def _open(connections: Sequence[ProcessConnection]) -> list[ProcessEngine]:
        """Connect to all processes of a load; later to one that is down, unless all are."""
        opened: list[ProcessEngine] = []
        down: dict[ProcessEngine, ModelFailed] = {}
        engines = [connection.engine for connection in connections]
        try:
            for engine in engines:
                try:
                    await engine.open()
                    opened.append(engine)
                except ModelFailed as error:
                    down[engine] = error
            if not opened:
                raise down[engines[0]]
        except BaseException:
            for engine in opened:
                engine.abort("the worker does not use the model")
            raise
        for engine, failure in down.items():
            engine.open_later(opened[0].model.spec, failure)
        return engines

    async def _load(self, version: ModelVersion, prepare: Prepare, counts: RunCounts) -> Engine:
        loaded = await self._loader.load(version, [prepare.device])
        if not isinstance(loaded.model, Sequence):
            assert version.model.is_composite, "only the supervisor starts processes"
            return loaded.model
        model = version.model
        device = model.devices.of(loaded.spec.device)
        return start_local_engine(model.engine_settings, loaded.model, counts, device, model.threads)

    def _note_loss(self, message: ProcessLost) -> None:
        connections = self._connections.get(message.serving, ())
        if message.index < len(connections):
            connections[message.index].lost(message)

    def _report_poisonous(self, name: str, digest: bytes) -> None:
        self._link.send(Poisonous(name, digest))

    def _refuse(self, message: Poisonous) -> None:
        for first, *_ in self._connections.values():
            if first.model == message.name:
                first.suspects.refuse(message.digest)
