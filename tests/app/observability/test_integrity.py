"""Integrity checks of leased memory."""

import numpy as np
from structlog.testing import capture_logs

from app.observability.integrity import IntegrityMonitor
from memory.settings import MemorySettings
from memory.tensor_pool import TensorPool


def test_monitor_failed_check_is_logged_and_counted() -> None:
    pool = TensorPool(MemorySettings())
    monitor = IntegrityMonitor(lambda: True, [pool.check_integrity])
    with capture_logs() as logs:
        monitor.check_if_idle()
        assert (monitor.failures, logs) == (0, [])
        lease = pool.lease((1024,), np.dtype(np.float32))
        monitor.check_if_idle()
    assert monitor.failures == 1
    [error] = logs
    assert (error["log_level"], error["event"]) == ("error", "integrity check failed")
    assert "1 leases of" in error["reason"]
    lease.release()
    monitor.check_if_idle()
    assert monitor.failures == 1


def test_monitor_skips_checks_while_busy() -> None:
    pool = TensorPool(MemorySettings())
    is_idle = False
    monitor = IntegrityMonitor(lambda: is_idle, [pool.check_integrity])
    with pool.lease((1024,), np.dtype(np.float32)), capture_logs():
        monitor.check_if_idle()
        assert monitor.failures == 0
        is_idle = True
        monitor.check_if_idle()
        assert monitor.failures == 1


def test_monitor_check_while_busy_can_be_forced() -> None:
    pool = TensorPool(MemorySettings())
    monitor = IntegrityMonitor(lambda: False, [])
    with pool.lease((1024,), np.dtype(np.float32)), capture_logs():
        monitor.check(pool.check_integrity)
    assert monitor.failures == 1


def test_monitor_ignores_lease_in_reference_cycle() -> None:
    pool = TensorPool(MemorySettings())
    monitor = IntegrityMonitor(lambda: True, [pool.check_integrity])
    cycle: list[object] = [pool.lease((1024,), np.dtype(np.float32)).array]
    cycle.append(cycle)
    del cycle
    monitor.check_if_idle()
    assert monitor.failures == 0
