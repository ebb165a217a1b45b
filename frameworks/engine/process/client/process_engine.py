"""Run a model in a process of its own: the server's side.

`launch.py` starts the process and sees its end, `running_process.py` reports it to `ProcessEngine.lost`, and
`retries.py` decides which of its requests run again.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from frameworks.core.backoff import RestartBackoff
from frameworks.core.channel.messages import ProtocolError
from frameworks.core.errors import Draining, ModelFailed, as_failed
from frameworks.core.progress import Work, begin
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import EngineRequest, EngineSettings, Run, RunCounts, TokenTimes
from frameworks.engine.process.client.calls import InferCall
from frameworks.engine.process.client.generations import GenerationCall
from frameworks.engine.process.client.open_calls import OpenCalls
from frameworks.engine.process.client.poison_requests import PoisonRequests
from frameworks.engine.process.client.watchdog import HangWatch
from frameworks.engine.process.link import Link, Loss, OwnerLink, RemoteModel, Started
from frameworks.engine.process.wire.counts import add_counts
from frameworks.engine.process.wire.messages import (
    Close,
    Counts,
    FromEngine,
    LoadProgress,
    Pong,
    QueueState,
    SpecLearned,
    Waiting,
)
from frameworks.engine.process.wire.serialization import spec_from_plain
from frameworks.generation.sequences import StepStats
from frameworks.generation.types import GenerateRequest
from frameworks.scheduling.batch.request import Outputs
from frameworks.scheduling.sequences.state_store import SequenceUse
from frameworks.text.tokens import TokenAnswer
from frameworks.types import DEFAULT_PRIORITY, Array, ModelSpec, SentBatch
from frameworks.types import Answer as ModelAnswer

log = structlog.get_logger(__name__)

_CLOSE_S = 10.0
# The messages that free the last tensors arrive later than the answers.
_IDLE_S = 5.0


Start = Callable[["ProcessEngine"], Awaitable[Started]]
"""Start a process and load the model in it; messages go to the engine from then on.

