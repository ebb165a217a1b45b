"""The models of a group in one replica of Ray: loaded by their first requests, and evicted as on one machine."""

import asyncio
import time
from pathlib import Path
from typing import cast

import structlog

from extensions.ray.config import GroupConfig, ReplicaConfig
from extensions.ray.handshake import Handshake
from extensions.ray.replica.clients import ReplicaClient
from extensions.ray.replica.files import local_files, state_of
from extensions.ray.replica.followers import Followers
from extensions.ray.replica.hosted import Hosted
from extensions.ray.replica.shared_versions import ClientsEngine, SharedHost, SharedVersion
from frameworks.core.channel.channel import Channel
from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.errors import Draining, ModelFailed, RoundhouseError
from frameworks.engine.contract import Engine
from frameworks.engine.process.host.model_source import HostedModel
from frameworks.engine.process.wire.messages import LoadFailed, ReplicaReport, ToEngine
from frameworks.engine.process.wire.serialization import error_to_plain
from frameworks.engine.registries import registry_factories
from frameworks.engine.threads import EngineThreads
from frameworks.models.residency.loader import Loaded, Loader
from frameworks.models.residency.residency import ModelResidency
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.runtime import LoadedModel
from frameworks.scheduling.device_clock import SharedDevices
from memory.budget import Budget
from memory.pooled_arrays import PooledArrays
from memory.tensor_pool import TensorPool

log = structlog.get_logger(__name__)

_IN_MEMORY = (ModelState.LOADING, ModelState.READY, ModelState.DRAINING)


