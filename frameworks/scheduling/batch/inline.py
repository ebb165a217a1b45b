"""Runs so short that handing them to a thread and back would cost more than they do: on the event loop itself."""

import asyncio
import time
from collections.abc import Callable, Hashable

from frameworks.batches.rows import BatchSignature, follow_rows, merge, split_outputs
from frameworks.errors import InvalidInput, ModelFailed, OutOfMemory
from frameworks.scheduling.batch.ceiling import BatchCeiling
from frameworks.scheduling.batch.request import BatchCounts, BatchItem, Request, whole
from frameworks.scheduling.batch.worker import BatchResult, BatchWorker, without_frames

LIGHT_S = 0.0003
"""A run shorter than this is light: about what a hand-over costs. It runs on the event loop."""

# Runs on the loop that took this many times LIGHT_S, one after the other, until the shape is heavy for good: then
# something else than the shape settles how long it takes.
_HEAVY_FACTOR = 10
_HEAVY_RUNS = 3
# Shapes come from callers: more than so many are not kept apart.
_MOST_SHAPES = 256
# So long the runs of one round may hold the loop; those that are left go in the next.
_LONGEST_ROUND_S = 0.002


class InlinePolicy:
    """Learned from the quickest run of each shape, by its CPU time."""

    def __init__(self) -> None:
        self._quickest: dict[Hashable, tuple[int, float]] = {}
        self._heavy_runs: dict[Hashable, int] = {}

    def most_rows(self, shape: Hashable) -> int:
        """How many rows of this shape may run on the loop at once; 0: none."""
        seen = self._quickest.get(shape)
        if seen is None:
            return 0
        rows, seconds = seen
        return int(rows * LIGHT_S / seconds) or int(seconds < LIGHT_S)

    def learn(self, shape: Hashable, rows: int, seconds: float) -> None:
        """Of a run of so many rows, wherever it ran: its CPU seconds."""
        seen = self._quickest.get(shape)
        if seen is not None and seconds * seen[0] >= seen[1] * rows:
            return
        if seen is None and len(self._quickest) >= _MOST_SHAPES:
            self._quickest.clear()
            self._heavy_runs.clear()
        if self._heavy_runs.get(shape, 0) < _HEAVY_RUNS:
            self._quickest[shape] = (rows, max(seconds, 1e-9))

    def watch(self, shape: Hashable, seconds: float) -> None:
        """Of a run on the loop, its CPU seconds: whether it was light after all."""
        if seconds < _HEAVY_FACTOR * LIGHT_S:
            self._heavy_runs.pop(shape, None)
            return
        self._heavy_runs[shape] = self._heavy_runs.get(shape, 0) + 1
        if self._heavy_runs[shape] >= _HEAVY_RUNS:
            self._quickest.pop(shape, None)


