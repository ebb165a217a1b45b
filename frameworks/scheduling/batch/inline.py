"""Run short batches on the event loop, where a hand-over to a thread would cost more than the run."""

import asyncio
import time
from collections.abc import Callable, Hashable

from frameworks.core.errors import InvalidInput, ModelFailed, OutOfMemory
from frameworks.core.fairness import TenantShare
from frameworks.core.timings import RunTrace, Timings, note_batch
from frameworks.scheduling.batch.request import BatchCounts, Outputs, Request
from frameworks.scheduling.batch.splitting import BatchCeiling
from frameworks.scheduling.batch.worker import BatchWorker, for_callers, without_frames
from frameworks.scheduling.merging.rows import BatchSignature, follow_rows, merge, split_outputs
from frameworks.types import Batch

LIGHT_S = 0.0003
"""Longest run that is light: about the cost of handing a batch to a thread and back. Light runs run on the loop."""

# A shape is heavy for good after this many runs in a row on the loop took this many times LIGHT_S: the values then
# decide how long a run takes.
_HEAVY_FACTOR = 10
_HEAVY_RUNS = 3
# Clients choose the shapes: no more than this many are remembered.
_MAX_SHAPES = 256
# Longest time that the runs of one round may block the loop; the others run in the next round.
_LONGEST_ROUND_S = 0.002
# Requests with more elements do not share a run: copying 256 KiB of floats takes as long as the overhead of a run.
_MERGED_ELEMENTS = 64 * 1024


class InlinePolicy:
    """Which shapes are light, learned from the fastest run of each shape by its CPU time."""

    def __init__(self) -> None:
        self._fastest: dict[Hashable, tuple[int, float]] = {}
        self.max_rows: dict[Hashable, int] = {}
        """By shape: how many rows may run on the loop in one batch. A shape that is absent never runs there."""
        self._heavy_runs: dict[Hashable, int] = {}

    def most_rows(self, shape: Hashable) -> int:
        """Return how many rows of this shape may run on the loop in one batch; 0 if none may."""
        return self.max_rows.get(shape, 0)

    def learn(self, shape: Hashable, rows: int, seconds: float) -> None:
        """Record the CPU seconds of a run of this many rows, on any thread."""
        seen = self._fastest.get(shape)
        if seen is not None and seconds * seen[0] >= seen[1] * rows:
            return
        if seen is None and len(self._fastest) >= _MAX_SHAPES:
            self._fastest.clear()
            self.max_rows.clear()
            self._heavy_runs.clear()
        if self._heavy_runs.get(shape, 0) < _HEAVY_RUNS:
            seconds = max(seconds, 1e-9)
            self._fastest[shape] = (rows, seconds)
            self.max_rows[shape] = int(rows * LIGHT_S / seconds) or int(seconds < LIGHT_S)

    def check(self, shape: Hashable, seconds: float) -> None:
        """Record the CPU seconds of a run on the loop. A shape with several heavy runs in a row leaves the loop."""
        if seconds < _HEAVY_FACTOR * LIGHT_S:
            self._heavy_runs.pop(shape, None)
            return
        self._heavy_runs[shape] = self._heavy_runs.get(shape, 0) + 1
        if self._heavy_runs[shape] >= _HEAVY_RUNS:
            self._fastest.pop(shape, None)
            self.max_rows.pop(shape, None)


