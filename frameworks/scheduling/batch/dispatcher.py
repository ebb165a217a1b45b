"""Dispatch the batches of one model: form them from the queue and submit them to the workers."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from frameworks.core.errors import Draining, InvalidInput, ModelFailed, OutOfMemory
from frameworks.core.fairness import TenantShare
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings, note_batch
from frameworks.scheduling.batch.batcher import BatchLimits, BatchPlan, next_batch
from frameworks.scheduling.batch.cost import CostModel
from frameworks.scheduling.batch.inline import InlineExecutor
from frameworks.scheduling.batch.part_queue import PartQueue
from frameworks.scheduling.batch.request import BatchCounts, Outputs, Progress, Request
from frameworks.scheduling.batch.results import assemble, distribute
from frameworks.scheduling.batch.splitting import BatchCeiling, BatchItem, Splitter
from frameworks.scheduling.batch.tenant_accounting import BatchAccounting, Costs
from frameworks.scheduling.batch.trials.trial_runs import LearningRuns
from frameworks.scheduling.batch.worker import BatchResult, BatchWorker
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.scheduling.merging.rows import Part, follow_rows, signature_of, split_request, with_scalars
from frameworks.types import DEFAULT_PRIORITY, Batch, ModelSpec, TensorBatch

# A worker computes one batch and may hold the next one. With several tenants it does not: a request that arrives
# would wait for both.
_BATCHES_PER_WORKER = 2


class Dispatcher:
    """Owned by the event loop. Batches form from what is queued while the workers are busy.

    It adds no delay of its own except the current round of the loop, in which requests that arrived together are
    collected, and `max_delay_s`. Tenants share the device by their weights, see `DeviceClock`.
    """

    def __init__(
        self,
        name: str,
        workers: Sequence[BatchWorker],
        spec: ModelSpec,
        limits: BatchLimits,
        ageing_s: float,
        counts: BatchCounts,
        device: SharedDevice | None = None,
    ) -> None:
        """`counts`: batches that have run are counted there. `device`: None for one without other models."""
        self._name = name
        self._workers = list(workers)
        self._spec = spec
        self._all_outputs = tuple(output.name for output in spec.outputs)
        # Only texts and sequences have tokens to count.
        self._limits = limits if spec.text or spec.sequence or spec.pipeline else replace(limits, max_tokens=None)
        if spec.text is not None and spec.text.packs:
            self._limits = replace(self._limits, packs=True)
        device = device or SharedDevice()
        self._clock = device.clock
        self._arrays = device.arrays
        # Of the tenant of the last request.
        self._share = self._clock.share(DEFAULT_TENANT)
        self._charges = BatchAccounting(self._clock, counts)
        self._queue = PartQueue(ageing_s, self._clock)
        self._cost = CostModel()
        self._ceiling = BatchCeiling()
        self._loop = asyncio.get_running_loop()
        self._sent: Counter[BatchWorker] = Counter()
        self._round: asyncio.Handle | None = None
        self._delay: asyncio.TimerHandle | None = None
        self._counts = counts
        self._splitter = Splitter(name, self._ceiling, counts.split)
        self.has_ended_requests = False
        """Whether `end_requests` was called; further requests are refused."""
        self._learner: LearningRuns | None = None
        if spec.learns_batching:
            self._learner = LearningRuns(name, spec, limits.max_rows, self._sent, self._note_learned)
        self.is_dead = False
        """Whether the thread of every worker has ended."""
        self.on_death: Callable[[], None] = lambda: None
        """Called after `is_dead` has become true."""
        for number, worker in enumerate(self._workers):
            worker.number = number
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
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "asyncio.Future[Outputs]":
        """Queue the rows of a request and return the future of its outputs.

        `priority`: 1 is first. `begin` is called when the first part is handed to a worker, perhaps again later.
        `timings`: queue and compute seconds are added there. `tenant`: is charged for the rows. If the future is
        cancelled, parts that have not begun never run. The future fails with ModelFailed if no worker is left,
        and with what the model raises.
        """
        spec = self._spec
        if spec.equal_inputs and isinstance(batch, TensorBatch):
            batch = batch._replace(inputs=with_scalars(batch.inputs, spec.equal_inputs))
        signature = signature_of(
            batch, spec.batched_inputs, spec.sequence, self._all_outputs, spec.text, spec.equal_inputs
        )
        future: asyncio.Future[Outputs] = self._loop.create_future()
        share = self._share if tenant is self._share.tenant else self._share_of(tenant)
        request = Request(batch, signature, share, priority, begin, timings or Timings(), future)
        if self._inline is None or self._learner is not None or not self._inline.try_accept(request):
            self._enqueue(request)
        return future

    def compute_now(self, batch: TensorBatch, timings: Timings, tenant: Tenant) -> Outputs | None:
        """As Engine.compute_now."""
        inline = self._inline
        if inline is None or not inline.answers_at_once or self._learner is not None:
            return None
        signature = signature_of(batch, self._spec.batched_inputs, None, self._all_outputs)
        share = self._share if tenant is self._share.tenant else self._share_of(tenant)
        return inline.compute_now(batch, signature, share, timings)

    def _share_of(self, tenant: Tenant) -> TenantShare:
        self._share = self._clock.share(tenant)
        return self._share

    @property
    def is_running(self) -> bool:
        """Whether a worker has a batch, even if all its callers were cancelled."""
        return self._sent.total() > 0

    @property
    def running_since_s(self) -> float | None:
        """When the longest batch that runs on a thread began (time.perf_counter); None while none runs."""
        return min((s for worker in self._workers if (s := worker.running_since_s) is not None), default=None)

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
        if self.is_dead:
            self.on_death()

    def _idle_worker(self) -> BatchWorker | None:
        """Return a worker without a batch, if nothing is queued and no other tenant uses the device."""
        active = self._clock.num_active
        if self._queue.entries or active > 1 or (active and not (self._share.queued or self._share.running)):
            return None
        for worker in self._workers:
            if not self._sent[worker] and not worker.is_dead:
                return worker
        return None

    def _enqueue(self, request: Request) -> None:
        if self.has_ended_requests:
            request.fail(Draining.unloaded(self._name))
            return
        count, parts = split_request(request.batch, request.signature, self._limits.most_rows(request.signature.length))
        self._queue.begin(request, Progress(count, parts, request.signature.rows))
        self._wake()

    def _wake(self) -> None:
        if self._round is None:
            self._round = self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._round = None
        while self._queue.entries:
            workers = [worker for worker in self._workers if not worker.is_dead]
            if not workers:
                self._queue.fail_all(ModelFailed.thread_ended(self._name))
                return
            worker = min(workers, key=self._sent.__getitem__)
            is_shared = self._clock.num_active > 1
            if is_shared and self._hold():
                return
            limits = self._limits.below(self._ceiling.size)
            if self._ceiling.size is not None:
                self._queue.cut_head(limits)
            plan = next_batch(self._queue, self._cost, limits, self._charges.may_run)
            # A busy worker gets a batch in advance only if waiting would not make it a better one.
            may_grow = plan is not None and not plan.is_full and self._queue.entries == len(plan.entries)
            if plan is None or self._sent[worker] >= (1 if may_grow or is_shared else _BATCHES_PER_WORKER):
                return
            if self._is_delayed(plan):
                return
            self._send(worker, plan)

    def _hold(self) -> bool:
        """Whether the next tenant is too far ahead of one that uses the device; the queue is dispatched again later."""
        share = self._queue.first()
        if share is None or self._charges.may_run(share):
            return False
        self._clock.hold(self._wake)
        return True

    def _is_delayed(self, plan: BatchPlan) -> bool:
        """Whether the batch still waits for more requests; the queue is dispatched again when its delay is over."""
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
        items: list[BatchItem] = [entry.work for entry in plan.entries]
        # Before the entries are removed: their tenants stay active.
        costs = self._charges.start(items, self._cost.seconds(plan.rows, plan.length))
        for entry, item in zip(plan.entries, items, strict=True):
            self._queue.take(entry)
            item.request.begin()
            self._queue.feed(item.request, item.progress)
        self._sent[worker] += 1
        running: list[BatchItem] = []
        sent_s = time.perf_counter()
        worker.submit(partial(assemble, items, running, self._spec.sequence, self._arrays)).add_done_callback(
            partial(self._finish, worker, items, running, costs, sent_s)
        )

    def _finish(
        self,
        worker: BatchWorker,
        items: list[BatchItem],
        running: list[BatchItem],
        costs: Costs,
        sent_s: float,
        done: asyncio.Future[BatchResult],
    ) -> None:
        """`running`: the items that were in the batch; none if the worker ended before it began."""
        self._sent[worker] -= 1
        error = done.exception()
        self._charges.finish(costs, running, None if error is not None else done.result().compute_s)
        if error is None:
            try:
                self._distribute(worker, running, sent_s, done.result())
            except Exception as failure:  # noqa: BLE001 - handed to the callers; in a callback it would be lost
                error = failure
        if error is None and self._learner is not None and running:
            self._learner.observe(worker, running[0].part.batch)
        if running and isinstance(error, OutOfMemory):
            self._split(running, error)
        elif len(running) > 1 and isinstance(error, InvalidInput):
            # The rows of one request must not fail the others: each part runs by itself.
            for item in running:
                self._queue.requeue(item, object(), may_share=False)
        elif error is not None:
            for item in items:
                item.request.fail(error)
        text = worker.model.spec.text
        if text is not None and text.packs is not self._limits.packs:
            # Compiled kernels have replaced others: batches cost something else now.
            self._limits, self._cost = replace(self._limits, packs=text.packs), CostModel()
        self._wake()

    def _distribute(self, worker: BatchWorker, items: list[BatchItem], sent_s: float, result: BatchResult) -> None:
        """Learn from a batch that ran, and hand each request its own outputs."""
        rows = sum(item.part.rows for item in items)
        length = self._length_of(items)
        self._cost.observe(rows, length, result.cost_s)
        self._ceiling.accepted(round(rows * length))
        if self._inline is not None and isinstance(items[0].part.batch, TensorBatch):
            self._inline.policy.learn(items[0].request.signature.shape, max(1, rows), result.thread_s)
        self._counts.ran(rows, result.compute_s)
        if len(items) > 1 and not follow_rows(result.outputs, rows):
            for item in items:
                self._queue.requeue(item, object(), may_share=False)
            return
        traces = distribute(items, sent_s, result, self._spec.sequence)
        if traces:
            begun_s = sent_s + result.queue_s
            note_batch(traces, begun_s, result.compute_s, rows, self._spec.device, worker.number)

    def _length_of(self, items: list[BatchItem]) -> float:
        parts = [item.part for item in items]
        tokens = sum(each.rows * each.length for each in parts)
        longest, rows = max(each.length for each in parts), sum(each.rows for each in parts)
        return self._limits.length_of(longest, rows, tokens)

    def _note_learned(self, spec: ModelSpec | None, is_over: bool) -> None:
        """Serve by the spec that requests have shown."""
        if spec is not None:
            self._spec = spec
            for worker in self._workers:
                worker.model.spec = spec
        if is_over:
            self._learner = None
        self._wake()

    def _split_requests(self, requests: list[Request], error: OutOfMemory) -> None:
        """Split a batch of whole requests that did not fit on the loop; its parts run on the workers."""
        items = []
        for request in requests:
            signature = request.signature
            progress = Progress(1, iter(()), signature.rows)
            self._queue.track(request, progress)
            items.append(BatchItem(request, progress, Part(request.batch, 0, signature.rows, signature.length)))
        self._split(items, error)

    def _split(self, items: list[BatchItem], error: OutOfMemory) -> None:
        """Run the halves of a batch that did not fit. The caller of a single row that does not fit gets the error."""
        parts = self._splitter.split(items, self._length_of(items), error)
        if not parts:
            items[0].request.fail(error)
        for half in parts:
            group = object()
            for item in half:
                self._queue.requeue(item, group, may_share=item.request.signature.shares)
        self._wake()

    def _fail_waiting(self, error: Exception) -> None:
        if self._inline is not None:
            self._inline.abort(error)
        self._queue.fail_all(error)
