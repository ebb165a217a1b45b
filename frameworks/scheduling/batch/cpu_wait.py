"""Read how long a thread has waited for a CPU."""

import os
from contextlib import suppress
from types import TracebackType

_FILE = "/proc/thread-self/schedstat"
# Three decimal numbers of at most 20 digits.
_MAX_BYTES = 64


class CpuWait:
    """The seconds that the opening thread was able to run and had no CPU, because others had them.

    On a busy machine the wall time of a run includes them. Batches are chosen by what a run costs without them: else a
    burst of other work decides which batch sizes seem to pay. Only Linux counts them (proc(5), schedstat; with
    CONFIG_SCHED_INFO). Reading costs 2 µs.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> "CpuWait":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def seconds(self) -> float:
        """Return the seconds since the thread began; 0 where the system does not count them."""
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, _MAX_BYTES, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0
