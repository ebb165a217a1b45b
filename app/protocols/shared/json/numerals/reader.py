"""Read arrays of numbers by the compiled function of `kernel`, once it is loaded in the background."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from app.protocols.shared.json.numerals.tables import (
    COUNT,
    END,
    FLOAT32,
    FLOAT64,
    INT64,
    KIND,
    LIMIT,
    NUM_ARGUMENTS,
    OUTPUT,
    RANK,
    SHIFT,
    SIZES,
    TABLES,
    TEXT,
    make_tables,
)
from frameworks.core.machine_code.object_code import NoMachineCode, is_available, link
from frameworks.types import Array

log = structlog.get_logger(__name__)

_KERNEL = "app.protocols.shared.json.numerals.kernel"
_KINDS = {np.dtype(np.float32): FLOAT32, np.dtype(np.float64): FLOAT64, np.dtype(np.int64): INT64}
WORTH_BYTES = 4 * 1024 * 1024
"""The function takes 45 MB, and 0.1 s of a CPU, so it is not loaded for a few numbers. In bytes of JSON."""
_COPIED_BYTES = 128
_READ_BEYOND_BYTES = 64
"""A number that the function accepts is shorter, with the words that it reads."""


class NumberReader:
    """Reads arrays. One of a process. Any thread may call it; a race of two counts loses bytes, nothing else."""

    def __init__(self, worth_bytes: int = WORTH_BYTES) -> None:
        self._left_bytes = worth_bytes
        self._folder: Path | None = None
        self._function: Callable[[int], None] | None = None
        self._tables = np.empty(0, np.uint64)
        self._thread: threading.Thread | None = None

    def set_cache_folder(self, folder: Path) -> None:
        """Keep compiled code there, unless NUMBA_CACHE_DIR names another folder. Nothing is compiled before."""
        self._folder = Path(os.environ.get("NUMBA_CACHE_DIR") or folder)

    def is_ready(self, num_bytes: int) -> bool:
        """Whether arrays can be read. `num_bytes`: of the body; with enough of them, a thread loads the function."""
        if self._function is not None:
            return True
        self._left_bytes -= num_bytes
        if self._left_bytes <= 0 and self._thread is None and self._folder is not None:
            self._thread = threading.Thread(target=self._load, args=(self._folder,), name="json-kernel", daemon=True)
            self._thread.start()
        return False

    def wait(self) -> bool:
        """Wait for the thread, if there is one; return whether the function is loaded."""
        if self._thread is not None:
            self._thread.join()
        return self._function is not None

    def _load(self, folder: Path) -> None:
        if not is_available():
            return
        try:
            function = link(_KERNEL, folder)
        except NoMachineCode as error:
            log.warning("numbers in JSON are read without compiled code", error=str(error))
            return
        self._tables = make_tables()
        self._function = function

    def read(self, body: bytes, start: int, end: int, dtype: np.dtype[Any]) -> tuple[Array, tuple[int, ...]] | None:
        """Return the numbers of the array from its bracket at `start` to that at `end`, flat, and its shape.

        Float64, float32 and int64. None for each text that is no such array, and for numbers that it does not read.
        """
        kind = _KINDS.get(dtype)
        if kind is None or self._function is None:
            return None
        text = np.frombuffer(body, np.uint8)
        copied = min(len(body), _COPIED_BYTES)
        last = np.zeros(copied + _READ_BEYOND_BYTES, np.uint8)
        last[:copied] = text[-copied:]
        # A number and its comma take two bytes.
        numbers = np.empty((len(body) - start) // 2 + 1, dtype)
        arguments = np.zeros(NUM_ARGUMENTS, np.int64)
        address = text.ctypes.data
        arguments[TEXT] = address + start
        arguments[LIMIT] = limit = address + len(body) - copied
        arguments[SHIFT] = last.ctypes.data - limit
        arguments[OUTPUT], arguments[KIND], arguments[TABLES] = numbers.ctypes.data, kind, self._tables.ctypes.data
        arguments[COUNT] = -1
        arguments[SIZES:] = -1
        self._function(arguments.ctypes.data)
        count, rank = int(arguments[COUNT]), int(arguments[RANK])
        if count < 0 or arguments[END] != address + end + 1:
            return None
        numbers = numbers[:count].copy()  # the rest of the memory is free again
        return numbers, tuple(map(int, arguments[SIZES + 1 : SIZES + 1 + rank]))


reader = NumberReader()
"""The one of this process."""
