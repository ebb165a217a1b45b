"""The engine of one version of a model over the running replicas of its Serve deployment."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from extensions.ray.ingress.connections import Connections, ReplicaEngine
from extensions.ray.ingress.routing import LeastSeconds
from frameworks.core.errors import ModelFailed
from frameworks.engine.contract import EngineSettings, Run, TokenTimes
from frameworks.engine.group import EngineGroup, GroupModel
from frameworks.engine.group_queue import GroupMember
from frameworks.engine.process.link import Loss
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.types import ModelSpec

log = structlog.get_logger(__name__)

NO_REPLICA = "no replica of the model runs; Ray starts another one"
RETRY_AFTER_S = 5.0
_REPORT_S = 0.5


class ReplicasModel(GroupModel):
    """Implement Described: the latest spec of any replica, with the kinds of devices of all."""

    def _joined(self, spec: ModelSpec) -> ModelSpec:
        devices = dict.fromkeys(each.model.spec.device for each in self._engines)
        return replace(spec, device=",".join(devices) or spec.device)


class ReplicaGroup(EngineGroup):
    """Implement Engine. Owned by the event loop. Requests wait here while no replica runs."""

    def __init__(
        self,
        settings: EngineSettings,
        connections: Connections,
        first: ReplicaEngine,
        instances: int,
        wake: Callable[[], Awaitable[Any]],
        cold_start_s: float,
        may_be_empty: bool,
    ) -> None:
        """`first`: an open engine. `wake`: makes Serve start a replica where none runs, and waits for it.

        `cold_start_s`: maximum wait of a request for the first replica. `may_be_empty`: the deployment scales to zero.
        """
        self._choice = self._new_choice()
        super().__init__(settings, [first.engine], instances, self._choice, ReplicasModel)
        self._connections = connections
        self._wake = wake
        self._cold_start_s = cold_start_s
        self._may_be_empty = may_be_empty
        self._member_of: dict[ReplicaEngine, GroupMember] = {}
        self._assign(first, self._members[0])
        self._waking: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._reported = 0
        self._reporting: asyncio.TimerHandle | None = None
        self._report_waiting()
        self._follow_replica(first)
        connections.on_open = self._add_replica
        connections.on_left = self._retire_replica

    @property
    def outage(self) -> str | None:
        """Why it cannot answer now; requests wait nevertheless. A deployment that scales to zero has none."""
        return None if self._may_be_empty or self._members else NO_REPLICA

    @property
    def num_replicas(self) -> int:
        """Number of replicas that get requests."""
        return len(self._members)

    @property
    def replica_bytes(self) -> int:
        """Memory of the version in the replicas that get requests, and in those that answer their last ones."""
        started = [engine.started for engine in self.engines]
        return sum(each.loaded.memory_bytes for each in started if each is not None)

    async def generate(
        self, run: Run, request: GenerateRequest, times: TokenTimes, left_s: float | None, in_pieces: bool
    ) -> Generation:
        self._ensure_replica()
        return await super().generate(run, request, times, left_s, in_pieces)

    async def close(self) -> None:
        self._end_connections()
        await super().close()
        await asyncio.gather(*self._closing)

    def abort(self, message: str) -> None:
        self._end_connections()
        super().abort(message)

    def _infer(self, *arguments: Any) -> "asyncio.Future[Any]":
        self._ensure_replica()
        return super()._infer(*arguments)

    def _check_outage(self) -> None:
        """Refuse no request: Serve starts another replica."""

    def _ensure_replica(self) -> None:
        if not self._members and self._waking is None:
            self._waking = asyncio.get_running_loop().create_task(self._wait_for_replica())

    async def _wait_for_replica(self) -> None:
        """Make Serve start a replica, and fail the requests that wait for it in vain."""
        calling = asyncio.ensure_future(self._wake())
        try:
            async with asyncio.timeout(self._cold_start_s):
                while not self._members:  # noqa: ASYNC110 - engines open at any time
                    await asyncio.sleep(0.02)
        except TimeoutError:
            log.error("no replica has started", model=self._name, waited_s=self._cold_start_s)
            self._fail_waiting(
                lambda: ModelFailed(
                    f'model "{self._name}": no replica has started within {self._cold_start_s:.0f} s; try again later',
                    RETRY_AFTER_S,
                )
            )
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            self._waking = None

    def _add_replica(self, replica_engine: ReplicaEngine) -> None:
        self._assign(replica_engine, self.add(replica_engine.engine))
        self._follow_replica(replica_engine)
        log.info("replica serves", model=self._name, host=replica_engine.address.host, replicas=len(self._members))

    def _new_choice(self) -> LeastSeconds:
        return LeastSeconds()

    def _assign(self, replica_engine: ReplicaEngine, member: GroupMember) -> None:
        self._member_of[replica_engine] = member

    def _follow_replica(self, replica_engine: ReplicaEngine) -> None:
        """Also retire the engine when its replica is lost. The group moves requests to other members before that."""
        inner = replica_engine.engine.on_lost

        def note_lost(loss: Loss) -> None:
            inner(loss)
            self._connections.note_lost(replica_engine)

        replica_engine.engine.on_lost = note_lost

    def _retire_replica(self, replica_engine: ReplicaEngine) -> None:
        member = self._member_of.pop(replica_engine, None)
        if member is not None:
            self.retire(member, partial(self._close_replica, replica_engine))

    def _close_replica(self, replica_engine: ReplicaEngine) -> None:
        """Close the connection of a replica that has answered its last request."""
        if replica_engine.engine in self.engines and not self.is_dead:
            self.engines.remove(replica_engine.engine)
            task = asyncio.get_running_loop().create_task(replica_engine.engine.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _report_waiting(self) -> None:
        """Report the requests that wait here to the replicas, each its share."""
        waiting = len(self._queue)
        if self._members and (waiting or self._reported):
            share = -(-waiting // len(self._members))
            for member in self._members:
                member.engine.report_waiting(share)
            self._reported = waiting
        self._reporting = asyncio.get_running_loop().call_later(_REPORT_S, self._report_waiting)

    def _end_connections(self) -> None:
        self._connections.close()
        if self._reporting is not None:
            self._reporting.cancel()
        if self._waking is not None:
            self._waking.cancel()
