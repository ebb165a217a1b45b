"""Keep one engine for each running replica of a deployment: connect to new replicas, drain withdrawn ones."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from extensions.ray.handshake import Address
from extensions.ray.ingress.link import ReplicaLink
from extensions.ray.running_replicas import RunningReplicas
from frameworks.core.backoff import RestartBackoff
from frameworks.core.errors import ModelFailed, RoundhouseError
from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.process.client.poison_requests import PoisonRequests, RefusalRule
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Started

log = structlog.get_logger(__name__)

_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 5.0
REPLACED_S = 60.0
"""Time for which requests of a lost replica wait for another one."""
RULE = RefusalRule(crashes=3, at_once_s=1.0)
"""Replicas end for more reasons than processes: with their nodes, for which Serve's report may be late."""
ANNOUNCED_S = 1.0
"""Minimum age of the report. A connection that ends sooner may have ended first, by a crash of the replica."""
MAX_WITHDRAWN = 1024
"""Limit of the remembered replicas; the oldest is dropped first."""


class WithdrawnReplicas:
    """Owned by the event loop.

    Serve withdraws a replica before it stops it, and when it finds that its node has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._withdrawn_s: dict[str, float] = {}

    def note(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Note a change of the running replicas."""
        running = set(after)
        for replica in running:
            self._withdrawn_s.pop(replica, None)
        for replica in before:
            if replica not in running:
                self._withdrawn_s[replica] = self._clock()
        while len(self._withdrawn_s) > MAX_WITHDRAWN:
            del self._withdrawn_s[next(iter(self._withdrawn_s))]

    def is_withdrawn(self, replica: str) -> bool:
        """Whether a replica whose connection ends now was withdrawn some time ago."""
        left_s = self._withdrawn_s.get(replica)
        return left_s is not None and self._clock() - left_s >= ANNOUNCED_S


class ReplicaEngine:
    """The engine of one replica. If the replica is lost, its requests continue at another one."""

    def __init__(self, address: Address, engine: ProcessEngine) -> None:
        self.address = address
        self.engine = engine
        self.is_open = False
        self.is_unloading = False
        """Whether its replica is about to unload the version."""


@dataclass(frozen=True, slots=True)
class Version:
    """The version that a connection is for. `client`, `node`: names of this process and of its node in Ray. `model`:
    its name, where models share the replicas.
    """

    name: str
    path: str
    client: str
    node: str
    model: str = ""


