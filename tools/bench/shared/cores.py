"""Divide the cores: the lowest for the servers, the highest for the load."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

ALL_CORES = frozenset(os.sched_getaffinity(0))
SERVER_CORES = frozenset({min(ALL_CORES)})
LOAD_CORES = frozenset({max(ALL_CORES)})


@contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """Pin this thread and the processes that it starts to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
