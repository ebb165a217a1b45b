"""The connection of an ingress to one replica, for one version of its model."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import structlog

from extensions.ray.handshake import PROTOCOL_VERSION, Address, Handshake, client_context, encode_handshake
from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import ChannelLost, ProtocolError
from frameworks.core.errors import ModelFailed
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.process.wire.messages import (
    Closed,
    FromEngine,
    Generate,
    Infer,
    Leave,
    Loaded,
    LoadFailed,
    Ping,
    Pong,
    ToEngine,
)
from frameworks.engine.process.wire.serialization import error_from_plain, spec_from_plain
from frameworks.types import Array

log = structlog.get_logger(__name__)

CONNECT_S = 10.0
"""Limit of the time until a connection is open."""
PING_S = 2.0
SILENT_S = 15.0
"""Silence after which a replica is considered lost, with its node. It answers each ping."""
LOST = "replica"
"""The label of a lost replica in metrics."""
_SAMPLES = 8


class PeerClock:
    """Estimate the offset between the clocks of two machines, which start at different times and drift.

    Of the last pings the one with the shortest round trip is the most exact.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self.ahead_s = 0.0
        """Seconds by which the clock of the peer is ahead of this one."""

    def observe(self, sent_s: float, peer_s: float, received_s: float) -> None:
        """Note an answer. `sent_s`, `received_s`: by the clock here; `peer_s`: of the answer, by that of the peer."""
        round_trip_s = max(0.0, received_s - sent_s)
        self._samples.append((round_trip_s, peer_s - (sent_s + received_s) / 2))
        self.ahead_s = min(self._samples)[1]


