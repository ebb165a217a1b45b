"""Run compiled functions (regions) on the threads of torch's OpenMP."""

import ctypes
from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import call, call_for_int, inlined
from frameworks.pytorch.openmp import parallel_library

THREADS, THREAD_NUMBER, BARRIER, NUM_RESERVED = 0, 1, 2, 3
"""Indices of the arguments of a region: the functions of OpenMP, 0 on one thread. The region's own follow."""

Arguments = np.ndarray[Any, np.dtype[np.int64]]


class Region:
    """A compiled function that all threads run at once. Used by one thread."""

    def __init__(self, address: int, num_arguments: int) -> None:
        """`address`: of a function of one pointer to the arguments, int64. `num_arguments`: of the region's own."""
        library = parallel_library()
        assert library is not None
        self.arguments: Arguments = np.zeros(NUM_RESERVED + num_arguments, dtype=np.int64)
        self._address = ctypes.c_void_p(address)
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self._pointer = ctypes.c_void_p(self.arguments.ctypes.data)
        self._parallel = library.GOMP_parallel
        self._functions = [
            ctypes.cast(each, ctypes.c_void_p).value or 0
            for each in (library.omp_get_num_threads, library.omp_get_thread_num, library.GOMP_barrier)
        ]
        self._threads = 1

    def prepare(self, threads: int) -> None:
        """Set the reserved arguments for a run on so many threads."""
        if threads != self._threads:
            self._threads = threads
            self.arguments[:NUM_RESERVED] = self._functions if threads > 1 else 0

    def run(self, threads: int) -> None:
        """Run the function on so many threads, without the interpreter's lock, and wait for its end."""
        if threads != self._threads:
            self.prepare(threads)
        if threads == 1:
            self._alone(self._pointer)
        else:
            self._parallel(self._address, self._pointer, ctypes.c_uint(threads), ctypes.c_uint(0))


@inlined
def num_threads(arguments: Any) -> int:
    """Return how many threads run the region."""
    return call_for_int(arguments[THREADS]) if arguments[THREADS] else 1


@inlined
def thread_number(arguments: Any) -> int:
    """Return the number of the calling thread in the region."""
    return call_for_int(arguments[THREAD_NUMBER]) if arguments[THREADS] else 0


@inlined
def barrier(arguments: Any) -> None:
    """Wait until all threads of the region are here."""
    if arguments[THREADS]:
        call(arguments[BARRIER])