class Connections:
    """Owned by the event loop. `on_open` and `on_left` tell its owner which engines answer requests."""

    def __init__(
        self, settings: EngineSettings, counts: RunCounts, version: Version, running: RunningReplicas, replaced_s: float
    ) -> None:
        """`replaced_s`: as REPLACED_S. Call `open` next."""
        self._settings = settings
        self._counts = counts
        self._version = version
        self._running = running
        self._replaced_s = replaced_s
        # A request that ended replicas is refused by all.
        self._poison_requests = PoisonRequests(rule=RULE)
        self._withdrawn = WithdrawnReplicas()
        self._addresses: Mapping[str, Address] = {}
        self._replica_engines: dict[str, ReplicaEngine] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._stop: Callable[[], None] = _ignore
        self.on_open: Callable[[ReplicaEngine], None] = _ignore_replica
        """Called when a replica has loaded the version."""
        self.on_left: Callable[[ReplicaEngine], None] = _ignore_replica
        """Called when an open replica stops or is lost: its requests in progress continue."""
        self.on_failed: Callable[[Exception], None] = _ignore_error
        """Called when a replica cannot load the version, or cannot be reached. It is tried again."""

    @property
    def num_running(self) -> int:
        """Number of replicas that Serve reports."""
        return len(self._addresses)

    def open(self) -> None:
        """Begin to follow the running replicas."""
        self._stop = self._running.follow(self._update)

    def want(self) -> None:
        """Connect to one more replica. All that run are connected anyway, where models do not share them."""

    def close(self) -> None:
        """Connect to no further replica. The owner closes the engines."""
        self._stop()
        for task in self._opening.values():
            task.cancel()
        self._addresses = {}

    def note_lost(self, replica_engine: ReplicaEngine) -> None:
        """Note that the connection of an open engine has ended. A new engine is made while the replica runs."""
        replica = replica_engine.address.replica
        if self._replica_engines.get(replica) is replica_engine:
            del self._replica_engines[replica]
            self.on_left(replica_engine)
            self._open_missing()

    def note_unloading(self, replica_engine: ReplicaEngine) -> None:
        """Note that a replica is about to unload the version: it answers the requests that it has."""
        replica_engine.is_unloading = True
        self.note_lost(replica_engine)

    def _update(self, addresses: Mapping[str, Address]) -> None:
        self._withdrawn.note(self._addresses, addresses)
        self._addresses = addresses
        self._changed.set()
        self._changed = asyncio.Event()
        for replica, task in list(self._opening.items()):
            if replica not in addresses:
                task.cancel()
        for replica, replica_engine in list(self._replica_engines.items()):
            if replica not in addresses:
                log.info(
                    "replica leaves",
                    model=self._settings.name,
                    host=replica_engine.address.host,
                    port=replica_engine.address.port,
                )
                del self._replica_engines[replica]
                self.on_left(replica_engine)
        self._open_missing()

    def _open_missing(self) -> None:
        for replica, address in self._addresses.items():
            if replica not in self._replica_engines and replica not in self._opening:
                self._start_opening(address)

    def _start_opening(self, address: Address) -> None:
        replica = address.replica
        task = self._opening[replica] = asyncio.get_running_loop().create_task(self._open_replica(address))
        task.add_done_callback(partial(self._forget_opening, replica))

    def _forget_opening(self, replica: str, task: "asyncio.Task[None]") -> None:
        if self._opening.get(replica) is task:
            del self._opening[replica]

    async def _open_replica(self, address: Address) -> None:
        """Connect to a replica, again and again until it has loaded the version or leaves."""
        delay_s = _FIRST_RETRY_S
        while True:
            error = await self._try_replica(address)
            if error is None:
                return
            self.on_failed(error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_RETRY_S)

    async def _try_replica(self, address: Address) -> Exception | None:
        """Connect to a replica. Returns the error where it has not loaded the version."""
        replica_engine = self._replica_engine(address)
        try:
            await replica_engine.engine.open()
        except RoundhouseError as error:
            log.warning("replica not connected", model=self._settings.name, reason=error.message)
            return error
        except Exception as error:
            log.exception("replica not connected", model=self._settings.name)
            return error
        replica_engine.is_open = True
        self._replica_engines[address.replica] = replica_engine
        self._note_opened()
        self.on_open(replica_engine)
        if replica_engine.is_unloading:
            self.note_lost(replica_engine)
        return None

    def _note_opened(self) -> None:
        """Called before `on_open`."""

    def _replica_engine(self, address: Address) -> ReplicaEngine:
        async def start(engine: ProcessEngine) -> Started:
            if replica_engine.is_open:
                return await self._replace(replica_engine, engine)
            return await self._connect(replica_engine.address, engine, partial(self.note_unloading, replica_engine))

        policy = RestartBackoff(delays_s=(0.0,))
        engine = ProcessEngine(self._settings, self._counts, start, policy, self._poison_requests)
        replica_engine = ReplicaEngine(address, engine)
        return replica_engine

    async def _connect(
        self, address: Address, engine: ProcessEngine, on_unloading: Callable[[], None] = lambda: None
    ) -> Started:
        version = self._version
        link = ReplicaLink(address, version.node, partial(self._withdrawn.is_withdrawn, address.replica), on_unloading)
        return await link.open(version.name, version.path, version.client, engine, version.model)

    async def _replace(self, replica_engine: ReplicaEngine, engine: ProcessEngine) -> Started:
        """Connect the requests of a lost replica to another one. Raises ModelFailed where none runs in time."""
        failure = ModelFailed("no replica of the model runs")
        try:
            async with asyncio.timeout(self._replaced_s):
                while True:
                    changed = self._changed
                    for address in self._successors(replica_engine):
                        try:
                            return await self._connect(address, engine)
                        except RoundhouseError as error:
                            failure = ModelFailed(error.message, public=error.public)
                    try:
                        async with asyncio.timeout(_MAX_RETRY_S if self._addresses else None):
                            await changed.wait()
                    except TimeoutError:
                        pass
        except TimeoutError:
            raise failure from None

    def _successors(self, replica_engine: ReplicaEngine) -> Sequence[Address]:
        """Return the replicas for the requests of a lost one, the best first; itself only where it is the last one."""
        others = [each for each in self._addresses.values() if each.replica != replica_engine.address.replica]
        return others or list(self._addresses.values())


def _ignore() -> None:
    pass


def _ignore_replica(_: ReplicaEngine) -> None:
    pass


def _ignore_error(_: Exception) -> None:
    pass
