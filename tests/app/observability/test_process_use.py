"""CPU time and memory of the processes of a server."""

import os
import subprocess
import sys

from app.observability.process_use import ProcessMeter, Use
from memory.host import ProcessTotals, process_totals

OWN = os.getpid()


def test_use_is_that_since_last_reading() -> None:
    found: dict[int, ProcessTotals] = {OWN: ProcessTotals(10.0, 500, 100), 1: ProcessTotals(2.0, 300, 200)}
    meter = ProcessMeter(lambda: [1], list, found.get)
    found |= {OWN: ProcessTotals(11.0, 600, 100), 1: ProcessTotals(5.0, 300, 200)}
    use = meter.read(2.0)
    # The pages that the worker shares are part of the first process.
    assert use.server == Use(2.0, 700)
    assert use.engines is None


def test_engine_with_reused_id_counts_from_zero() -> None:
    found: dict[int, ProcessTotals] = {OWN: ProcessTotals(1.0, 500, 0), 7: ProcessTotals(9.0, 50, 20)}
    meter = ProcessMeter(engines=lambda: [7, 8], measure=found.get)
    found[7] = ProcessTotals(3.0, 60, 20)
    use = meter.read(2.0)
    assert (use.server, use.engines) == (Use(0.0, 500), Use(1.5, 60))
    del found[7]
    assert meter.read(2.0).engines == Use(0.0, 0)


def test_process_totals_are_those_of_process() -> None:
    found = process_totals(OWN)
    assert found is not None
    assert found.cpu_s > 0
    assert found.resident_bytes > found.shared_bytes
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_totals(ended.pid) is None
