"""`python -m tests.support.limit_workers TEST`: fork processes that share limits, and print what they did as JSON.

Each test is a function of this module. The events of a process are (time in ns, change) pairs: a change is written
after it was granted and before it is given back. So their sum over all processes is never above the true sum.
"""

import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from app.auth.errors import QuotaExceeded
from app.auth.quotas import LimitedPermit, TenantLimits
from app.auth.token_bucket import SharedTokenBucket
from app.config.auth_settings import TenantSettings
from frameworks.core.errors import Overloaded
from frameworks.core.tenants import Tenant
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.scheduling.shared_limits import SharedByteLimit, SharedLimits, SharedRequestLimit
from memory.shared_pairs import SharedPairs

WORKERS = 4
TRIES = 8000
Events = list[tuple[int, int]]


def requests() -> dict[str, object]:
    """All processes want more places than there are, at a server with a bound of the queue and of requests."""
    shared = SharedLimits(WORKERS, [])

    def worker(number: int) -> Events:
        shared.use(number)
        server = SharedRequestLimit(shared.server(), "the server", 60, 100)
        pick, permits, events = random.Random(number), list[Permit](), Events()
        model = SharedRequestLimit(shared.model(1), "the model", None, None)
        for _ in range(TRIES):
            if pick.random() < 0.6:
                try:
                    permits.append(Permit(server))
                    events.append((time.monotonic_ns(), 1))
                    permits[-1].queue(model)
                except Overloaded:
                    continue
            elif permits:
                events.append((time.monotonic_ns(), -1))
                permits.pop(pick.randrange(len(permits))).release()
            if permits:
                permits[pick.randrange(len(permits))].begin()
        for permit in permits:
            events.append((time.monotonic_ns(), -1))
            permit.release()
        return events

    assert shared.allocate_row() == 1
    peak = _peak(_run(worker))
    server = SharedRequestLimit(shared.server(), "the server", 60, 100)
    return {"peak": peak, "rest": _at_rest(shared), "inflight": server.inflight, "waiting": server.waiting}


def buffered_bytes() -> dict[str, object]:
    """All processes want more bytes than there are."""
    shared = SharedLimits(WORKERS, [])

    def worker(number: int) -> Events:
        shared.use(number)
        limit = SharedByteLimit(shared.server(), 100_000)
        pick, holds, events = random.Random(number), [limit.hold() for _ in range(6)], Events()
        for _ in range(TRIES):
            hold = holds[pick.randrange(len(holds))]
            more = pick.randrange(1, 9000)
            if pick.random() < 0.9:
                if hold.try_grow(more):
                    events.append((time.monotonic_ns(), more))
            else:
                events.append((time.monotonic_ns(), -hold.held_bytes))
                hold.resize(0)
        for hold in holds:
            events.append((time.monotonic_ns(), -hold.held_bytes))
            hold.release()
        return events

    return {"peak": _peak(_run(worker)), "rest": _at_rest(shared)}


def rate() -> dict[str, object]:
    """Three processes use up a bucket; the clock advances a second whenever it is empty."""
    shared = SharedLimits(3, ["search"])
    now_s = memoryview(mmap.mmap(-1, 8)).cast("d")
    per_minute, seconds = 6000, 60

    def clock() -> float:
        return now_s[0]

    def worker(number: int) -> Events:
        shared.use(number)
        bucket = SharedTokenBucket(per_minute, shared.tenant("search").requests, clock)
        events = Events()
        while now_s[0] < seconds:
            if not bucket.wait_s() and not bucket.take(1):
                events.append((int(now_s[0]), 1))
        return events

    def advance() -> None:
        bucket = SharedTokenBucket(per_minute, shared.tenant("search").requests, clock)
        while now_s[0] < seconds:
            while not bucket.wait_s():
                time.sleep(0.0002)
            now_s[0] += 1

    events = _run(worker, 3, advance)
    return {"granted": [len(each) for each in events], "expected": per_minute / 60 * (seconds - 1) + per_minute / 10}


def kills() -> dict[str, object]:
    """Processes that use every limit of a tenant are killed at random moments and replaced."""
    shared = SharedLimits(WORKERS, ["search"])
    settings = TenantSettings(
        name="search", max_concurrent_requests=100, max_buffered_bytes=50_000, requests_per_minute=10**9
    )

    def limits_here() -> tuple[SharedRequestLimit, TenantLimits]:
        server_bytes: ByteLimit = SharedByteLimit(shared.server(), 10**6)
        server = SharedRequestLimit(shared.server(), "the server", 50, 200, byte_limit=server_bytes)
        return server, TenantLimits(settings, server_bytes, share=shared.tenant("search"))

    def use_forever(number: int) -> None:
        shared.use(number)
        server, limits = limits_here()
        permits, pick = list[Permit](), random.Random()
        while os.getppid() == parent:
            try:
                permits.append(LimitedPermit(server, Tenant("search"), limits))
                permits[-1].hold_bytes().try_grow(1000)
            except (Overloaded, QuotaExceeded):
                if permits:
                    permits.pop(pick.randrange(len(permits))).release()

    pick, parent = random.Random(1), os.getpid()
    pids = {number: _fork(partial(use_forever, number)) for number in range(WORKERS)}
    for _ in range(60):
        time.sleep(pick.random() * 0.02)
        number = pick.randrange(WORKERS)
        _kill(pids[number])
        shared.release(number)
        pids[number] = _fork(partial(use_forever, number))
    for number, pid in pids.items():
        _kill(pid)
        shared.release(number)
    server, limits = limits_here()
    assert limits.requests is not None
    limits.requests.charge(1)  # waits forever for a lock that a dead process holds
    return {"rest": _at_rest(shared), "inflight": server.inflight, "left": limits.requests.left()}


def held_lock() -> dict[str, object]:
    """A process is killed while it holds the lock of a bucket, after it wrote one half of a copy."""
    pair = SharedPairs(1).pair(0)
    with pair:
        pair.write(1.0, 2.0)
    ready = memoryview(mmap.mmap(-1, 1))

    def hold() -> None:
        with pair:
            pair._values[1] = 5.0
            ready[0] = 1
            signal.pause()

    pid = _fork(hold)
    while not ready[0]:
        time.sleep(0.0001)
    _kill(pid)
    before = pair.read()
    with pair:
        pair.write(3.0, 4.0)
    return {"before": before, "after": pair.read()}


def _run(
    worker: Callable[[int], Events], workers: int = WORKERS, meanwhile: Callable[[], None] = lambda: None
) -> list[Events]:
    """Run the worker in processes that start at once, and return the events of each."""
    with TemporaryDirectory() as folder:
        start = memoryview(mmap.mmap(-1, 1))

        def write(number: int) -> None:
            while not start[0]:
                time.sleep(0.0001)
            Path(folder, str(number)).write_text(json.dumps(worker(number)))

        pids = [_fork(partial(write, number)) for number in range(workers)]
        start[0] = 1
        meanwhile()
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0
        return [json.loads(Path(folder, str(number)).read_text()) for number in range(workers)]


def _fork(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        run()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _peak(events: list[Events]) -> int:
    """Return the largest sum of changes at any time."""
    merged = np.array(sorted(chain(*events)), np.int64)
    return int(merged[:, 1].cumsum().max())


def _at_rest(shared: SharedLimits) -> bool:
    """Return whether every cell is zero."""
    return not shared._counters._lines().any()


if __name__ == "__main__":
    TESTS = (requests, buffered_bytes, rate, kills, held_lock)
    print(json.dumps({test.__name__: test for test in TESTS}[sys.argv[1]]()))
