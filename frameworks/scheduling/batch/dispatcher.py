"""The dispatcher of one model: it forms batches from the queue and hands them to the workers."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from frameworks.batches.rows import Part, follow_rows, merge, signature_of, split_outputs, split_request
from frameworks.errors import Draining, InvalidInput, ModelFailed, OutOfMemory
from frameworks.scheduling.batch.batcher import BatchLimits, BatchPlan, next_batch
from frameworks.scheduling.batch.cost import CostModel
from frameworks.scheduling.batch.inline import InlineExecutor
from frameworks.scheduling.batch.learning import BatchLearner, Learner, Pair
from frameworks.scheduling.batch.padding_learning import PaddingLearner
from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue
from frameworks.scheduling.batch.request import BatchCounts, Outputs, Progress, Request
from frameworks.scheduling.batch.splitting import BatchCeiling, BatchItem, Splitter, split_item
from frameworks.scheduling.batch.worker import BatchResult, BatchWorker
from frameworks.types import DEFAULT_PRIORITY, Batch, ModelSpec, SequenceSpec, TensorBatch, Timings
from memory.pooled_arrays import PooledArrays

# Parts of one request that are queued at once: a request with very many rows does not block the loop.
_MAX_QUEUED_PARTS = 256
# A worker computes one batch and may hold the next one.
_BATCHES_PER_WORKER = 2
# The priority of parts that run again after their batch failed: before all others.
_FIRST_PRIORITY = 0


class _AllCancelled(Exception):
    """Every caller of a batch was cancelled before it began."""


class Dispatcher:
    """Owned by the event loop. Batches form from what is queued while the workers are busy.

    It adds no delay of its own except the current round of the loop, in which requests that arrived together are
    collected, and `max_delay_s`.
    """

    def __init__(
        self,
        name: str,
        workers: Sequence[BatchWorker],
        spec: ModelSpec,
        limits: BatchLimits,
        ageing_s: float,
        counts: BatchCounts,
        arrays: PooledArrays | None = None,
    ) -> None:
        """`counts`: batches that have run are counted there. `arrays`: for large batches."""
        self._name = name
        self._workers = list(workers)
        self._spec = spec
        # Only texts and sequences have tokens to count.
        self._limits = limits if spec.text or spec.sequence else replace(limits, max_tokens=None)
        self._queue = RequestQueue(ageing_s)
        self._cost = CostModel()
        self._ceiling = BatchCeiling()
        self._loop = asyncio.get_running_loop()
        self._sent: Counter[BatchWorker] = Counter()
        self._round: asyncio.Handle | None = None
        self._delay: asyncio.TimerHandle | None = None
        self._counts = counts
        self._arrays = arrays
        self._splitter = Splitter(name, self._ceiling, counts.split)
        self.has_ended_requests = False
        """Whether `end_requests` was called; further requests are refused."""
        self._learner: Learner | None = None
        if spec.learns_batching:
            self._learner = BatchLearner(name, spec, limits.max_rows)
        self.is_dead = False
        """Whether the thread of every worker has ended. An attribute, as it is read several times for each request."""
        for worker in self._workers:
            worker.on_death = self._note_death
        # A graph whose run time depends on the values never runs on the loop, nor one with a batching delay. Nor does
        # a sequence: requests that differ only in length have one shape, and their run times differ.
        self._inline = (
            InlineExecutor(
                limits.max_rows, self._idle_worker, self._enqueue, self._split_requests, self._ceiling, counts
            )
            if spec.runs_by_shape and not limits.max_delay_s and spec.sequence is None
            else None
        )

    def submit(
        self,
        batch: Batch,
        priority: int = DEFAULT_PRIORITY,
        begin: Callable[[], None] = lambda: None,
        timings: Timings | None = None,
    ) -> "asyncio.Future[Outputs]":
        """Queue the rows of a request and return the future of its outputs.

        `priority`: 1 is first. `begin` is called when the first part is handed to a worker, perhaps again later.
        `timings`: queue and compute seconds are added there. If the future is cancelled, parts that have not begun
        never run. The future fails with ModelFailed if no worker is left, and with what the model raises.
        """
        signature = signature_of(batch, self._spec.batched_inputs, self._spec.sequence)
        future: asyncio.Future[Outputs] = self._loop.create_future()
        request = Request(batch, signature, priority, begin, timings or Timings(), future)
        if self._inline is None or self._learner is not None or not self._inline.try_accept(request):
            self._enqueue(request)
        return future

    @property
    def is_running(self) -> bool:
        """Whether a worker has a batch, even if all its callers were cancelled."""
        return self._sent.total() > 0

    @property
    def queue_depth(self) -> int:
        """Parts of requests in the queue."""
        return self._queue.entries

    async def close(self) -> None:
        """End the workers' threads after the batches that they have, and close the models there."""
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def end_requests(self) -> None:
        """Fail all queued requests and all later ones with Draining. The batches that the workers have are computed."""
        self.has_ended_requests = True
        self._fail_waiting(Draining.unloaded(self._name))
        self._inline = None

    def abort(self, message: str) -> None:
        """Fail all queued requests with Draining, without waiting for the batches that run."""
        self._fail_waiting(Draining(message))
        for worker in self._workers:
            worker.abort(message)

    def _note_death(self) -> None:
        self.is_dead = all(worker.is_dead for worker in self._workers)

    def _idle_worker(self) -> BatchWorker | None:
        """Return a worker without a batch, if nothing is queued."""
        if self._queue.entries:
            return None
        return next((worker for worker in self._workers if not self._sent[worker] and not worker.is_dead), None)

    def _enqueue(self, request: Request) -> None:
        if self.has_ended_requests:
            request.fail(Draining.unloaded(self._name))
            return
        count, parts = split_request(request.batch, request.signature, self._limits.most_rows(request.signature.length))
        self._feed(request, self._begin_progress(request, Progress(count, parts, request.signature.rows)))
        self._wake()

    def _begin_progress(self, request: Request, progress: Progress) -> Progress:
        request.progress = progress
        request.future.add_done_callback(lambda _: self._forget(progress))
        return progress

    def _feed(self, request: Request, progress: Progress) -> None:
        """Queue parts of the backlog. Parts of similar length follow each other, and so share batches."""
        now_s = time.perf_counter()
        group = request.signature.shape if request.signature.shares else request
        # Parts that run again, or were cut again, may exceed the bound.
        for part in islice(progress.backlog, max(0, _MAX_QUEUED_PARTS - len(progress.queued))):
            entry = QueueEntry(
                BatchItem(request, progress, part), part.rows, part.length, group, request.signature.shares
            )
            self._queue.add(entry, request.priority, now_s)
            progress.queued.add(entry)

    def _forget(self, progress: Progress) -> None:
        """The request is complete, or was cancelled: parts that have not begun never run."""
        progress.backlog = iter(())
        for entry in progress.queued:
            self._queue.remove(entry)
        progress.queued.clear()

    def _wake(self) -> None:
        if self._round is None:
            self._round = self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._round = None
        while self._queue.entries:
            workers = [worker for worker in self._workers if not worker.is_dead]
            if not workers:
                self._fail_queued(ModelFailed.thread_ended(self._name))
                return
            worker = min(workers, key=self._sent.__getitem__)
            limits = self._limits.below(self._ceiling.size)
            if self._ceiling.size is not None:
                self._cut_head(limits)
            plan = next_batch(self._queue, self._cost, limits)
            # A busy worker gets a batch in advance only if waiting would not make it a better one.
            may_grow = plan is not None and not plan.is_full and self._queue.entries == len(plan.entries)
            if plan is None or self._sent[worker] >= (1 if may_grow else _BATCHES_PER_WORKER):
                return
            if self._is_delayed(plan):
                return
            self._send(worker, plan)

    def _cut_head(self, limits: BatchLimits) -> None:
        """Cut the head of the queue again if it has more rows than the ceiling allows; its parts stay in its place."""
        while (head := self._queue.head()) and head.shares and head.rows > (most := limits.most_rows(head.length)):
            self._take(head)
            for item in split_item(head.work, most):
                self._requeue(item, head.group, shares=True, is_closed=head.is_closed, order_s=head.order)

    def _is_delayed(self, plan: BatchPlan) -> bool:
        """Whether the batch still waits for more requests; the queue is looked at again when its delay is over."""
        if not self._limits.max_delay_s or plan.is_full or self._queue.group_size(plan.entries[0]) > len(plan.entries):
            return False
        oldest_s = min(entry.work.request.arrived_s for entry in plan.entries)
        left_s = oldest_s + self._limits.max_delay_s - time.perf_counter()
        if left_s <= 0.0:
            return False
        if self._delay is not None:
            self._delay.cancel()
        self._delay = self._loop.call_later(left_s, self._wake)
        return True

    def _send(self, worker: BatchWorker, plan: BatchPlan) -> None:
        items: list[BatchItem] = []
        for entry in plan.entries:
            self._take(entry)
            item: BatchItem = entry.work
            item.request.begin()
            items.append(item)
            self._feed(item.request, item.progress)
        self._sent[worker] += 1
        running: list[BatchItem] = []
        sent_s = time.perf_counter()
        worker.submit(partial(_assemble, items, running, self._spec.sequence, self._arrays)).add_done_callback(
            partial(self._finish, worker, items, running, sent_s)
        )

    def _finish(
        self,
        worker: BatchWorker,
        items: list[BatchItem],
        running: list[BatchItem],
        sent_s: float,
        done: asyncio.Future[BatchResult],
    ) -> None:
        """`running`: the items that were in the batch; none if the worker ended before it began."""
        self._sent[worker] -= 1
        error = done.exception()
        if error is None:
            try:
                self._distribute(running, sent_s, done.result())
            except Exception as failure:  # noqa: BLE001 - handed to the callers; in a callback it would be lost
                error = failure
        if error is None and self._learner is not None and running:
            self._learn(self._learner, worker, running[0].part.batch)
        if running and isinstance(error, OutOfMemory):
            self._split(running, error)
        elif len(running) > 1 and isinstance(error, InvalidInput):
            # The rows of one request must not fail the others: each part runs by itself.
            for item in running:
                self._requeue(item, object(), shares=False)
        elif error is not None:
            for item in items:
                item.request.fail(error)
        self._wake()

    def _distribute(self, items: list[BatchItem], sent_s: float, result: BatchResult) -> None:
        """Learn from a batch that ran, and hand each request its own outputs."""
        rows = sum(item.part.rows for item in items)
        length = max(item.part.length for item in items)
        self._cost.observe(rows, length, result.compute_s)
        self._ceiling.accepted(rows * length)
        if self._inline is not None and isinstance(items[0].part.batch, TensorBatch):
            self._inline.policy.learn(items[0].request.signature.shape, max(1, rows), result.thread_s)
        self._counts.ran(rows, result.compute_s)
        if len(items) > 1 and not follow_rows(result.outputs, rows):
            for item in items:
                self._requeue(item, object(), shares=False)
            return
        sequence = self._spec.sequence if isinstance(items[0].part.batch, TensorBatch) else None
        counts, lengths = [item.part.rows for item in items], [item.part.length for item in items]
        for item, outputs in zip(items, split_outputs(result.outputs, counts, lengths, sequence), strict=True):
            _add_result(item, outputs, sent_s, result)

    def _learn(self, learner: Learner, worker: BatchWorker, batch: Batch) -> None:
        """Let the learner see a request that was answered, and run the pair that it chooses."""
        pair = learner.observe(batch)
        if pair is not None:
            self._sent[worker] += 1
            trial = worker.call(partial(pair.run, worker.model.infer))
            trial.add_done_callback(partial(self._finish_learning, learner, worker, pair))
        elif learner.is_done:
            self._adopt(learner)

    def _finish_learning(
        self, learner: Learner, worker: BatchWorker, pair: Pair, done: asyncio.Future[BatchResult]
    ) -> None:
        self._sent[worker] -= 1
        if done.exception() is not None:  # the worker has ended, or the model raised what no graph raises
            self._learner = None
            return
        learner.conclude(pair)
        if learner.is_done:
            self._adopt(learner)
        self._wake()

    def _adopt(self, learner: Learner) -> None:
        """Serve by the spec that requests have shown; with a sequence, the lengths are next."""
        self._learner, spec = None, learner.spec
        if isinstance(learner, BatchLearner) and spec.batched_inputs and spec.sequence:
            self._learner = PaddingLearner(self._name, spec, self._limits.max_rows)
            spec = self._learner.spec
        self._spec = spec
        for worker in self._workers:
            worker.model.spec = spec

    def _split_requests(self, requests: list[Request], error: OutOfMemory) -> None:
        """Split a batch of whole requests that did not fit on the loop; its parts run on the workers."""
        items = []
        for request in requests:
            signature = request.signature
            progress = self._begin_progress(request, Progress(1, iter(()), signature.rows))
            items.append(BatchItem(request, progress, Part(request.batch, 0, signature.rows, signature.length)))
        self._split(items, error)

    def _split(self, items: list[BatchItem], error: OutOfMemory) -> None:
        """Run the halves of a batch that did not fit. The caller of a single row that does not fit gets the error."""
        parts = self._splitter.split(items, error)
        if not parts:
            items[0].request.fail(error)
        for half in parts:
            group = object()
            for item in half:
                self._requeue(item, group, shares=item.request.signature.shares)
        self._wake()

    def _requeue(
        self, item: BatchItem, group: Hashable, shares: bool, is_closed: bool = True, order_s: float | None = None
    ) -> None:
        """Queue a part again, before all others, unless its caller was cancelled."""
        if item.request.future.done():
            return
        entry = QueueEntry(item, item.part.rows, item.part.length, group, shares, is_closed)
        self._queue.add(entry, _FIRST_PRIORITY, time.perf_counter() if order_s is None else order_s)
        item.progress.queued.add(entry)

    def _take(self, entry: QueueEntry) -> None:
        self._queue.remove(entry)
        entry.work.progress.queued.discard(entry)

    def _fail_waiting(self, error: Exception) -> None:
        if self._inline is not None:
            self._inline.abort(error)
        self._fail_queued(error)

    def _fail_queued(self, error: Exception) -> None:
        while (head := self._queue.head()) is not None:
            self._queue.remove(head)
            head.work.request.fail(error)


def _add_result(item: BatchItem, outputs: Outputs, sent_s: float, result: BatchResult) -> None:
    """Add the outputs of one part to its request, and complete the request after its last part."""
    request, progress = item.request, item.progress
    if progress.queue_s < 0.0:
        progress.queue_s = max(0.0, sent_s + result.queue_s - request.arrived_s)
    progress.compute_s += result.compute_s
    progress.num_pending -= 1
    try:
        assembled = progress.assembler.add(item.part, outputs)
    except InvalidInput as error:
        request.fail(error)
        return
    except MemoryError as error:
        request.fail(OutOfMemory(f"the response does not fit into memory: {error}"))
        return
    if not progress.num_pending:
        request.complete(assembled, progress.queue_s, progress.compute_s)


def _assemble(
    items: list[BatchItem], running: list[BatchItem], sequence: SequenceSpec | None, arrays: PooledArrays | None
) -> Batch:
    """Join the items whose callers still wait. Called on the worker's thread, when the batch is about to run."""
    running += [item for item in items if not item.request.future.done()]
    if not running:
        raise _AllCancelled
    return merge([item.part.batch for item in running], sequence, arrays)