class InlineExecutor:
    """Collects the requests of one round of the loop and runs them at its end, in one batch if their shapes allow it.

    Equal stages run together: all requests are decoded, then run, then encoded. Each stage finds its code and tables
    in the CPU caches.
    """

    def __init__(
        self,
        max_rows: int,
        idle_worker: Callable[[], BatchWorker | None],
        enqueue: Callable[[Request], None],
        split: Callable[[list[Request], OutOfMemory], None],
        ceiling: BatchCeiling,
        counts: BatchCounts,
    ) -> None:
        """`idle_worker`: a worker that neither runs nor is waited for; None while another tenant uses the device.
        `enqueue`: the path of all other requests; `split`: for requests whose batch did not fit in memory.
        """
        self.policy = InlinePolicy()
        self._max_rows = max_rows
        self._idle_worker = idle_worker
        self._enqueue = enqueue
        self._split = split
        self._ceiling = ceiling
        self._counts = counts
        self._collected: list[Request] = []
        self._has_other_tenants = False
        # A single client that sends one request after the other is answered at once. A second request in the same
        # round ends that, as several requests are faster together.
        self._is_alone = False
        self._answered_at_once = 0
        self._loop = asyncio.get_running_loop()
        self._round: asyncio.Handle | None = None

    @property
    def answers_at_once(self) -> bool:
        """Whether the next light request is alone in its round, as that of the round before was."""
        return self._is_alone and self._round is None

    def compute_now(
        self, batch: Batch, signature: BatchSignature, share: TenantShare, timings: Timings
    ) -> Outputs | None:
        """Run a light batch without a request; None where `answers_at_once` is False or the batch has to be queued.

        Raises the error of the model. A batch that does not fit in memory has to be queued: that may split it.
        """
        worker = self._idle_worker() if self.answers_at_once and self._is_light(signature) else None
        if worker is None:
            return None
        self._answered_at_once = 1
        self._round = self._loop.call_soon(self._run_round)
        started_s, thread_started_s = time.perf_counter(), time.thread_time()
        try:
            outputs = worker.model.infer(batch)
        except BaseException as error:
            failure = _failure_of(error)
            if isinstance(failure, OutOfMemory):
                return None
            raise failure from error
        ended_s, thread_s = time.perf_counter(), time.thread_time() - thread_started_s
        compute_s = ended_s - started_s
        rows = signature.rows
        self._counts.ran(rows, compute_s)
        self._counts.tenant_seconds[share.tenant.name] += compute_s
        self._learn(signature, rows, thread_s)
        timings.computed(started_s, ended_s)
        timings.batch_rows = max(timings.batch_rows, rows)
        if timings.trace is not None:
            note_batch([timings.trace], started_s, compute_s, rows, worker.model.spec.device, worker.number)
        return outputs

    def try_accept(self, request: Request) -> bool:
        """Accept a request for this round, if its run is light."""
        if not self._is_light(request.signature):
            return False
        worker = self._idle_worker() if self._is_alone and self._round is None else None
        if worker is not None:
            self._answered_at_once = 1
            self._run(worker, [request])
        else:
            if self._collected and request.share is not self._collected[-1].share:
                self._has_other_tenants = True
            self._collected.append(request)
        if self._round is None:
            self._round = self._loop.call_soon(self._run_round)
        return True

    def abort(self, error: Exception) -> None:
        """Fail all requests that wait for the end of the round."""
        for request in self._collected:
            request.fail(error)

    def _is_light(self, signature: BatchSignature) -> bool:
        rows, ceiling = signature.rows, self._ceiling.state.size
        if rows > self._max_rows or rows > self.policy.max_rows.get(signature.shape, 0):
            return False
        return ceiling is None or rows <= max(1, ceiling // signature.length)

    def _run_round(self) -> None:
        self._round = None
        if not self._collected:
            self._is_alone, self._answered_at_once = True, 0
            return
        requests = [request for request in self._collected if not request.future.done()]
        self._is_alone = self._answered_at_once + len(self._collected) <= 1
        self._answered_at_once = 0
        self._collected = []
        worker = self._idle_worker()
        if worker is None:
            self._has_other_tenants = False
            for request in requests:
                self._enqueue(request)
            return
        until_s = time.perf_counter() + _LONGEST_ROUND_S
        if len(requests) > self._max_rows:
            requests.sort(key=lambda request: request.priority)
        while requests:
            batch, requests = self._first_batch(requests)
            self._run(worker, batch)
            if requests and time.perf_counter() > until_s:
                self._defer(requests)
                break
        self._has_other_tenants = False

    def _defer(self, requests: list[Request]) -> None:
        """Run the requests in the next round. Those of several tenants are queued, which shares the device fairly."""
        if self._has_other_tenants:
            for request in requests:
                self._enqueue(request)
            return
        self._collected = requests
        self._round = self._loop.call_soon(self._run_round)

    def _first_batch(self, requests: list[Request]) -> tuple[list[Request], list[Request]]:
        """Return the first request with those that may share its batch, and the others."""
        first = requests[0].signature
        if not first.shares or first.rows * first.length > _MERGED_ELEMENTS:
            return requests[:1], requests[1:]
        capacity = self._most_rows(first) - first.rows
        batch, others = [requests[0]], []
        for request in requests[1:]:
            signature = request.signature
            if signature.rows <= capacity and signature.shares and signature.shape == first.shape:
                batch.append(request)
                capacity -= signature.rows
            else:
                others.append(request)
        return batch, others

    def _run(self, worker: BatchWorker, requests: list[Request]) -> None:
        counts = [request.signature.rows for request in requests]
        started_s, thread_started_s = time.perf_counter(), time.thread_time()
        failure: Exception | None = None
        own_outputs: list[Outputs] | None = None
        try:
            outputs = worker.model.infer(merge([request.batch for request in requests]))
            ended_s, thread_s = time.perf_counter(), time.thread_time() - thread_started_s
            compute_s = ended_s - started_s
            # The number of rows that a graph returns may depend on the values, which its trial did not show.
            if len(counts) == 1 or follow_rows(outputs, sum(counts)):
                own_outputs = split_outputs(outputs, counts)
        except BaseException as error:  # noqa: BLE001 - handed to the callers
            failure = _failure_of(error)
        if own_outputs is None:
            self._handle_failure(worker, requests, failure)
            return
        rows = sum(counts)
        self._counts.sizes[rows] += 1
        self._counts.seconds[rows] += compute_s
        if self._has_other_tenants:
            # As shared_costs, without a list and a dict for each run.
            tenant_seconds, row_s = self._counts.tenant_seconds, compute_s / rows
            for request in requests:
                tenant_seconds[request.share.tenant.name] += row_s * request.signature.rows
        else:
            self._counts.tenant_seconds[requests[0].share.tenant.name] += compute_s
        self._learn(requests[0].signature, rows, thread_s)
        traces: list[RunTrace] = []
        for request, own in zip(requests, own_outputs, strict=True):
            request.begin()
            timings = request.timings
            timings.ran(request.arrived_s, started_s, ended_s)
            timings.batch_rows = max(timings.batch_rows, rows)
            if timings.trace is not None:
                traces.append(timings.trace)
            request.future.set_result(own)
        if traces:
            note_batch(traces, started_s, compute_s, rows, worker.model.spec.device, worker.number)

    def _handle_failure(self, worker: BatchWorker, requests: list[Request], failure: Exception | None) -> None:
        """`failure` None: the outputs could not be divided among the requests."""
        if isinstance(failure, OutOfMemory):
            self._split(requests, failure)
        elif len(requests) > 1 and isinstance(failure, InvalidInput | None):
            # The rows of one request must not fail the others: each runs by itself.
            for request in requests:
                self._run(worker, [request])
        else:
            assert failure is not None
            for request in requests:
                request.fail(failure)

    def _most_rows(self, signature: BatchSignature) -> int:
        most = min(self._max_rows, self.policy.most_rows(signature.shape))
        size = self._ceiling.state.size
        return most if size is None else min(most, max(1, size // signature.length))

    def _learn(self, signature: BatchSignature, rows: int, seconds: float) -> None:
        self.policy.learn(signature.shape, rows, seconds)
        self.policy.check(signature.shape, seconds)
        if self._ceiling.state.size is not None:
            self._ceiling.accepted(rows * signature.length)


def _failure_of(error: BaseException) -> Exception:
    """Return the error of a run, for its callers."""
    if isinstance(error, (OutOfMemory, MemoryError)):
        return without_frames(error)
    if isinstance(error, Exception):
        return for_callers(error)
    # A SystemExit on a future would end the loop; a CancelledError would look as if the caller had cancelled.
    return ModelFailed(f"the model raised {type(error).__name__}")