class HostedModels(Hosted):
    """The models of a group. Owned by the event loop."""

    def __init__(self, config: GroupConfig, threads: EngineThreads, loader: Loader | None = None) -> None:
        """`loader`: None for the registries of the frameworks. Call `open` next."""
        super().__init__()
        pool = TensorPool(config.settings.memory)
        devices = DeviceManager(SystemProbe(), config.uses_gpu)
        self._config = config
        self._threads = threads
        self._loader = loader or Loader(registry_factories(config.settings, devices, pool), devices)
        shared = SharedDevices(PooledArrays(pool))
        self._members = {each.name: each for each in config.members}
        self._identities = {each.name: _identity(each, shared, threads) for each in config.members}
        self._versions: dict[tuple[str, str, str, object], SharedVersion] = {}
        self.residency = ModelResidency(self._loader, self._loader.devices, config.min_residency_s)
        self.residency.start_engine, self.residency.fetch = self._start_engine, self._fetch
        self._followers = Followers(self.residents, self.residency.ledger.evictions)
        self._is_closed = False

    @property
    def all(self) -> list[SharedVersion]:
        """Every version that a client has asked for, loaded or not."""
        return list(self._versions.values())

    def residents(self) -> ReplicaReport:
        """Return what is loaded or being loaded. The free bytes are those of the accelerators, where there are some."""
        budget = self.residency.ledger.budget
        described = [each.describe() for each in self._versions.values()]
        devices = [each for each in budget.devices if each != "cpu"] or budget.devices
        free_bytes = max((budget.free(each) for each in devices), default=0)
        return ReplicaReport([each for each in described if each is not None], free_bytes, round(self.queued_s, 2))

    async def open(self) -> None:
        """Measure the devices. No model is loaded before its first request."""
        limits = await asyncio.to_thread(self._loader.devices.memory_limits, self._config.max_model_memory)
        self.residency.ledger.budget = Budget(limits)

    def accept(self, handshake: Handshake) -> Channel[ToEngine]:
        """Return the channel of a new client; its version is loaded where it is not.

        A model of another config is refused with ModelFailed: during an update other replicas have it.
        """
        if handshake.follows:
            return self._followers.add()
        if handshake.model not in self._members:
            return _refused(ModelFailed(f'model "{handshake.model}" is not in this replica'))
        version = self._version(handshake)
        client = ReplicaClient(version, handshake.client, self._note_end)
        version.clients.add(client)
        asyncio.get_running_loop().call_soon(self._greet, version, client)
        return client.channel

    def check(self) -> None:
        """Drop silent clients and followers."""
        super().check()
        self._followers.check(time.monotonic())

    def close(self) -> None:
        self._is_closed = True
        self.residency.close()
        self._followers.close()
        for task in list(self._tasks):
            task.cancel()
        for version in self.all:
            for client in list(version.clients):
                client.close()
            version.managed.abort("the replica stops")
            version.host.abort()
        self._loader.close()

    def _version(self, handshake: Handshake) -> SharedVersion:
        key = (handshake.model, handshake.version, handshake.path, state_of(Path(handshake.path)))
        version = self._versions.get(key)
        if version is None:
            self._forget_unused(handshake.model)
            managed = ModelVersion(self._identities[handshake.model], handshake.version, Path(handshake.path))
            version = SharedVersion(managed, handshake.path, key[-1], self._host(managed))
            self._versions[key] = version
        return version

    def _forget_unused(self, model: str) -> None:
        """Forget the versions of a model that are not loaded, such as those of files that have changed since."""
        for key, version in list(self._versions.items()):
            is_loaded = version.managed.state in _IN_MEMORY
            if key[0] == model and not (version.clients or version.task or is_loaded):
                del self._versions[key]

    def _host(self, managed: ModelVersion) -> SharedHost:
        return SharedHost(managed, self._threads, self._note_death)

    def _greet(self, version: SharedVersion, client: ReplicaClient) -> None:
        client.greet()
        self._ensure_load(version)

    def _ensure_load(self, version: SharedVersion) -> None:
        if version.task is None and version.waiting:
            version.task = self._start(self._load(version))
            self._followers.report()

    async def _load(self, version: SharedVersion) -> None:
        """Load a version until no client waits for it. A client that comes during an eviction waits for its end."""
        try:
            while version.waiting:
                if version.reply is None:
                    await self.residency.load_for_clients(version.managed)
                # Evicted again, if it has no reply.
                if version.reply is not None:
                    for client in version.waiting:
                        client.serve(version.reply)
        except Exception as error:
            if not isinstance(error, RoundhouseError):
                log.exception("model failed to load", model=version.managed.model.name, version=version.name)
            failed = LoadFailed(error_to_plain(error))
            for client in version.waiting:
                client.serve(failed)
        finally:
            version.task = None
            self._followers.report()

    async def _fetch(self, managed: ModelVersion) -> None:
        """Set the path of a version to its files on this node. Raises SourceUnavailable and InvalidModel."""
        member, path = self._members[managed.model.name], self._shared(managed).path
        managed.path = await asyncio.to_thread(local_files, member, path)

    async def _start_engine(self, managed: ModelVersion, loaded: Loaded, _: int) -> Engine:
        if self._is_closed:
            loaded.close()
            raise Draining(Draining.REFUSED)
        version, model = self._shared(managed), managed.model
        version.host = self._host(managed)
        instances = cast("LoadedModel", loaded.model)  # its isolation is "none"
        device = model.devices.of(loaded.spec.device)
        hosted = HostedModel(instances, device, managed.memory_bytes, loaded.load_s, loaded.warm_up_s)
        version.reply = version.host.start(model.engine_settings, hosted)
        assert version.host.engine is not None, "the host has started it"
        return ClientsEngine(version, version.host.engine)

    def _shared(self, managed: ModelVersion) -> SharedVersion:
        return next(each for each in self._versions.values() if each.managed is managed)

    def _note_end(self, client: ReplicaClient, _: bool) -> None:
        version = cast("SharedVersion", client.version)
        version.clients.discard(client)
        version.left.set()

    def _note_death(self) -> None:
        log.error("replica ends, as a model has ended", group=self._config.name)
        self.is_dead = True


def _identity(member: ReplicaConfig, devices: SharedDevices, threads: EngineThreads) -> ModelIdentity:
    limits, ageing_s = member.engine.limits, member.engine.ageing_s
    return ModelIdentity(member.framework, member.entry, limits, ageing_s, "none", devices, threads)


def _refused(error: RoundhouseError) -> Channel[ToEngine]:
    """Return the channel of a client that gets the error."""

    def refuse() -> None:
        if channel.is_open:
            channel.send(LoadFailed(error_to_plain(error)))
            channel.close()

    channel: Channel[ToEngine] = Channel(ToEngine, lambda _: None, lambda _: None)
    asyncio.get_running_loop().call_soon(refuse)
    return channel
