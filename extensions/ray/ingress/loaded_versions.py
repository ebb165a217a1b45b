"""Collect the reports of the replicas of a group on their loaded versions, and choose the one that loads a version."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import structlog

from extensions.ray.handshake import PROTOCOL_VERSION, Address, Handshake, client_context, encode_handshake
from extensions.ray.ingress.link import CONNECT_S, PING_S, SILENT_S
from extensions.ray.running_replicas import RunningReplicas
from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import ChannelLost, ProtocolError
from frameworks.engine.process.wire.messages import FromEngine, Ping, Pong, ReplicaReport, VersionReport

UNKNOWN_S = 2.0
"""Limit of the wait for the first report of each replica, before one is chosen."""

VersionKey = tuple[str, str, str]
"""Names of the model and of the version, and the path."""
log = structlog.get_logger(__name__)

_RETRY_S = 0.5


class LoadedVersionReports:
    """Owned by the event loop. Connects again and again from `open` to `close`."""

    def __init__(self, address: Address, client: str, on_report: Callable[[ReplicaReport | None], None]) -> None:
        """`client`: name of this process. `on_report`: called with each report; with None when it is lost."""
        self._address = address
        self._client = client
        self._on_report = on_report
        self._heard_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to follow the replica."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        address = self._address
        while True:
            try:
                reason = await self._follow()
            except (OSError, TimeoutError, ChannelLost) as error:
                reason = f"{type(error).__name__}: {error}"
            log.info("replica not followed", host=address.host, port=address.port, reason=reason)
            self._on_report(None)
            await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> str:
        """Follow the replica over one connection. Returns why it has ended."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[str] = loop.create_future()
        channel: Channel[FromEngine] = Channel(FromEngine, self._received, over.set_result)
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await loop.create_connection(
                    lambda: channel, address.host, address.port, ssl=client_context()
                )
            transport.write(
                encode_handshake(Handshake(PROTOCOL_VERSION, address.secret, self._client, "", "", follows=True))
            )
            self._heard_s = loop.time()
            number = 0
            while not over.done():
                number += 1
                channel.send(Ping(number))
                due_s = loop.time() + PING_S
                await asyncio.wait([over], timeout=PING_S)
                # A process that was stopped has not read what the replica has sent.
                if loop.time() - self._heard_s > SILENT_S and loop.time() < due_s + PING_S:
                    return f"it sent nothing for {SILENT_S:.0f} s"
            return over.result()
        finally:
            channel.close()

    def _received(self, messages: Sequence[FromEngine]) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        for message in messages:
            if isinstance(message, ReplicaReport):
                self._on_report(message)
            elif not isinstance(message, Pong):
                raise ProtocolError(f"expected ReplicaReport, got {type(message).__name__}")


class LoadedVersions:
    """Owned by the event loop. The ingress follows all running replicas of a group, for all of its models."""

    def __init__(self, running: RunningReplicas, client: str) -> None:
        """`client`: name of this process. Call `open` next."""
        self._running = running
        self._client = client
        self._reports: dict[str, LoadedVersionReports] = {}
        self._states: dict[str, ReplicaReport] = {}
        self._unknown: dict[str, float] = {}
        """Replicas without a first report, and until when the choice waits for it."""
        self._loads: dict[str, list[VersionKey]] = {}
        self._sizes: dict[VersionKey, int] = {}
        self._changed: set[Callable[[], None]] = set()
        self.on_evictions: Callable[[Mapping[str, int]], None] = lambda _: None
        """Called with the evictions by model that replicas report to this process."""

    def open(self) -> None:
        """Begin to follow the running replicas. They are followed until the end of the process."""
        self._running.follow(self._update)

    def close(self) -> None:
        """End all connections."""
        for each in self._reports.values():
            each.close()

    @contextmanager
    def loading(self, replica: str, key: VersionKey) -> Iterator[None]:
        """Note that a replica loads a version for this process: its memory is no longer free."""
        self._loads.setdefault(replica, []).append(key)
        try:
            yield
        finally:
            self._loads[replica].remove(key)

    def on_changed(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each report. Returns how to stop it."""
        self._changed.add(callback)
        return partial(self._changed.discard, callback)

    def has_loaded(self, replica: str, key: VersionKey) -> bool:
        """Whether a replica has loaded a version, or is loading it."""
        return self._resident(replica, key) is not None

    def queued_s(self, replica: str, key: VersionKey | None = None) -> float:
        """Return the seconds that the requests at a replica will take, without those for one version."""
        state = self._states.get(replica)
        if state is None:
            return 0.0
        own = None if key is None else self._resident(replica, key)
        return max(0.0, state.queued_s - (0.0 if own is None else own.queued_s))

    def choose(self, replicas: Iterable[str], key: VersionKey, may_wait: bool = True) -> str | None:
        """Return the replica that is to serve a version; None without one, and while the first report of one of them
        is awaited.

        One that has loaded it, or is loading it; else one with room for it; else the one with the fewest loads in
        progress and the least queued seconds.
        """
        found = list(replicas)
        loaded = [each for each in found if self.has_loaded(each, key)]
        if loaded:
            return min(loaded, key=self.queued_s)
        now_s = asyncio.get_running_loop().time()
        if may_wait and any(self._unknown.get(each, 0.0) > now_s for each in found):
            return None
        return min(found, key=partial(self._cost, key), default=None)

    def has_room(self, replica: str, key: VersionKey) -> bool:
        """Whether a replica has memory for a version without an eviction. False where its size is unknown."""
        size = self._sizes.get(key)
        return size is not None and size <= self._free_bytes(replica)

    def _cost(self, key: VersionKey, replica: str) -> tuple[bool, int, float, int]:
        loads = len(self._loads.get(replica, ()))
        return not self.has_room(replica, key), loads, self.queued_s(replica), -self._free_bytes(replica)

    def _free_bytes(self, replica: str) -> int:
        state = self._states.get(replica)
        loads = self._loads.get(replica, ())
        return 0 if state is None else state.free_bytes - sum(self._sizes.get(each, 0) for each in loads)

    def _resident(self, replica: str, key: VersionKey) -> VersionReport | None:
        state = self._states.get(replica)
        if state is None:
            return None
        return next((each for each in state.versions if _key_of(each) == key), None)

    def _update(self, addresses: Mapping[str, Address]) -> None:
        loop = asyncio.get_running_loop()
        for replica in [each for each in self._reports if each not in addresses]:
            self._reports.pop(replica).close()
            self._states.pop(replica, None)
            self._unknown.pop(replica, None)
        for replica, address in addresses.items():
            if replica not in self._reports:
                reports = self._reports[replica] = LoadedVersionReports(
                    address, self._client, partial(self._note, replica)
                )
                self._unknown[replica] = loop.time() + UNKNOWN_S
                loop.call_later(UNKNOWN_S, self._report)
                reports.open()
        self._report()

    def _note(self, replica: str, report: ReplicaReport | None) -> None:
        self._unknown.pop(replica, None)
        if report is None:
            self._states.pop(replica, None)
        else:
            self._states[replica] = report
            for each in report.versions:
                if each.memory_bytes:
                    self._sizes[_key_of(each)] = each.memory_bytes
            if report.evictions:
                self.on_evictions(report.evictions)
        self._report()

    def _report(self) -> None:
        for callback in list(self._changed):
            callback()


def _key_of(report: VersionReport) -> VersionKey:
    return report.model, report.version, report.path
