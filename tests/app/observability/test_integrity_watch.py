"""The look at what was lent, while nothing is under way."""

import numpy as np
from structlog.testing import capture_logs

from app.observability.integrity_watch import IntegrityWatch
from memory.settings import MemorySettings
from memory.tensor_pool import TensorPool


def test_what_is_wrong_is_an_error_in_the_log_and_counted() -> None:
    pool = TensorPool(MemorySettings())
    watch = IntegrityWatch(lambda: True, [pool.check_integrity])
    with capture_logs() as logs:
        watch.look()
        assert (watch.failures, logs) == (0, [])
        lease = pool.lease((1024,), np.dtype(np.float32))
        watch.look()
    assert watch.failures == 1
    [error] = logs
    assert (error["log_level"], error["event"]) == ("error", "integrity check failed")
    assert "1 leases of" in error["reason"]
    lease.release()
    watch.look()
    assert watch.failures == 1


def test_nothing_is_looked_at_while_something_is_under_way() -> None:
    pool = TensorPool(MemorySettings())
    is_idle = False
    watch = IntegrityWatch(lambda: is_idle, [pool.check_integrity])
    with pool.lease((1024,), np.dtype(np.float32)), capture_logs():
        watch.look()
        assert watch.failures == 0
        is_idle = True
        watch.look()
        assert watch.failures == 1


def test_what_only_the_collector_finds_is_no_leak() -> None:
    pool = TensorPool(MemorySettings())
    watch = IntegrityWatch(lambda: True, [pool.check_integrity])
    circle: list[object] = [pool.lease((1024,), np.dtype(np.float32)).array]
    circle.append(circle)
    del circle
    watch.look()
    assert watch.failures == 0
