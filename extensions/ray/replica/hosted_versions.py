"""The versions of a model in one replica: load each once, and share it among the ingresses."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from extensions.ray.config import ReplicaConfig
from extensions.ray.handshake import Handshake
from extensions.ray.replica.clients import HostedVersion, ReplicaClient
from extensions.ray.replica.files import local_files, newest_files, state_of
from extensions.ray.replica.hosted import Hosted
from extensions.ray.replica.metered_engine import MeteredEngine
from frameworks.core.channel.channel import Channel
from frameworks.core.devices import Device, DeviceManager, ModelNeeds, SystemProbe
from frameworks.core.errors import InvalidModel, RoundhouseError
from frameworks.engine.contract import EngineSettings
from frameworks.engine.process.host.model_source import HostedModel, ModelSource
from frameworks.engine.process.wire.messages import LoadFailed, ToEngine
from frameworks.engine.process.wire.serialization import error_to_plain
from frameworks.engine.threads import EngineThreads

log = structlog.get_logger(__name__)

UNUSED_S = 30.0
"""Delay until a version without clients is unloaded, if another version is in use."""

Load = Callable[[ReplicaConfig, Path], HostedModel]


class HostedVersions(Hosted):
    """The versions of one model. Owned by the event loop. Loads run one after the other."""

    def __init__(self, config: ReplicaConfig, threads: EngineThreads, load: Load | None = None) -> None:
        """`load`: None for the model's own files, see `load_model`."""
        super().__init__()
        self._config = config
        self._threads = threads
        self._load_model = load or load_model
        self._versions: dict[tuple[str, str, object], HostedVersion] = {}
        self._loading = asyncio.Lock()

    @property
    def all(self) -> list[HostedVersion]:
        """Every version, also those being loaded."""
        return list(self._versions.values())

    async def open(self) -> None:
        """Load the versions of the config. Raises InvalidModel."""
        for name, path in self._config.versions:
            await self.load(name, path)

    async def load(self, name: str, path: str) -> None:
        """Load a version before an ingress asks for it. Raises InvalidModel.

        Ingresses name the folder that the files were fetched into, not that of the address.
        """
        files = await asyncio.to_thread(newest_files, self._config, path)
        version = self._version(name, str(files))
        if version.task is not None:
            await asyncio.shield(version.task)
        if isinstance(version.reply, LoadFailed):
            error = version.reply.error
            raise InvalidModel(error.message, error.public or error.message)

    def accept(self, handshake: Handshake) -> Channel[ToEngine]:
        version = self._version(handshake.version, handshake.path)
        client = ReplicaClient(version, handshake.client, self._note_end)
        version.clients.add(client)
        version.was_closed = False
        asyncio.get_running_loop().call_soon(client.greet)
        return client.channel

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for version in self.all:
            # First: the requests that the engine fails have no client then.
            for client in list(version.clients):
                client.close()
            version.host.abort()

    def _version(self, name: str, path: str) -> HostedVersion:
        """Return a version, whose load begins here where it is new or has failed."""
        state = state_of(Path(path))
        version = self._versions.get((name, path, state))
        if version is None or (isinstance(version.reply, LoadFailed) and not version.clients):
            host = MeteredEngine(self._threads, _ignore, self._note_death)
            version = self._versions[name, path, state] = HostedVersion(name, path, state, host)
            version.task = self._start(self._load(version))
        return version

    async def _load(self, version: HostedVersion) -> None:
        async with self._loading:
            loop = asyncio.get_running_loop()
            # The thread ends with the load, and with it the OpenMP threads of the load, see Loader.
            thread = ThreadPoolExecutor(1, thread_name_prefix="load")
            settings = self._config.engine
            try:
                hosted = await loop.run_in_executor(thread, self._load_model, self._config, Path(version.path))
                version.reply = version.host.start(settings, hosted)
                log.info("model ready", model=settings.name, version=version.name, load_s=round(hosted.load_s, 3))
            except Exception as error:
                if not isinstance(error, RoundhouseError):
                    log.exception("model failed to load", model=settings.name, version=version.name)
                version.reply = LoadFailed(error_to_plain(error))
            finally:
                thread.shutdown(wait=False)
        for client in list(version.clients):
            client.serve(version.reply)

    def _note_end(self, client: ReplicaClient, is_closed: bool) -> None:
        version = client.version
        version.clients.discard(client)
        version.was_closed |= is_closed
        if version.was_closed and not version.clients:
            asyncio.get_running_loop().call_later(UNUSED_S, self._unload_unused, version)

    def _unload_unused(self, version: HostedVersion) -> None:
        others = [each for each in self.all if each is not version and each.clients]
        is_known = self._versions.get(version.key) is version
        if is_known and version.was_closed and not version.clients and others and version.reply is not None:
            del self._versions[version.key]
            self._start(self._unload(version))

    async def _unload(self, version: HostedVersion) -> None:
        version.host.stop_reports()
        if version.host.engine is not None:
            await version.host.engine.close()
        version.host.abort()
        log.info("version unloaded", model=self._config.engine.name, version=version.name)

    def _note_death(self) -> None:
        log.error("replica ends, as its model has ended")
        self.is_dead = True


def load_model(config: ReplicaConfig, path: Path) -> HostedModel:
    """Load the model at a path on the best device of this replica. Blocks.

    Raises InvalidModel, SourceUnavailable, OutOfMemory, and errors of libraries on damaged files.
    """
    source = ModelSource()
    path = local_files(config, str(path))
    needs = source.prepare(config.framework, config.entry, path, config.settings)
    return source.load(choose_device(config.engine, needs, DeviceManager(SystemProbe(), config.uses_gpu)))


def choose_device(engine: EngineSettings, needs: ModelNeeds, devices: DeviceManager) -> Device:
    """Return the device with the most free memory of those that the entry names. Ray gives a replica its GPUs."""
    wanted = devices.wanted(needs)
    if len(wanted) != 1:
        raise InvalidModel(
            f'model "{engine.name}": device: expected one device for a replica, got {len(wanted)}; set replicas'
        )
    return devices.candidates(engine.name, needs)[0]


def _ignore() -> None:
    pass
