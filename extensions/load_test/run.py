"""Run a load: a closed loop of callers, or an open loop whose send times are planned."""

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass

from extensions.load_test.arrivals import Schedule, Timer, poisson, steady
from extensions.load_test.client import Client, TargetCaller
from extensions.load_test.inputs.bodies import RequestContent
from extensions.load_test.results.tally import Tally

MAX_BACKLOG = 100_000
"""Planned requests that wait for a connection. Further ones are counted as not sent."""

_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One of `rate` (requests per second) and `concurrency` (callers) is set. All else is a bound or an option."""

    rate: float | None
    concurrency: int | None
    is_poisson: bool = True
    connections: int = 256
    duration_s: float | None = 10.0
    requests: int | None = None
    warmup_s: float = 0.0
    timeout_s: float = 60.0
    seed: int = 0


class LoadRun:
    """One run. `tally` is complete when `go` returns; until then it holds the result so far."""

    def __init__(self, plan: LoadPlan, client: Client, bodies: list[RequestContent]) -> None:
        self._plan = plan
        self._client = client
        # In random order: callers in step would send the same ones together.
        self._bodies = random.Random(plan.seed).sample(bodies, len(bodies))  # noqa: S311 - no secret
        self._number = 0
        self._taken = 0
        self._is_planned = False
        self._error: BaseException | None = None
        self._ended = asyncio.Event()
        self._due: deque[float] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._schedule: Schedule | None = None
        self._timer: Timer | None = None
        self._tick_s = 0.0
        self._end_s = float("inf")
        self.connections = client.counts
        self.ended_by = ""
        """duration, requests or interrupt; "" until the end."""
        self.in_flight = 0
        self.unanswered = 0
        """Requests in flight when the run was interrupted."""
        self.tally = Tally(time.monotonic(), time.process_time)

    @property
    def backlog(self) -> int:
        """Planned requests that wait for a connection."""
        return len(self._due)

    @property
    def sent(self) -> int:
        """Requests that were sent, those of the warm-up not included."""
        return self.tally.succeeded + self.tally.failed + self.unanswered

    async def go(self) -> None:
        """Send until the plan ends, and wait for the responses to what was sent."""
        plan = self._plan
        start_s = time.monotonic()
        self.tally = Tally(start_s + plan.warmup_s, time.process_time)
        loop = asyncio.get_running_loop()
        if plan.duration_s is not None:
            self._end_s = self.tally.start_s + plan.duration_s
        warm_up = loop.call_later(plan.warmup_s, self._end_warm_up) if plan.warmup_s else None
        self._timer = Timer(loop, self._expire)
        try:
            if plan.rate is not None:
                arrivals = poisson(plan.rate, plan.seed) if plan.is_poisson else steady(plan.rate)
                self._schedule = Schedule(arrivals, start_s)
            else:
                for _ in range(plan.concurrency or 1):
                    self._add_worker()
            self._tick_s = start_s
            self._expire()
            await self._ended.wait()
            while self._workers:
                await asyncio.wait(self._workers)
            if self._error is not None:
                raise self._error
        finally:
            if warm_up is not None:
                warm_up.cancel()
            self._timer.close()
            for worker in self._workers:
                worker.cancel()

    def interrupt(self) -> None:
        """End at once, without the responses to requests in flight."""
        self.unanswered = self.in_flight
        self._end("interrupt")
        for worker in self._workers:
            worker.cancel()

    def _end_warm_up(self) -> None:
        # CPU time and lateness count from here on, as everything else.
        self.tally = Tally(self.tally.start_s, time.process_time)

    def _end(self, reason: str) -> None:
        self.ended_by = self.ended_by or reason
        self.tally.not_sent += len(self._due)
        self._due.clear()
        self._ended.set()
        while self._idle:
            _wake(self._idle.popleft())

    def _expire(self) -> None:
        """Release what is due, and set the timer for the next."""
        if self._timer is None or self._ended.is_set():
            return
        now_s = time.monotonic()
        if self._schedule is not None and not self._is_planned:
            # Also at the end: what fell due since the last call was planned.
            self._release(self._schedule, now_s)
        if now_s >= self._end_s:
            self._end("requests" if self._is_planned else "duration")
            return
        if self._schedule is not None:
            next_s = self._end_s if self._is_planned else self._schedule.next_s
        else:
            self.tally.lateness.record(max(0.0, now_s - self._tick_s))
            next_s = self._tick_s = now_s + _TICK_S
        if not self._ended.is_set():
            self._timer.set(min(next_s, self._end_s))

    def _release(self, schedule: Schedule, now_s: float) -> None:
        for planned_s in schedule.due(now_s, self._end_s):
            if self._is_enough(planned_s):
                # Those that wait for a connection are still sent, for a limited time.
                self._is_planned = True
                self._end_s = min(self._end_s, now_s + self._plan.timeout_s)
                self._end_if_sent()
                return
            self.tally.lateness.record(now_s - planned_s)
            if len(self._due) >= MAX_BACKLOG:
                self.tally.not_sent += 1
                continue
            self._due.append(planned_s)
            if self._idle:
                _wake(self._idle.popleft())
            elif len(self._workers) < self._plan.connections and not self._client.back_off.wait_s(now_s):
                self._add_worker()

    def _is_enough(self, planned_s: float) -> bool:
        """Count a request, or report that the bound is reached. Requests of the warm-up are not counted."""
        if self._plan.requests is None or planned_s < self.tally.start_s:
            return False
        if self._taken == self._plan.requests:
            return True
        self._taken += 1
        return False

    def _end_if_sent(self) -> None:
        if self._is_planned and not self._due:
            self._end("requests")

    def _add_worker(self) -> None:
        worker = asyncio.get_running_loop().create_task(self._work())
        self._workers.add(worker)
        worker.add_done_callback(self._remove_worker)

    def _remove_worker(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and worker.exception() is not None:
            self._error = worker.exception()
            self.interrupt()

    async def _work(self) -> None:
        caller = self._client.caller(self._pause)
        try:
            while True:
                await caller.wait()
                planned_s = await self._take()
                if planned_s is None:
                    return
                await self._send(caller, planned_s)
        finally:
            await caller.close()

    async def _take(self) -> float | None:
        """Return the planned time of the next request, None at the end."""
        if self._schedule is None:
            now_s = time.monotonic()
            if now_s >= self._end_s:
                self._end("duration")
            elif not self._ended.is_set() and self._is_enough(now_s):
                self._end("requests")
            return None if self._ended.is_set() else now_s
        while not self._ended.is_set():
            if self._due:
                planned_s = self._due.popleft()
                self._end_if_sent()
                return planned_s
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
        return None

    async def _send(self, caller: TargetCaller, planned_s: float) -> None:
        body = self._bodies[self._number % len(self._bodies)]
        self._number += 1
        self.in_flight += 1
        try:
            outcome = await caller.run(body, planned_s, is_delayed=self._schedule is None)
        finally:
            self.in_flight -= 1
        self.tally.record(outcome)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
