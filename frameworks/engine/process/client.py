"""Run a model in a process of its own: the server's side. Requests are sent there, and sent again after a crash."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from frameworks.engine.contract import EngineRequest, EngineSettings, Run, RunCounts, TokenTimes
from frameworks.engine.process.arrays import ArrayWriter
from frameworks.engine.process.calls import InferCall
from frameworks.engine.process.counting import add_counts
from frameworks.engine.process.generations import GenerationCall
from frameworks.engine.process.link import Link, Loss, Start, Started
from frameworks.engine.process.messages import (
    Answer,
    Begun,
    Cancel,
    Close,
    Counted,
    Counts,
    EndRequests,
    Failed,
    FromEngine,
    MessageTooLarge,
    Pieces,
    Pong,
    Proceed,
    ProtocolError,
    SpecLearned,
)
from frameworks.engine.process.plain import error_from_plain, request_to_plain
from frameworks.engine.process.restarts import RestartPolicy
from frameworks.engine.process.retries import InFlight, RetryQueue
from frameworks.engine.process.specs import spec_from_plain
from frameworks.engine.process.suspects import Suspects, digest_of
from frameworks.engine.process.watch import HangWatch
from frameworks.errors import Draining, InvalidInput, ModelFailed, Overloaded, RoundhouseError
from frameworks.generation.types import GenerateRequest, Generation, StepStats
from frameworks.scheduling.admission import TokenBudget
from frameworks.scheduling.batch.request import Outputs
from frameworks.tenants import DEFAULT_TENANT, Tenant
from frameworks.text.tokens import TokenAnswer
from frameworks.types import DEFAULT_PRIORITY, Batch, ModelSpec, Timings
from frameworks.types import Answer as ModelAnswer

log = structlog.get_logger(__name__)

_CLOSE_S = 10.0
# The messages that free the last tensors arrive later than the answers.
_IDLE_S = 5.0

Call = InferCall | GenerationCall


class RemoteModel:
    """Implement Described: the spec that the process reported."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec


