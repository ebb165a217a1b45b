"""Run one generating model on a device thread, and deliver its tokens to the feeds of its requests."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from frameworks.core.errors import Draining, ModelFailed, ModelLost, OutOfMemory, RoundhouseError
from frameworks.generation.sequences import NO_TOKEN, GeneratedToken, SequenceRequest, StepResult, StepStats
from frameworks.runtime import StepModel
from frameworks.scheduling.batch.worker import for_callers, without_frames
from frameworks.scheduling.device_clock import DeviceClock
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.tenant_accounting import StepAccounting
from frameworks.scheduling.steps.token_feed import TenantTokens, TokenFeed
from frameworks.scheduling.worker_inbox import next_message

log = structlog.get_logger(__name__)

# Maximum delay before buffered tokens are delivered; the stats of a step are old by then.
_MAX_DELIVERY_DELAY_S = 0.05

Message = SequenceRequest | int | frozenset[str] | None
"""A sequence to add, the id of a sequence to abort, the names of the held tenants, or None: no more messages follow."""


class CompletedStep(NamedTuple):
    """A step and the times when it was computed (time.perf_counter). `num_processed`: messages processed before it."""

    result: StepResult
    started_s: float
    ended_s: float
    num_processed: int


class StepWorker:
    """Generate sequences with a model on a thread of its own; sequences join and end between its steps.

    The event loop owns the feeds. Loop and thread exchange messages only. Tokens of an aborted sequence are dropped.
    When the thread dies, every feed fails, so that no reader hangs.
    """

    def __init__(self, name: str, model: StepModel, counts: StepCounts, clock: DeviceClock | None = None) -> None:
        """Start the thread. `counts`: the worker adds each step to it. `clock`: of the device, which other models may
        use too.
        """
        self._name = name
        self._counts = counts
        self._feeds: dict[int, TokenFeed] = {}
        # Of the sequences of named tenants that have not begun.
        self._prompt_lengths: dict[int, int] = {}
        # The messages sent to the thread, and the number that it had processed at its last report.
        self._num_sent = 0
        self._num_processed = 0
        self._is_closing = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stats = StepStats()
        """As of the last step."""
        self._has_stats = False
        self.is_dead = False
        self.on_death: Callable[[], None] = lambda: None
        """Called in the event loop after `is_dead` has become true."""
        self._thread = _StepThread(name, model, on_steps=self._deliver, on_failed=self._fail, on_ended=self._end)
        # A hold needs no answer, so it does not count as sent.
        self._charges = StepAccounting(clock or DeviceClock(), counts.steps, self._thread.send)

    @property
    def num_sequences(self) -> int:
        """The number of sequences that are queued or running."""
        return len(self._feeds)

    @property
    def is_running(self) -> bool:
        """Whether the model may hold sequences; the thread may still have to process an abort."""
        return not self.is_dead and (bool(self._feeds) or self._num_processed < self._num_sent)

    @property
    def running_since_s(self) -> float | None:
        """When the step that runs began (time.perf_counter); None while none runs."""
        return self._thread.running_since_s

    def open(self, request: SequenceRequest, feed: TokenFeed) -> None:
        """Start a sequence whose tokens go to the feed. Raises ModelFailed where the thread is dead."""
        if self.is_dead or self._is_closing:
            raise ModelFailed.thread_ended(self._name)
        self._feeds[request.sequence_id] = feed
        if request.tenant.name:
            feed.tenant_tokens = self._counts.tenants.setdefault(request.tenant.name, TenantTokens())
            self._prompt_lengths[request.sequence_id] = request.num_prompt_tokens
        feed.attach(request.sequence_id, self._abort_sequence)
        self._charges.open(request.sequence_id, request.tenant)
        self._send(request)

    def close(self) -> asyncio.Future[None]:
        """End the thread after its sequences, then close the model there. The future is done after both."""
        self._is_closing = True
        self._send(None)
        return asyncio.shield(self._ended)

    def abort(self, message: str) -> None:
        """Fail every feed with Draining. The thread ends after its current step, without being awaited."""
        self.fail_feeds(Draining(message))
        self._is_closing = True
        self._send(None)

    def fail_feeds(self, error: Exception) -> None:
        """End all sequences with an error."""
        for feed in list(self._feeds.values()):
            feed.fail(error)

    def check_integrity(self) -> None:
        """Raise AssertionError where an idle model holds sequences, or memory for sequences."""
        if not self.is_running:
            stats = self.stats
            held = (stats.running, stats.waiting, stats.kv_used_bytes)
            assert held == (0, 0, 0), f'idle model "{self._name}" holds sequences: {stats}'

    def _deliver(self, steps: Iterable[CompletedStep]) -> None:
        """Put the results of steps into the feeds, in order."""
        for result, started_s, ended_s, self._num_processed in steps:
            # The totals before the first step belong to the warm-up.
            self._counts.add(result, self.stats if self._has_stats else result.stats, ended_s - started_s)
            self.stats, self._has_stats = result.stats, True
            self._charges.charge(result.costs, ended_s - started_s)
            for sequence_id, num_cached_tokens in result.begun:
                if (feed := self._feeds.get(sequence_id)) is not None:
                    if feed.tenant_tokens is not None:
                        feed.tenant_tokens.prompt += self._prompt_lengths.pop(sequence_id)
                    feed.mark_begun(sequence_id, num_cached_tokens, started_s)
            if result.speculated:
                self._note_speculated(result)
            self._deliver_tokens(result, ended_s)
            for sequence_id, error in result.failed:
                if (feed := self._feeds.pop(sequence_id, None)) is not None:
                    self._forget(sequence_id)
                    feed.fail_sequence(sequence_id, error)

    def _note_speculated(self, result: StepResult) -> None:
        for sequence_id, proposed, accepted in result.speculated:
            if (feed := self._feeds.get(sequence_id)) is not None:
                feed.proposed_tokens += proposed
                feed.accepted_tokens += accepted

    def _deliver_prompts(self, result: StepResult) -> None:
        for sequence_id, alignment in result.aligned.items():
            if (feed := self._feeds.get(sequence_id)) is not None:
                feed.alignments[sequence_id] = alignment
        for scores in result.scored:
            if (feed := self._feeds.get(scores.sequence_id)) is not None:
                feed.prompt_scores[scores.sequence_id] = scores

    def _deliver_tokens(self, result: StepResult, ended_s: float) -> None:
        feeds = self._feeds
        if result.scored or result.aligned:
            self._deliver_prompts(result)
        for token in result.tokens:
            if (feed := feeds.get(token.sequence_id)) is not None:
                if feed.tenant_tokens is not None:
                    feed.tenant_tokens.generated += 1
                if token.finish_reason is not None:
                    del feeds[token.sequence_id]
                    self._charges.end(token.sequence_id)
                feed.push(token, ended_s)
        for sequence_id in result.ended:
            if (feed := feeds.pop(sequence_id, None)) is not None:
                self._charges.end(sequence_id)
                feed.push(GeneratedToken(sequence_id, NO_TOKEN, "length", is_text=False), ended_s)

    def _fail(self, sequence_ids: Iterable[int], error: Exception, num_processed: int) -> None:
        self._num_processed = num_processed
        for sequence_id in sequence_ids:
            if (feed := self._feeds.pop(sequence_id, None)) is not None:
                self._forget(sequence_id)
                feed.fail_sequence(sequence_id, error)

    def _end(self) -> None:
        """Fail every feed; the thread has ended."""
        self.is_dead = True
        self.stats = StepStats()
        self.on_death()
        self._fail(list(self._feeds), ModelFailed.thread_ended(self._name), self._num_sent)
        if not self._ended.done():
            self._ended.set_result(None)

    def _abort_sequence(self, sequence_id: int) -> None:
        del self._feeds[sequence_id]
        self._forget(sequence_id)
        self._send(sequence_id)

    def _forget(self, sequence_id: int) -> None:
        self._prompt_lengths.pop(sequence_id, None)
        self._charges.end(sequence_id)

    def _send(self, message: Message) -> None:
        self._num_sent += 1
        self._thread.send(message)


class _StepThread:
    """Process messages between the model's steps, and step while the model has sequences; else sleep.

    One step without sequences runs at the start and after the last abort: it reports the model's stats. The loop gets a
    step at once where a reader streams, or a sequence began or ended in it. Otherwise it gets several steps together.
    Loop and thread compete for the interpreter, so that every report would delay a step.
    """

    def __init__(
        self,
        name: str,
        model: StepModel,
        on_steps: Callable[[list[CompletedStep]], None],
        on_failed: Callable[[list[int], Exception, int], None],
        on_ended: Callable[[], None],
    ) -> None:
        """Start at once. The callbacks run in the current event loop; `on_ended` runs last."""
        self._name = name
        self._model = model
        self._on_steps, self._on_failed, self._on_ended = on_steps, on_failed, on_ended
        self._loop = asyncio.get_running_loop()
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._num_processed = 0
        # The tenants of the sequences that have not ended, and those sequences whose reader waits for each token.
        self._active: dict[int, str] = {}
        self._streamed: set[int] = set()
        self._held: frozenset[str] = frozenset()
        self._undelivered: list[CompletedStep] = []
        self._is_stats_due = False
        self._is_ending = False
        self.running_since_s: float | None = None
        """Written by the thread: when its step began; None between steps."""
        threading.Thread(target=self._work, name=f"worker-{name}", daemon=True).start()

    def send(self, message: Message) -> None:
        """Queue a message; the thread processes messages in order, before its next step."""
        self._messages.put(message)

    def _work(self) -> None:
        try:
            self._step()
            while self._process_messages():
                self._step()
        except ModelLost as error:
            log.error("device thread ended", model=self._name, reason=error.message)
        except BaseException:
            # CancelledError, SystemExit and the like from a model end the thread; the loop then fails the readers.
            log.exception("device thread ended", model=self._name)
        finally:
            self.running_since_s = None
            self._report_steps()
            try:
                self._model.close()
            except BaseException:
                log.exception("model did not close cleanly", model=self._name)
            self._report(self._on_ended)

    def _process_messages(self) -> bool:
        """Process the queued messages; wait for one where there is nothing to do. Returns False to end the thread."""
        self.running_since_s = None
        while not self._messages.empty() or self._has_to_wait():
            message = next_message(self._messages, self._model.on_idle)
            if isinstance(message, frozenset):
                self._held = message
                continue
            self._num_processed += 1
            if message is None:
                self._is_ending = True
            elif isinstance(message, int):
                self._is_stats_due = True
                self._forget({message})
                self._abort(message)
            else:
                self._active[message.sequence_id] = message.tenant.name
                if not message.is_read_whole:
                    self._streamed.add(message.sequence_id)
                self._add(message)
        return bool(self._active) or (self._is_stats_due and not self._is_ending)

    def _has_to_wait(self) -> bool:
        """Whether there is nothing to compute, or only sequences of held tenants."""
        if self._is_stats_due or self._is_ending:
            return False
        if self._active and not (self._held and self._held.issuperset(self._active.values())):
            return False
        # A hold ends only after its steps are charged.
        self._report_steps()
        return True

    def _add(self, request: SequenceRequest) -> None:
        try:
            self._model.add(request)
        except Exception as error:  # noqa: BLE001 - handed to the reader
            self._fail([request.sequence_id], error)

    def _abort(self, sequence_id: int) -> None:
        try:
            self._model.abort(sequence_id)
        except Exception:
            log.exception("sequence was not aborted", model=self._name)

    def _step(self) -> None:
        self._is_stats_due = False
        started_s = self.running_since_s = time.perf_counter()
        try:
            result = self._model.step(self._held)
            ended_s = time.perf_counter()
            ended = set(result.ended)
            for token in result.tokens:
                if token.finish_reason is not None:
                    ended.add(token.sequence_id)
            for sequence_id, _ in result.failed:
                ended.add(sequence_id)
        except Exception as error:
            self._fail(list(self._active), error)
            if isinstance(error, ModelLost):
                raise  # the end of this thread ends the engine
            return
        if ended:
            self._forget(ended)
        self._undelivered.append(CompletedStep(result, started_s, ended_s, self._num_processed))
        is_urgent = self._streamed or ended or result.begun or self._held or not self._active
        if is_urgent or ended_s - self._undelivered[0].ended_s > _MAX_DELIVERY_DELAY_S:
            self._report_steps()
        if self._active and not self._model.has_work:
            self._fail(list(self._active), RuntimeError("the model has lost its sequences"))

    def _forget(self, sequence_ids: set[int]) -> None:
        for sequence_id in sequence_ids:
            self._active.pop(sequence_id, None)
        self._streamed -= sequence_ids

    def _fail(self, sequence_ids: list[int], error: Exception) -> None:
        """End sequences with an error of their own or of a step."""
        if isinstance(error, RoundhouseError | MemoryError):
            log.warning("sequences failed", model=self._name, sequences=len(sequence_ids), reason=str(error))
        else:
            log.error("sequences failed", model=self._name, sequences=len(sequence_ids), exc_info=error)
        for sequence_id in sequence_ids:
            self._abort(sequence_id)
        self._forget(set(sequence_ids))
        self._is_stats_due = bool(sequence_ids)
        self._report_steps()
        # A step follows, so the worker is still running: its last message counts as not processed.
        self._report(self._on_failed, sequence_ids, _for_readers(error), self._num_processed - self._is_stats_due)

    def _report_steps(self) -> None:
        if self._undelivered:
            steps, self._undelivered = self._undelivered, []
            self._report(self._on_steps, steps)

    def _report(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is closed: the process is exiting and has no readers any more.
            log.debug("worker ended after its loop", model=self._name)


def _for_readers(error: Exception) -> Exception:
    """Return the error without its frames, which would keep a step's tensors until the last reader has read it."""
    if isinstance(error, OutOfMemory | MemoryError):
        return without_frames(error)
    if isinstance(error, RoundhouseError):
        return for_callers(error)
    return RuntimeError(f"the model raised {type(error).__name__}; the log has it")