Raises InvalidModel, OutOfMemory, ModelFailed where the process ended.
"""


class ProcessEngine:
    """Implement Engine. Owned by the event loop.

    While the process is down, requests are held for its first restart in a row; later ones get ModelFailed.
    """

    references = 0
    compute_now = None

    def __init__(
        self,
        settings: EngineSettings,
        counts: RunCounts,
        start: Start,
        policy: RestartBackoff | None = None,
        poison_requests: PoisonRequests | None = None,
    ) -> None:
        """`start`: starts the process, for the first time in `open`. `counts`: batches, steps and restarts."""
        self._name = settings.name
        self._max_batch_seconds = settings.max_batch_seconds
        self._counts = counts
        self._start = start
        self._policy = policy or RestartBackoff()
        noted = PoisonRequests() if poison_requests is None else poison_requests  # an empty one is falsy
        self._calls = OpenCalls(settings.name, noted, self.check_outage, lambda: self.on_settled())  # noqa: PLW0108
        self._numbers = itertools.count(1)
        self._watch: HangWatch | None = None
        self._stats: StepStats | None = None
        self.sequences: SequenceUse = {}
        """As Engine.sequences; of the owner of the process only."""
        self._restart: asyncio.Task[None] | None = None
        self._load_s = 0.0
        # The compilation of kernels in the process.
        self._work: Work | None = None
        self.is_dead = False
        self.outage: str | None = None
        self.is_shared = False
        """Whether the process has further clients, whose requests may hang too."""
        self.started: Started | None = None
        """The process that was started last, which may have ended."""
        self.queue_state = QueueState(0.0, 0)
        """The last report of an engine that several servers use."""
        self.on_started: Callable[[Started], None] = lambda started: None
        """Called when a process serves, also after each restart."""
        self.on_lost: Callable[[Loss], None] = lambda loss: None
        """Called when the process is lost, before its restart."""
        self.on_start_failed: Callable[[str], None] = lambda reason: None
        """Called with the reason when a restart has failed; another one follows."""
        self.on_settled: Callable[[], None] = lambda: None
        """Called after a restart, when no suspect is left."""
        self.on_spec: Callable[[], None] = lambda: None
        """Called when the model has another spec."""
        self._handlers: dict[type[FromEngine], Callable[[Any], None]] = {
            **self._calls.handlers,
            Counts: self._add_counts,
            SpecLearned: self._note_spec,
            LoadProgress: self._note_progress,
            Pong: self._note_pong,
            QueueState: self._note_queue_state,
        }

    async def open(self) -> Started:
        """Start the process and load the model there. Raises as Start."""
        started = await self._start(self)
        self.model = RemoteModel(started.spec)
        self._serve(started)
        return started

    def open_later(self, spec: ModelSpec, error: ModelFailed) -> None:
        """Begin with a process that is down, and start it as after a crash. `error`: of `open`."""
        self.model = RemoteModel(spec)
        self.outage = error.public
        self._policy.crashed()
        self._restart = asyncio.get_running_loop().create_task(self._restart_process())

    @property
    def is_running(self) -> bool:
        return len(self._calls) > 0

    @property
    def has_ended_requests(self) -> bool:
        return self._calls.has_ended_requests

    @property
    def stats(self) -> list[StepStats]:
        return [] if self._stats is None else [self._stats]

    @property
    def num_suspects(self) -> int:
        """Number of requests that may have ended the process, and have no outcome yet: they run before all others."""
        return self._calls.num_suspects

    def attach(self) -> list[int]:
        """Connect a further client. As OwnerLink.attach; raises ModelFailed while the process is down."""
        link = self._calls.link
        if link is None:
            raise self._failure()
        assert isinstance(link, OwnerLink), "the process has another owner"
        return link.attach()

    def lease_body(self, nbytes: int) -> Array | None:
        link = self._calls.link
        return None if link is None else link.lease_body(nbytes)

    def submit(
        self,
        batch: SentBatch,
        priority: int = DEFAULT_PRIORITY,
        begin: Callable[[], None] = lambda: None,
        timings: Timings | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "asyncio.Future[Outputs]":
        return self._calls.infer(
            InferCall(next(self._numbers), batch, priority, begin, timings or Timings(), tenant, None)
        )

    def answer(self, run: Run, request: EngineRequest) -> Awaitable[ModelAnswer | TokenAnswer]:
        permit, number = run.permit, next(self._numbers)
        return self._calls.infer(
            InferCall(number, request, run.priority, permit.begin, run.timings, permit.tenant, permit.token_budget)
        )

    def new_number(self) -> int:
        """Return the number of another request."""
        return next(self._numbers)

    def send(self, call: InferCall) -> None:
        """Answer a request with a number of this engine. Raises as `submit`."""
        self._calls.infer(call)

    def withdraw(self, call: InferCall) -> None:
        """Forget a request that was sent, and leave its future to the caller."""
        self._calls.end(call)

    def report_waiting(self, calls: int) -> None:
        """Report the number of requests that wait here, for autoscaling."""
        link = self._calls.link
        if link is not None:
            link.send(Waiting(calls))

    def check_outage(self) -> None:
        """Raise ModelFailed while the process is down and no restart is near, and after its end."""
        if self.is_dead or (self.outage is not None and not self._policy.expects_restart_soon):
            raise self._failure()

    def retry_after_s(self) -> float:
        """Return the seconds after which a process that is down is likely to serve."""
        return self._policy.retry_after_s(self._load_s)

    async def generate(
        self, run: Run, request: GenerateRequest, times: TokenTimes, left_s: float | None, in_pieces: bool
    ) -> GenerationCall:
        call = GenerationCall(next(self._numbers), run, request, times, left_s, in_pieces, self._calls.end)
        self._calls.open(call)
        await call.accepted()
        return call

    async def drained(self) -> None:
        """No request of this process is anywhere else."""

    async def close(self) -> None:
        self.is_dead = True
        self._cancel_tasks()
        link = self._detach()
        if link is not None:
            link.send(Close())
            await link.ended(_CLOSE_S)
        # Those that wait for a restart, and those of a process that was lost before their answers.
        self._calls.fail_all(lambda: Draining.unloaded(self._name))

    def end_requests(self) -> None:
        self._calls.end_requests()

    def abort(self, message: str) -> None:
        self.is_dead = True
        self._cancel_tasks()
        self._calls.fail_all(lambda: Draining(message))
        link = self._detach()
        if link is not None:
            link.abandon(message)

    def check_integrity(self) -> None:
        link = self._calls.link
        if self._calls or link is None or time.monotonic() - self._calls.idle_since_s < _IDLE_S:
            return
        assert not self._calls.holds_any, f'idle model "{self._name}" holds requests for a restart'
        leases = link.num_leases
        assert not leases, f'idle model "{self._name}" holds {leases} tensors in shared memory'

    def received(self, messages: Sequence[FromEngine]) -> None:
        """Process the messages of one frame, in order. Raises ProtocolError for one that is damaged."""
        for message in messages:
            handle = self._handlers.get(type(message))
            if handle is None:
                raise ProtocolError(f"expected an answer, got {type(message).__name__}")
            handle(message)

    def lost(self, loss: Loss) -> None:
        """Hold the requests that may run again, fail the others, and begin a restart.

        Called once, when the process has ended without Closed.
        """
        if self._calls.link is None:
            return
        self._detach()
        self._counts.restarts[loss.label] += 1
        self._policy.crashed()
        self.outage = loss.message
        num_calls = len(self._calls)
        failed = self._calls.interrupt(loss.is_announced)
        log.error(
            "engine process lost",
            model=self._name,
            reason=loss.message,
            requests=num_calls,
            failed=len(failed),
            restart_in_s=round(self._policy.start_in_s(), 1),
        )
        self._calls.fail(failed, self._failure)
        self._calls.restart()
        self._restart = asyncio.get_running_loop().create_task(self._restart_process())
        self.on_lost(loss)

    def _serve(self, started: Started) -> None:
        self._calls.link = started.link
        self.started = started
        self._load_s = started.loaded.load_s
        self.outage = None
        if started.spec != self.model.spec:
            self._use_spec(started.spec)
        self._policy.serves()
        # Only the owner asks, for the requests of all clients.
        if self._max_batch_seconds is not None and isinstance(started.link, OwnerLink):
            self._watch = HangWatch(started.link, self._max_batch_seconds, lambda: self.is_shared or self.is_running)
        self._calls.send_due()
        self.on_started(started)

    def _detach(self) -> Link | None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        link, self._calls.link = self._calls.link, None
        self._stats = None
        self.sequences = {}
        self._end_work()
        return link

    def _end_work(self) -> None:
        if self._work is not None:
            self._work.end()
            self._work = None

    async def _restart_process(self) -> None:
        while True:
            await asyncio.sleep(self._policy.start_in_s())
            try:
                started = await self._start(self)
            except Exception as error:  # noqa: BLE001 - tried again
                failure = as_failed(error, "its start")
                reason, self.outage = failure.message, failure.public
                self._policy.crashed()
                self._calls.fail_held(self._failure)
                wait_s = round(self._policy.start_in_s(), 1)
                log.error("engine process not restarted", model=self._name, reason=reason, restart_in_s=wait_s)
                self.on_start_failed(self.outage)
                continue
            log.info("engine process restarted", model=self._name, load_s=round(started.loaded.load_s, 3))
            self._serve(started)
            return

    def _cancel_tasks(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
        self._calls.stop_charging()

    def _failure(self) -> ModelFailed:
        wait_s = self.retry_after_s()
        return ModelFailed(f'model "{self._name}" failed: {self.outage}; try again in {wait_s:.0f} s', wait_s)

    def _add_counts(self, message: Counts) -> None:
        add_counts(self._counts, message)
        if message.stats is not None:
            self._stats = message.stats
        if message.sequences is not None:
            self.sequences = message.sequences

    def _note_spec(self, message: SpecLearned) -> None:
        self._use_spec(spec_from_plain(message.spec))

    def _use_spec(self, spec: ModelSpec) -> None:
        self.model.spec = spec
        if not spec.awaits_kernels:
            self._end_work()
        self.on_spec()

    def _note_progress(self, message: LoadProgress) -> None:
        """Note the progress of kernels that are compiled while requests run."""
        if self._work is None:
            if not self.model.spec.awaits_kernels:
                return
            self._work = begin("compile", self._name)
        self._work.phase(message.what, message.total, message.unit, message.done)

    def _note_pong(self, message: Pong) -> None:
        if self._watch is not None:
            self._watch.answered(message)

    def _note_queue_state(self, message: QueueState) -> None:
        self.queue_state = message