class ReplicaLink:
    """Implement Link. Owned by the event loop."""

    num_leases = 0

    def __init__(
        self,
        address: Address,
        own_node: str,
        is_withdrawn: Callable[[], bool] = lambda: False,
        on_unloading: Callable[[], None] = lambda: None,
    ) -> None:
        """`own_node`: id of the node of this process; all processes of a node have one clock.

        `is_withdrawn`: whether Serve has announced the end of the replica (WithdrawnReplicas). `on_unloading`: called
        before the replica unloads the version for another model.
        """
        self.address = address
        self._is_withdrawn = is_withdrawn
        self._on_unloading = on_unloading
        self._clock = None if address.node == own_node else PeerClock()
        self._channel: Channel[FromEngine] = Channel(FromEngine, self._received, self._lost)
        self._loop = asyncio.get_running_loop()
        self._engine: ProcessEngine | None = None
        self._reply: asyncio.Future[Loaded] = self._loop.create_future()
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._early: list[FromEngine] = []
        """Messages that followed the load before `open` has returned."""
        self._is_closed = False
        self._number = 0
        self._pinged_s = 0.0
        self._heard_s = self._ping_due_s = self._loop.time()
        self._ping: asyncio.TimerHandle | None = None

    async def open(self, version: str, path: str, client: str, engine: ProcessEngine, model: str = "") -> Started:
        """Connect, and wait until the replica has loaded the version. From then on messages go to `engine`.

        `model`: its name, where models share the replica. Raises InvalidModel, OutOfMemory, and ModelFailed where the
        replica is lost.
        """
        address = self.address
        handshake = Handshake(PROTOCOL_VERSION, address.secret, client, version, path, model)
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await self._loop.create_connection(
                    lambda: self._channel, address.host, address.port, ssl=client_context()
                )
        except (OSError, TimeoutError) as error:
            raise ModelFailed(f"the replica at {address.host}:{address.port} cannot be reached: {error}") from None
        try:
            transport.write(encode_handshake(handshake))
            self._heard_s = self._ping_due_s = self._loop.time()
            self._send_ping()
            loaded = await self._reply
            spec = spec_from_plain(loaded.spec)
            if self._over.done():
                raise ModelFailed(f"the replica was lost: {self._over.result()}")
        except ProtocolError as error:
            self._shut(error.message)
            raise ModelFailed(f"the replica described its model wrongly: {error.message}") from None
        except BaseException:
            self._shut("its load was not awaited")
            raise
        self._engine = engine
        if self._early:
            # After the engine has noted the link.
            self._loop.call_soon(engine.received, self._early)
        return Started(self, loaded, spec)

    @property
    def is_full(self) -> bool:
        return self._channel.is_full

    def lease_body(self, nbytes: int) -> Array | None:
        """Tensors travel within the messages."""
        return None

    def send(self, message: ToEngine) -> None:
        clock = self._clock
        if clock is not None and isinstance(message, Infer | Generate):
            message = msgspec.structs.replace(message, arrived_s=message.arrived_s + clock.ahead_s)
        try:  # noqa: SIM105 - suppress takes three calls
            self._channel.send(message)
        except ChannelLost:  # the engine learns of it from the end of the connection
            pass

    def kill(self, label: str, reason: str) -> None:
        """End the connection: the replica has further clients. The engine gets its loss."""
        self._channel.fail(reason)

    def abandon(self, reason: str) -> None:
        self._shut(reason)

    async def ended(self, within_s: float) -> None:
        self._is_closed = True
        await asyncio.wait([self._over], timeout=within_s)
        if not self._over.done():
            log.warning("replica did not end its connection", host=self.address.host, port=self.address.port)
        self._shut("it was closed")

    def _received(self, messages: Sequence[FromEngine]) -> None:
        self._heard_s = self._loop.time()
        engine = self._engine
        # All but pings and the load are for the engine; frames without them are not copied.
        if engine is not None and not any(type(each) in _OWN for each in messages):
            engine.received(messages)
            return
        for message in messages:
            if isinstance(message, Pong):
                self._note_pong(message)
            elif isinstance(message, Loaded | LoadFailed):
                self._note_load(message)
            elif isinstance(message, Leave):
                self._on_unloading()
            elif isinstance(message, Closed):
                pass
            elif self._engine is not None:
                self._engine.received([message])
            elif self._reply.done():
                self._early.append(message)
            else:
                raise ProtocolError(f"expected the end of the load, got {type(message).__name__}")

    def _note_pong(self, message: Pong) -> None:
        if self._clock is not None and message.number == self._number:
            self._clock.observe(self._pinged_s, message.at_s, time.perf_counter())

    def _note_load(self, message: Loaded | LoadFailed) -> None:
        if self._reply.done():
            return
        if isinstance(message, LoadFailed):
            self._reply.set_exception(error_from_plain(message.error))
        else:
            self._reply.set_result(message)

    def _send_ping(self) -> None:
        """Ask for a sign of life, and for the time there."""
        now_s = self._loop.time()
        if now_s > self._ping_due_s + PING_S:
            # This process was stopped: what the replica has sent is not yet read.
            self._heard_s = now_s
        if now_s - self._heard_s > SILENT_S:
            self._channel.fail(f"it sent nothing for {SILENT_S:.0f} s")
            return
        self._ping_due_s = now_s + PING_S
        self._number += 1
        self._pinged_s = time.perf_counter()
        self.send(Ping(self._number))
        self._ping = self._loop.call_later(PING_S, self._send_ping)

    def _lost(self, reason: str) -> None:
        self._end(reason)
        if self._engine is not None and not self._is_closed:
            address = self.address
            message = f"the replica at {address.host}:{address.port} was lost: {reason}"
            self._engine.lost(Loss(LOST, message, self._is_withdrawn()))

    def _shut(self, reason: str) -> None:
        self._is_closed = True
        self._channel.close()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._ping is not None:
            self._ping.cancel()
        if not self._over.done():
            self._over.set_result(reason)
        if not self._reply.done():
            self._reply.set_exception(ModelFailed(f"the replica was lost: {reason}"))
            self._reply.exception()  # perhaps no caller awaits it


_OWN = frozenset({Pong, Loaded, LoadFailed, Leave, Closed})
