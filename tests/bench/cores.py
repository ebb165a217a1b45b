"""Which core the servers have, and which one the load: the lowest and the highest of those this process may use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

ALL_CORES = frozenset(os.sched_getaffinity(0))
SERVER_CORES = frozenset({min(ALL_CORES)})
LOAD_CORES = frozenset({max(ALL_CORES)})


@contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """This thread, and the processes it starts, keep to these cores in the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
