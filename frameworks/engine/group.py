"""Run a model in several engine processes, on several devices, with one queue before them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from frameworks.core.errors import DeadlineExceeded, Draining, ModelFailed
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import EngineRequest, EngineSettings, Run, TokenTimes
from frameworks.engine.group_queue import Choose, GroupMember, GroupQueue, Job
from frameworks.engine.process.client.calls import InferCall
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Loss, Started
from frameworks.generation.sequences import StepStats
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.images.spec import ImageRequest
from frameworks.scheduling.admission import TokenBudget
from frameworks.scheduling.batch.request import Outputs
from frameworks.scheduling.sequences.state_store import SequenceUse
from frameworks.tasks.types import TaskRequest
from frameworks.text.tokens import TokenAnswer
from frameworks.types import (
    DEFAULT_PRIORITY,
    Answer,
    ImagePairRequest,
    ModelSpec,
    PairRequest,
    SentBatch,
    TensorBatch,
    TextRequest,
    TokenBatch,
)

_BATCHES_AHEAD = 2
"""Full batches that each instance of a process may have: one that runs, and the next one."""


class GroupModel:
    """Implement Described: the latest spec of any process, with the devices of all."""

    def __init__(self, engines: Sequence[ProcessEngine]) -> None:
        self._engines = engines
        self.spec = self._joined(engines[0].model.spec)

    def note(self, engine: ProcessEngine) -> None:
        """Serve by the spec that a process has reported."""
        spec = self._joined(engine.model.spec)
        if spec != self.spec:
            self.spec = spec

    def _joined(self, spec: ModelSpec) -> ModelSpec:
        return replace(spec, device=",".join(each.model.spec.device for each in self._engines))


class EngineGroup:
    """Implement Engine. Owned by the event loop.

    A request that waits at a process when it is lost, and has not begun, moves to another one, once. One that ran is
    run again by its own process, alone. Further requests wait here until a process has capacity for them.
    """

    references = 0
    compute_now = None

    def __init__(
        self,
        settings: EngineSettings,
        engines: Sequence[ProcessEngine],
        instances: int,
        choose: Choose | None = None,
        model: type[GroupModel] = GroupModel,
    ) -> None:
        """`engines`: at least one, all open, with one model. `instances`: of each process. `choose`: as of GroupQueue.
        `model`: describes what the engines have in common.
        """
        self._name = settings.name
        self.engines = list(engines)
        self.model = model(self.engines)
        self.is_dead = False
        self.has_ended_requests = False
        self._members = [GroupMember(each) for each in engines]
        generates = self.model.spec.decoder is not None
        capacity = settings.limits.max_rows * (1 if generates else _BATCHES_AHEAD * instances)
        self._queue = GroupQueue(self._members, capacity, settings.ageing_s, choose)
        for member in self._members:
            self._follow(member)

    @property
    def outage(self) -> str | None:
        """The reason of the last process, where all are down."""
        outages = [engine.outage for engine in self.engines]
        return None if None in outages else outages[-1]

    @property
    def is_running(self) -> bool:
        return len(self._queue) > 0 or any(engine.is_running for engine in self.engines)

    @property
    def stats(self) -> list[StepStats]:
        return [stats for engine in self.engines for stats in engine.stats]

    @property
    def sequences(self) -> SequenceUse:
        """A model with a state has one process."""
        return {}

    def lease_body(self, nbytes: int) -> None:
        """The process is chosen later, when the request is first in the queue."""

    def submit(
        self,
        batch: SentBatch,
        priority: int = DEFAULT_PRIORITY,
        begin: Callable[[], None] = lambda: None,
        timings: Timings | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "asyncio.Future[Outputs]":
        return self._infer(batch, priority, begin, timings or Timings(), tenant, None)

    def answer(self, run: Run, request: EngineRequest) -> Awaitable[Answer | TokenAnswer]:
        permit = run.permit
        return self._infer(request, run.priority, permit.begin, run.timings, permit.tenant, permit.token_budget)

    async def generate(
        self, run: Run, request: GenerateRequest, times: TokenTimes, left_s: float | None, in_pieces: bool
    ) -> Generation:
        self._check_open()
        granted: asyncio.Future[GroupMember] = asyncio.get_running_loop().create_future()
        size = len(request.prompts) * request.num_choices
        job = Job(size, run.permit.tenant, run.priority, granted, _grant, request)
        self._queue.add(job)
        try:
            member = await _within(left_s, granted)
            now_s = time.perf_counter()
            run.timings.queued(job.queued_s, now_s)
            left_s = None if left_s is None else left_s - (now_s - job.queued_s)
            generation = await member.engine.generate(run, request, times, left_s, in_pieces)
        except BaseException:
            self._queue.end(job)
            raise
        if generation.is_over:
            self._queue.end(job)
        else:
            generation.on_over = partial(self._queue.end, job)
        return generation

    async def drained(self) -> None:
        """No request of this process is anywhere else."""

    async def close(self) -> None:
        self._end(lambda: Draining.unloaded(self._name))
        await asyncio.gather(*(engine.close() for engine in self.engines))

    def end_requests(self) -> None:
        self.has_ended_requests = True
        self._fail_waiting(lambda: Draining.unloaded(self._name))
        for engine in self.engines:
            engine.end_requests()

    def abort(self, message: str) -> None:
        self._end(lambda: Draining(message))
        for engine in self.engines:
            engine.abort(message)

    def check_integrity(self) -> None:
        self._queue.check_integrity()
        for engine in self.engines:
            engine.check_integrity()

    def add(self, engine: ProcessEngine) -> GroupMember:
        """Use a further engine, which is open."""
        member = GroupMember(engine)
        self._members.append(member)
        self.engines.append(engine)
        self._follow(member)
        self.model.note(engine)
        self._queue.dispatch()
        return member

    def retire(self, member: GroupMember, on_left: Callable[[], None]) -> None:
        """Send a member no further requests. `on_left`: called after the last one of those that it has."""
        self._members.remove(member)
        member.on_left = on_left
        if not member.jobs:
            on_left()

    def _follow(self, member: GroupMember) -> None:
        engine = member.engine
        engine.on_started = partial(self._note_started, member)
        engine.on_lost = partial(self._note_lost, member)
        engine.on_start_failed = partial(self._note_start_failed, member)
        engine.on_spec = partial(self.model.note, engine)
        engine.on_settled = partial(self._note_settled, engine.on_settled)

    def _infer(
        self,
        request: EngineRequest | TokenBatch,
        priority: int,
        begin: Callable[[], None],
        timings: Timings,
        tenant: Tenant,
        budget: TokenBudget | None,
    ) -> "asyncio.Future[Outputs]":
        self._check_open()
        future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
        counted_s = time.perf_counter()

        def note_begun() -> None:
            job.has_begun = True
            begin()

        def send(job: Job) -> None:
            nonlocal counted_s
            assert job.member is not None, "a request is sent to a member"
            # The wait in the process is added by its answer.
            now_s = time.perf_counter()
            timings.queued(counted_s, now_s)
            counted_s = now_s
            try:
                engine = job.member.engine
                call = job.call = InferCall(engine.new_number(), request, priority, note_begun, timings, tenant, budget)
                call.future = future
                engine.send(call)
            except Exception as error:  # noqa: BLE001 - handed to the caller
                job.fail(error)

        job = Job(_rows(request), tenant, priority, future, send, request)
        # The tokens of a request with a budget may be counted already.
        job.has_moved = budget is not None
        future.add_done_callback(lambda _: self._queue.end(job))
        self._queue.add(job)
        return future

    def _check_open(self) -> None:
        """Raise the error of a request that the group cannot answer."""
        if self.has_ended_requests:
            raise Draining.unloaded(self._name)
        if self.is_dead:
            raise ModelFailed.thread_ended(self._name)
        self._check_outage()

    def _check_outage(self) -> None:
        """Raise ModelFailed where all processes are down, and none restarts soon."""
        failure = None
        for engine in self.engines:
            try:
                engine.check_outage()
                return
            except ModelFailed as error:
                failure = error
        assert failure is not None, "a group has a process"
        raise failure

    def _note_started(self, member: GroupMember, _: Started) -> None:
        member.has_failed_start = False
        self._queue.dispatch()

    def _note_lost(self, member: GroupMember, _: Loss) -> None:
        """Move the requests that have not begun to other processes; the lost one runs the others again."""
        moving = []
        if any(each.is_available for each in self._members):
            moving = [job for job in member.jobs if _may_move(job)]
        for job in moving:
            job.has_moved = True
            if job.call is not None:
                member.engine.withdraw(job.call)
        self._queue.take_back(moving)

    def _note_settled(self, inner: Callable[[], None]) -> None:
        """Use a process again that has no suspects left. `inner`: the callback of its owner."""
        inner()
        self._queue.dispatch()

    def _note_start_failed(self, member: GroupMember, _: str) -> None:
        """Fail the requests that wait where no process could be started again."""
        member.has_failed_start = True
        if all(each.has_failed_start for each in self._members):
            try:
                self._check_outage()
            except ModelFailed as error:
                failure = error
                self._fail_waiting(lambda: ModelFailed(failure.message, failure.retry_after_s, failure.public))

    def _fail_waiting(self, error: Callable[[], Exception]) -> None:
        for job in self._queue.waiting():
            job.fail(error())

    def _end(self, error: Callable[[], Exception]) -> None:
        self.is_dead = True
        self._fail_waiting(error)


def _may_move(job: Job) -> bool:
    return job.call is not None and not (job.has_begun or job.has_moved or job.future.done())


def _grant(job: Job) -> None:
    if not job.future.done():
        job.future.set_result(job.member)


async def _within(left_s: float | None, granted: "asyncio.Future[GroupMember]") -> GroupMember:
    """Wait for a process. Raises DeadlineExceeded after `left_s` seconds."""
    if granted.done():
        return granted.result()
    try:
        async with asyncio.timeout(left_s):
            return await granted
    except TimeoutError:
        raise DeadlineExceeded("the text was not begun within timeout_ms; allow more time or try again later") from None


def _rows(request: EngineRequest | TokenBatch) -> int:
    """Return the rows of a request for the model; 1 for a request of the tokenizer."""
    if isinstance(request, TensorBatch | TokenBatch):
        return max(1, request.rows)
    if isinstance(request, ImageRequest | ImagePairRequest):
        return max(1, len(request.images))
    if isinstance(request, TaskRequest):
        return max(1, len(request.inputs))
    if isinstance(request, TextRequest):
        return max(1, len(request.texts) or len(request.token_ids or ()))
    return max(1, len(request.pairs)) if isinstance(request, PairRequest) else 1
