"""Let processes that log to one stream write whole lines: a write to a pipe may be split between others."""

import fcntl
import os
import sys
import tempfile
from types import TracebackType


class LogLock:
    """A lock for processes. Create it before they are forked; use it on one thread of each.

    The kernel releases the lock of a process that ends.
    """

    def __init__(self) -> None:
        if sys.platform == "linux":
            self._descriptor = os.memfd_create("roundhouse-log")
        else:
            with tempfile.TemporaryFile() as file:
                self._descriptor = os.dup(file.fileno())

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