class ProcessEngine:
    """Implement Engine. Owned by the event loop.

    While the process is down, requests are held for its first restart in a row; later ones get ModelFailed. A request
    that is held stays so over further crashes: each of them ends a run of another request, which has two. A request
    runs again after a crash unless a part of its text was read.
    """

    references = 0

    def __init__(
        self,
        settings: EngineSettings,
        counts: RunCounts,
        start: Start,
        policy: RestartPolicy | None = None,
        suspects: Suspects | None = None,
    ) -> None:
        """`start`: starts the process, for the first time in `open`. `counts`: batches, steps and restarts."""
        self._name = settings.name
        self._max_batch_seconds = settings.max_batch_seconds
        self._counts = counts
        self._start = start
        self._policy = policy or RestartPolicy()
        self._suspects = suspects or Suspects()
        self._retries = RetryQueue(self._suspects, lambda number: _digest(self._calls[number]))
        self._calls: dict[int, Call] = {}
        self._numbers = itertools.count(1)
        self._link: Link | None = None
        self._watch: HangWatch | None = None
        self._stats: StepStats | None = None
        self._restart: asyncio.Task[None] | None = None
        self._charging: set[asyncio.Task[None]] = set()
        self._load_s = 0.0
        self._idle_since_s = time.monotonic()
        self.is_dead = False
        self.has_ended_requests = False
        self.outage: str | None = None
        self._handlers: dict[type[FromEngine], Callable[[Any], None]] = {
            Answer: self._complete,
            Begun: self._begin,
            Failed: self._fail,
            Pieces: self._push,
            Counted: self._count_tokens,
            Counts: self._add_counts,
            SpecLearned: self._note_spec,
            Pong: self._note_pong,
        }

    async def open(self) -> Started:
        """Start the process and load the model there. Raises as Start."""
        started = await self._start(self)
        self.model = RemoteModel(started.spec)
        self._serve(started)
        return started

    @property
    def is_running(self) -> bool:
        return bool(self._calls)

    @property
    def stats(self) -> list[StepStats]:
        return [] if self._stats is None else [self._stats]

    def submit(
        self,
        batch: Batch,
        priority: int = DEFAULT_PRIORITY,
        begin: Callable[[], None] = lambda: None,
        timings: Timings | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "asyncio.Future[Outputs]":
        return self._infer(InferCall(next(self._numbers), batch, priority, begin, timings or Timings(), tenant, None))

    def answer(self, run: Run, request: EngineRequest) -> Awaitable[ModelAnswer | TokenAnswer]:
        permit = run.permit
        return self._infer(
            InferCall(
                next(self._numbers),
                request,
                run.priority,
                permit.begin,
                run.timings,
                permit.tenant,
                permit.token_budget,
            )
        )

    async def generate(
        self, run: Run, request: GenerateRequest, times: TokenTimes, left_s: float | None, in_pieces: bool
    ) -> Generation:
        call = GenerationCall(next(self._numbers), run, request, times, left_s, in_pieces, self._end)
        self._open_call(call)
        await call.accepted()
        return call

    async def drained(self) -> None:
        """No request of this process is anywhere else."""

    async def close(self) -> None:
        self.is_dead = True
        self._cancel_restart()
        link = self._detach()
        if link is not None:
            link.send(Close())
            await link.ended(_CLOSE_S)

    def end_requests(self) -> None:
        self.has_ended_requests = True
        for number in self._retries.give_up():
            self._fail_call(number, Draining.unloaded(self._name))
        if self._link is not None:
            self._link.send(EndRequests())

    def abort(self, message: str) -> None:
        self.is_dead = True
        self._cancel_restart()
        for number in list(self._calls):
            self._fail_call(number, Draining(message))
        link = self._detach()
        if link is not None:
            link.kill("aborted", message)

    def check_integrity(self) -> None:
        if self._calls or self._link is None or time.monotonic() - self._idle_since_s < _IDLE_S:
            return
        assert self._retries.is_empty, f'idle model "{self._name}" holds requests for a restart'
        leases = self._link.num_leases
        assert not leases, f'idle model "{self._name}" holds {leases} tensors in shared memory'

    def received(self, messages: Sequence[FromEngine]) -> None:
        """As Listener.received."""
        for message in messages:
            handle = self._handlers.get(type(message))
            if handle is None:
                raise ProtocolError(f"expected an answer, got {type(message).__name__}")
            handle(message)

    def lost(self, loss: Loss) -> None:
        """As Listener.lost: hold the requests that may run again, fail the others, and begin a restart."""
        if self._link is None:
            return
        self._detach()
        self._counts.restarts[loss.label] += 1
        self._policy.crashed()
        self.outage = loss.message
        in_flight = [
            InFlight(call.id, call.has_begun, is_idempotent=True, has_streamed=call.has_streamed)
            for call in self._calls.values()
        ]
        failed = self._retries.crashed(in_flight)
        log.error(
            "engine process lost",
            model=self._name,
            reason=loss.message,
            requests=len(in_flight),
            failed=len(failed),
            restart_in_s=round(self._policy.start_in_s(), 1),
        )
        for number in failed:
            self._fail_call(number, self._failure())
        for call in self._calls.values():
            call.restart()
        self._restart = asyncio.get_running_loop().create_task(self._restart_process())

    def _infer(self, call: InferCall) -> "asyncio.Future[Any]":
        self._open_call(call)
        call.future.add_done_callback(partial(self._end_infer, call))
        return call.future

    def _open_call(self, call: Call) -> None:
        """Send a request, or hold it while a restart is near. Raises ModelFailed, Draining."""
        if self.has_ended_requests:
            raise Draining.unloaded(self._name)
        if self._suspects.refuses_any:
            self._check_suspect(call)
        if self._link is not None and self._retries.is_empty:
            if self._link.is_full:
                raise Overloaded(f'model "{self._name}": its process is behind with earlier requests; try again', 1.0)
            self._calls[call.id] = call
            self._send(self._link, call)
            return
        if self.is_dead or (self._link is None and not self._policy.expects_restart_soon):
            raise self._failure()
        self._calls[call.id] = call
        self._retries.hold(call.id)

    def _send(self, link: Link, call: Call) -> None:
        try:
            link.send(call.message())
        except MessageTooLarge as error:
            self._fail_call(call.id, InvalidInput("inputs", f"{error.message}; send fewer strings at once"))
        except (InvalidInput, TypeError) as error:
            self._fail_call(call.id, error)

    def _check_suspect(self, call: Call) -> None:
        left_s = self._suspects.refused_for_s(_digest(call))
        if left_s:
            raise ModelFailed(
                f'model "{self._name}": the same request ended its process twice; change it, or try again in '
                f"{left_s:.0f} s",
                left_s,
            )

    def _serve(self, started: Started) -> None:
        self._link = started.link
        self._load_s = started.loaded.load_s
        self.outage = None
        if started.spec != self.model.spec:
            self.model.spec = started.spec
        self._policy.serves()
        if self._max_batch_seconds is not None:
            self._watch = HangWatch(started.link, self._max_batch_seconds, lambda: bool(self._calls))
        self._send_due()

    def _detach(self) -> Link | None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        link, self._link = self._link, None
        self._stats = None
        return link

    async def _restart_process(self) -> None:
        while True:
            await asyncio.sleep(self._policy.start_in_s())
            try:
                started = await self._start(self)
            except Exception as error:  # noqa: BLE001 - tried again
                reason = error.message if isinstance(error, RoundhouseError) else f"{type(error).__name__}: {error}"
                self._policy.crashed()
                self.outage = reason
                for number in self._retries.give_up():
                    self._fail_call(number, self._failure())
                log.error(
                    "engine process not restarted",
                    model=self._name,
                    reason=reason,
                    restart_in_s=round(self._policy.start_in_s(), 1),
                )
                continue
            log.info("engine process restarted", model=self._name, load_s=round(started.loaded.load_s, 3))
            self._serve(started)
            return

    def _cancel_restart(self) -> None:
        for task in (self._restart, *self._charging):
            if task is not None:
                task.cancel()

    def _send_due(self) -> None:
        """Send the requests that no longer wait for a suspect."""
        while self._link is not None and (due := self._retries.due()):
            for number in due:
                self._send_again(self._link, self._calls[number])

    def _send_again(self, link: Link, call: Call) -> None:
        """Send a request that was held, unless a crash has shown meanwhile that it ends the process."""
        try:
            if self._suspects.refuses_any:
                self._check_suspect(call)
        except ModelFailed as error:
            self._fail_call(call.id, error)
        else:
            self._send(link, call)

    def _end_infer(self, call: InferCall, _: object) -> None:
        # Absent after an answer or an error; else the caller has cancelled it.
        if call.id in self._calls:
            self._end(call)

    def _end(self, call: Call) -> None:
        """Forget a request that its caller needs no longer, and end it in the process."""
        if self._remove(call.id, is_completed=False) is not None and self._link is not None:
            self._link.send(Cancel(call.id))

    def _fail_call(self, number: int, error: Exception) -> None:
        call = self._remove(number, is_completed=False)
        if call is not None:
            call.fail(error)

    def _remove(self, number: int, is_completed: bool) -> Call | None:
        """Forget a request, and send those that waited for it. None where it is unknown."""
        if number not in self._calls:
            return None
        is_waited_for = not self._retries.is_empty
        if is_waited_for:
            # It needs the request, for its digest.
            self._retries.ended(number, is_completed)
        call = self._calls.pop(number)
        if not self._calls:
            self._idle_since_s = time.monotonic()
        if is_waited_for:
            self._send_due()
        return call

    def _failure(self) -> ModelFailed:
        wait_s = self._policy.retry_after_s(self._load_s)
        return ModelFailed(f'model "{self._name}" failed: {self.outage}; try again in {wait_s:.0f} s', wait_s)

    def _complete(self, message: Answer) -> None:
        call = self._calls.get(message.id)
        if call is None:
            return  # cancelled
        if type(call) is not InferCall:
            raise ProtocolError("expected pieces of a generation, got an answer")
        call.complete(message)
        self._remove(message.id, is_completed=True)

    def _begin(self, message: Begun) -> None:
        for number in message.ids:
            call = self._calls.get(number)
            if call is not None:
                call.begin()

    def _fail(self, message: Failed) -> None:
        self._fail_call(message.id, error_from_plain(message.error))

    def _push(self, message: Pieces) -> None:
        call = self._calls.get(message.id)
        if call is None:
            return
        if not isinstance(call, GenerationCall):
            raise ProtocolError("expected an answer, got pieces of a generation")
        if message.is_over:
            # Before its end is reported: it needs no Cancel.
            self._remove(message.id, is_completed=True)
        call.push(message)

    def _count_tokens(self, message: Counted) -> None:
        call = self._calls.get(message.id)
        if call is None:
            return
        if call.budget is None or call.is_counted:
            raise ProtocolError("expected no count of tokens for a request without limit, got one")
        task = asyncio.get_running_loop().create_task(self._charge(call, call.budget, message.tokens))
        self._charging.add(task)
        task.add_done_callback(self._charging.discard)

    async def _charge(self, call: Call, budget: TokenBudget, tokens: int) -> None:
        """Count the tokens of a request, and let the process run it; end it where its tenant has none left."""
        try:
            await budget.start(tokens)
        except RoundhouseError as error:
            if call.id in self._calls and self._link is not None:
                self._link.send(Cancel(call.id))
            self._fail_call(call.id, error)
            return
        call.is_counted = True
        if call.id in self._calls and self._link is not None:
            self._link.send(Proceed(call.id))

    def _add_counts(self, message: Counts) -> None:
        add_counts(self._counts, message)
        if message.stats is not None:
            self._stats = message.stats

    def _note_spec(self, message: SpecLearned) -> None:
        self.model.spec = spec_from_plain(message.spec)

    def _note_pong(self, message: Pong) -> None:
        if self._watch is not None:
            self._watch.answered(message)


def _digest(call: Call) -> bytes:
    """Identify the content of a request."""
    return digest_of(msgspec.msgpack.encode(request_to_plain(call.request), enc_hook=ArrayWriter().write))