class InlineExecutor:
    """Gathers what comes in one round of the loop and runs it at its end, together where the shapes allow it.

    Stages that stay together are quicker: all requests are decoded, then run, then encoded, and each finds its code
    and tables in the caches.
    """

    def __init__(
        self,
        max_rows: int,
        idle_worker: Callable[[], BatchWorker | None],
        enter_line: Callable[[Request], None],
        split: Callable[[list[BatchItem], OutOfMemory], None],
        ceiling: BatchCeiling,
        counts: BatchCounts,
    ) -> None:
        """`idle_worker`: an instance that nothing else uses or waits for. `enter_line`: the way of all other requests;
        `split`: of those that did not fit together, on their way through the line.
        """
        self.runs = InlinePolicy()
        self._max_rows = max_rows
        self._idle_worker = idle_worker
        self._enter_line = enter_line
        self._split = split
        self._ceiling = ceiling
        self._counts = counts
        self._gathered: list[Request] = []
        # One caller that asks again and again is answered at once. Another one in the same round ends that: several are
        # quicker together.
        self._comes_alone = False
        self._answered_at_once = 0
        self._loop = asyncio.get_running_loop()
        self._round: asyncio.Handle | None = None

    def takes(self, request: Request) -> bool:
        """Takes a request for this round, if a run of it is light."""
        signature = request.signature
        if signature.rows > self._most_rows(signature):
            return False
        worker = self._idle_worker() if self._comes_alone and self._round is None else None
        if worker is not None:
            self._answered_at_once = 1
            self._run(worker, [request])
        else:
            self._gathered.append(request)
        if self._round is None:
            self._round = self._loop.call_soon(self._run_all)
        return True

    def abort(self, error: Exception) -> None:
        """Fails all who wait for the round's end."""
        for request in self._gathered:
            request.fail(error)

    def _run_all(self) -> None:
        self._round = None
        requests = [request for request in self._gathered if not request.future.done()]
        self._comes_alone = self._answered_at_once + len(self._gathered) <= 1
        self._answered_at_once = 0
        self._gathered = []
        worker = self._idle_worker()
        if worker is None:
            for request in requests:
                self._enter_line(request)
            return
        until_s = time.perf_counter() + _LONGEST_ROUND_S
        if len(requests) > self._max_rows:
            requests.sort(key=lambda request: request.priority)
        while requests:
            together, requests = self._first_batch(requests)
            self._run(worker, together)
            if requests and time.perf_counter() > until_s:
                self._gathered = requests
                self._round = self._loop.call_soon(self._run_all)
                return

    def _first_batch(self, requests: list[Request]) -> tuple[list[Request], list[Request]]:
        """The first request with those that may share its run, and the others."""
        first = requests[0].signature
        if not first.shares:
            return requests[:1], requests[1:]
        room = self._most_rows(first) - first.rows
        together, others = [requests[0]], []
        for request in requests[1:]:
            signature = request.signature
            if signature.rows <= room and signature.shares and signature.shape == first.shape:
                together.append(request)
                room -= signature.rows
            else:
                others.append(request)
        return together, others

    def _run(self, worker: BatchWorker, requests: list[Request]) -> None:
        counts = [request.signature.rows for request in requests]
        started_s, thread_started_s = time.perf_counter(), time.thread_time()
        try:
            outputs = worker.infer_inline(merge([request.batch for request in requests]))
            compute_s, thread_s = time.perf_counter() - started_s, time.thread_time() - thread_started_s
            # How many rows a graph gives may depend on what is in them, which its trial did not show.
            shares = split_outputs(outputs, counts) if len(counts) == 1 or follow_rows(outputs, sum(counts)) else None
            failure: Exception | None = None
        except (OutOfMemory, MemoryError) as error:
            shares, failure = None, without_frames(error)
        except Exception as error:  # noqa: BLE001 - handed to the callers
            shares, failure = None, error
        except BaseException as error:  # noqa: BLE001
            # A SystemExit handed to a caller would end the loop, a CancelledError look as if the caller had been.
            shares, failure = None, ModelFailed(f"the model raised {type(error).__name__}")
        if isinstance(failure, OutOfMemory):
            self._split([whole(request) for request in requests], failure)
        elif shares is None and len(requests) > 1 and isinstance(failure, InvalidInput | None):
            # One caller's rows are no reason to fail the others': each by itself.
            for request in requests:
                self._run(worker, [request])
        elif shares is None:
            assert failure is not None
            for request in requests:
                request.fail(failure)
        else:
            self._counts.ran(sum(counts), compute_s)
            self._learn(requests[0].signature, sum(counts), thread_s)
            for request, outputs in zip(requests, shares, strict=True):
                request.begin()
                request.future.set_result(BatchResult(outputs, started_s - request.arrived_s, compute_s))

    def _most_rows(self, signature: BatchSignature) -> int:
        most = min(self._max_rows, self.runs.most_rows(signature.shape))
        size = self._ceiling.size
        return most if size is None else min(most, max(1, size // signature.length))

    def _learn(self, signature: BatchSignature, rows: int, seconds: float) -> None:
        self.runs.learn(signature.shape, rows, seconds)
        self.runs.watch(signature.shape, seconds)
        if self._ceiling.size is not None:
            self._ceiling.accepted(rows * signature.length)
