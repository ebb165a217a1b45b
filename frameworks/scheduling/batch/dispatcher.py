"""The middle of the house: one model's waiting line, formed into batches and handed to its instances."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from frameworks.batches.rows import follow_rows, merge, signature_of, split_outputs, split_request
from frameworks.errors import Draining, InvalidInput, ModelFailed, OutOfMemory
from frameworks.scheduling.batch.batcher import BatchLimits, BatchPlan, next_batch
from frameworks.scheduling.batch.ceiling import BatchCeiling
from frameworks.scheduling.batch.cost import CostModel
from frameworks.scheduling.batch.inline import InlineExecutor
from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue
from frameworks.scheduling.batch.request import BatchCounts, BatchItem, Progress, Request
from frameworks.scheduling.batch.splitting import Splitter, recut
from frameworks.scheduling.batch.worker import BatchResult, BatchWorker
from frameworks.types import DEFAULT_PRIORITY, Batch, ModelSpec, SequenceSpec, TensorBatch
from memory.pooled_arrays import PooledArrays

# Of a request with very many rows only so many stand in the line at once: one caller does not hold up the loop.
_WINDOW = 256
# A worker computes one batch and may hold the next.
_BATCHES_PER_LANE = 2
# Pieces that are run again after their batch failed go before everybody else.
_AT_ONCE = 0


class _NobodyWaits(Exception):
    """Every caller of a batch has gone before it began."""


class Dispatcher:
    """Owned by the event loop. Batches form from what waits while the instances are busy; the only delays of its own
    are the loop's current round, in which the requests that came together are gathered, and `max_delay_s`.
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
        """`counts`: what has run is added up there. `arrays`: for large batches."""
        self._name = name
        self._workers = list(workers)
        self._spec = spec
        # What has no sequence has no tokens to count.
        self._limits = limits if spec.text or spec.sequence else replace(limits, max_tokens=None)
        self._line = RequestQueue(ageing_s)
        self._cost = CostModel()
        self._ceiling = BatchCeiling()
        self._loop = asyncio.get_running_loop()
        self._sent: Counter[BatchWorker] = Counter()
        self._round: asyncio.Handle | None = None
        self._delay: asyncio.TimerHandle | None = None
        self._counts = counts
        self._arrays = arrays
        self._splitter = Splitter(name, self._ceiling, counts.split)
        # A graph that may run long on the values alone never runs on the loop; nor does one that is to wait for more.
        # Nor does a sequence: requests that differ in length alone are of one shape, and how long they run differs.
        self._light = (
            InlineExecutor(limits.max_rows, self._idle_worker, self._enter, self._split, self._ceiling, counts)
            if spec.runs_by_shape and not limits.max_delay_s and spec.sequence is None
            else None
        )

    async def run(
        self, batch: Batch, priority: int = DEFAULT_PRIORITY, begin: Callable[[], None] = lambda: None
    ) -> BatchResult:
        """Runs a request's rows, in whatever batches, and waits for its whole answer.

        `priority`: 1 is first. `begin` is called when the first of it is handed to an instance, perhaps again later.
        Cancelled, it takes along what has not begun. Raises ModelFailed where no instance is left, and what the model
        raises.
        """
        signature = signature_of(batch, self._spec.batched_inputs, self._spec.sequence)
        request = Request(batch, signature, priority, begin, self._loop.create_future())
        if self._light is None or not self._light.takes(request):
            self._enter(request)
        try:
            return await request.future
        finally:
            if request.progress is not None:
                self._take_out(request.progress)

    @property
    def is_dead(self) -> bool:
        """Whether every instance's thread has ended."""
        # Asked three times a request: a generator for one instance is worth a microsecond.
        return all(worker.is_dead for worker in self._workers) if len(self._workers) > 1 else self._workers[0].is_dead

    @property
    def is_running(self) -> bool:
        """Whether an instance has a batch, also one whose callers have all gone."""
        return self._sent.total() > 0

    @property
    def queue_depth(self) -> int:
        """Pieces of requests that wait in the line."""
        return self._line.entries

    async def close(self) -> None:
        """Ends the instances' threads after what they were given, and closes the models there."""
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def abort(self, message: str) -> None:
        """Fails all who wait with Draining; the batches that run are not waited for."""
        if self._light is not None:
            self._light.abort(Draining(message))
        self._fail_waiting(Draining(message))
        for worker in self._workers:
            worker.abort(message)

    def _idle_worker(self) -> BatchWorker | None:
        """An instance that has nothing to do, where nobody waits for it."""
        if self._line.entries:
            return None
        return next((worker for worker in self._workers if not self._sent[worker] and not worker.is_dead), None)

    def _enter(self, request: Request) -> None:
        count, parts = split_request(request.batch, request.signature, self._limits.most_rows(request.signature.length))
        request.progress = Progress(count, parts, request.signature.rows)
        self._feed(request, request.progress)
        self._wake()

    def _feed(self, request: Request, progress: Progress) -> None:
        """Parts of like length come one after the other, and so stand in the line together."""
        now_s = time.perf_counter()
        group = request.signature.shape if request.signature.shares else request
        # What is run again, or was cut again, may be more than the window.
        for part in islice(progress.backlog, max(0, _WINDOW - len(progress.waiting))):
            entry = QueueEntry(
                BatchItem(request, progress, part), part.rows, part.length, group, request.signature.shares
            )
            self._line.add(entry, request.priority, now_s)
            progress.waiting.add(entry)

    def _take_out(self, progress: Progress) -> None:
        """The caller has its answer, or is gone: what has not begun never runs."""
        progress.backlog = iter(())
        for entry in progress.waiting:
            self._line.remove(entry)
        progress.waiting.clear()

    def _wake(self) -> None:
        if self._round is None:
            self._round = self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._round = None
        while self._line.entries:
            workers = [worker for worker in self._workers if not worker.is_dead]
            if not workers:
                self._fail_waiting(ModelFailed(f'model "{self._name}": its thread has ended; load the model again'))
                return
            worker = min(workers, key=self._sent.__getitem__)
            limits = self._limits.below(self._ceiling.size)
            if self._ceiling.size is not None:
                self._cut_head(limits)
            plan = next_batch(self._line, self._cost, limits)
            # A busy worker is given a batch in advance only if waiting would not make it a better one.
            may_grow = plan is not None and not plan.is_full and self._line.entries == len(plan.entries)
            if plan is None or self._sent[worker] >= (1 if may_grow else _BATCHES_PER_LANE):
                return
            if self._is_delayed(plan):
                return
            self._send(worker, plan)

    def _cut_head(self, limits: BatchLimits) -> None:
        """What has more rows than the ceiling allows is cut again when it is next, and stays in its place."""
        while (head := self._line.head()) and head.shares and head.rows > (most := limits.most_rows(head.length)):
            self._take(head)
            for member in recut(head.work, most):
                self._put(member, head.group, shares=True, is_closed=head.is_closed, order_s=head.order)

    def _is_delayed(self, plan: BatchPlan) -> bool:
        """Whether the batch still waits for more to join it; it is looked at again when its time is up."""
        if not self._limits.max_delay_s or plan.is_full or self._line.group_size(plan.entries[0]) > len(plan.entries):
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
        members: list[BatchItem] = []
        for entry in plan.entries:
            self._take(entry)
            member: BatchItem = entry.work
            member.request.begin()
            members.append(member)
            self._feed(member.request, member.progress)
        self._sent[worker] += 1
        running: list[BatchItem] = []
        sent_s = time.perf_counter()
        worker.submit(partial(_assemble, members, running, self._spec.sequence, self._arrays)).add_done_callback(
            partial(self._finish, worker, members, running, sent_s)
        )

    def _finish(
        self,
        worker: BatchWorker,
        members: list[BatchItem],
        running: list[BatchItem],
        sent_s: float,
        done: asyncio.Future[BatchResult],
    ) -> None:
        """`running`: of the members those that were in the batch; none where the worker ended before it began."""
        self._sent[worker] -= 1
        error = done.exception()
        if error is None:
            try:
                self._answer(running, sent_s, done.result())
            except Exception as failure:  # noqa: BLE001 - handed to the callers; in a callback it would reach nobody
                error = failure
        if running and isinstance(error, OutOfMemory):
            self._split(running, error)
        elif len(running) > 1 and isinstance(error, InvalidInput):
            # One caller's rows are no reason to fail the others': each by itself.
            for member in running:
                self._put(member, object(), shares=False)
        elif error is not None:
            for member in members:
                member.request.fail(error)
        self._wake()

    def _answer(self, members: list[BatchItem], sent_s: float, result: BatchResult) -> None:
        rows = sum(member.part.rows for member in members)
        length = max(member.part.length for member in members)
        self._cost.observe(rows, length, result.compute_s)
        self._ceiling.accepted(rows * length)
        if self._light is not None and isinstance(members[0].part.batch, TensorBatch):
            self._light.runs.learn(members[0].request.signature.shape, max(1, rows), result.thread_s)
        self._counts.ran(rows, result.compute_s)
        if len(members) > 1 and not follow_rows(result.outputs, rows):
            for member in members:
                self._put(member, object(), shares=False)
            return
        sequence = self._spec.sequence if isinstance(members[0].part.batch, TensorBatch) else None
        counts, lengths = [member.part.rows for member in members], [member.part.length for member in members]
        shares = split_outputs(result.outputs, counts, lengths, sequence)
        for member, outputs in zip(members, shares, strict=True):
            request, progress = member.request, member.progress
            if progress.queue_s < 0.0:
                progress.queue_s = max(0.0, sent_s + result.queue_s - request.arrived_s)
            progress.compute_s += result.compute_s
            progress.missing -= 1
            try:
                joined = progress.joined.add(member.part, outputs)
            except InvalidInput as error:
                request.fail(error)
                continue
            except MemoryError as error:
                request.fail(OutOfMemory(f"the answer does not fit into memory: {error}"))
                continue
            if not progress.missing and not request.future.done():
                request.future.set_result(BatchResult(joined, progress.queue_s, progress.compute_s))

    def _split(self, members: list[BatchItem], error: OutOfMemory) -> None:
        """Of a batch that did not fit the halves run; who waits for a single row that does not fit hears of it."""
        parts = self._splitter.split(members, error)
        if not parts:
            members[0].request.fail(error)
        for half in parts:
            group = object()
            for member in half:
                self._put(member, group, shares=member.request.signature.shares)
        self._wake()

    def _put(
        self, member: BatchItem, group: Hashable, shares: bool, is_closed: bool = True, order_s: float | None = None
    ) -> None:
        """Into the line again, before everybody else, if somebody still waits for it."""
        if member.request.future.done():
            return
        entry = QueueEntry(member, member.part.rows, member.part.length, group, shares, is_closed)
        self._line.add(entry, _AT_ONCE, time.perf_counter() if order_s is None else order_s)
        member.progress.waiting.add(entry)

    def _take(self, entry: QueueEntry) -> None:
        self._line.remove(entry)
        entry.work.progress.waiting.discard(entry)

    def _fail_waiting(self, error: Exception) -> None:
        while (head := self._line.head()) is not None:
            self._line.remove(head)
            head.work.request.fail(error)


def _assemble(
    members: list[BatchItem], running: list[BatchItem], sequence: SequenceSpec | None, arrays: PooledArrays | None
) -> Batch:
    """In the worker's thread, when the batch is about to run: of the members those whose callers still wait."""
    running += [member for member in members if not member.request.future.done()]
    if not running:
        raise _NobodyWaits
    return merge([member.part.batch for member in running], sequence, arrays)
