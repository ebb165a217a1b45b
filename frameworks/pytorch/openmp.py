"""Control OpenMP's threads: each computing thread owns some, and those of an idle one slow down the others.

GNU OpenMP counts them all. Where they outnumber the CPUs it puts every model's threads to sleep at each barrier, even
if the others sleep already. Beside an idle encoder a step of a language model takes two to three times as long (1.4
and 4.4 ms, 12.6 and 27 ms on two cores).
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

_SOFT_PAUSE = 1


def release_threads() -> None:
    """End the OpenMP threads of the calling thread. Its next matmul starts new ones, in half a millisecond."""
    library = parallel_library()
    if library is not None:
        library.omp_pause_resource_all(_SOFT_PAUSE)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Compute on the calling thread alone within the block.

    A microsecond's work split over threads waits milliseconds for a core that is busy.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def alone_beside_steps() -> Iterator[None]:
    """As `single_threaded`, for a thread beside others that compute: torch would set MKL's count for all of them."""
    library = parallel_library()
    if library is None:
        with single_threaded():
            yield
        return
    # The first call of a thread gives it torch's thread count, so it comes before the change.
    threads = torch.get_num_threads()
    library.omp_set_num_threads(1)
    try:
        with single_threaded_mkl():
            yield
    finally:
        library.omp_set_num_threads(threads)


@contextmanager
def single_threaded_mkl() -> Iterator[None]:
    """Compute MKL's GEMMs on the calling thread alone within the block: those of float32, where torch has MKL.

    Takes two microseconds. `single_threaded` takes more, as torch forgets kernels with each change of its own count.
    """
    set_threads = _mkl_setter()
    if set_threads is None:
        yield
        return
    threads = set_threads(1)
    try:
        yield
    finally:
        set_threads(threads)


@cache
def parallel_library() -> ctypes.CDLL | None:
    """Return the library that holds torch's OpenMP, or None where it is not GNU OpenMP."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if sys.platform != "linux" or not path.exists():
        return None
    library = ctypes.CDLL(str(path))
    # The second name is in no other OpenMP.
    return library if hasattr(library, "omp_pause_resource_all") and hasattr(library, "GOMP_parallel") else None


@cache
def _mkl_setter() -> Callable[[int], int] | None:
    """Return MKL's function that sets the calling thread's number of threads and returns the last one."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if sys.platform != "linux" or not path.exists():
        return None
    # This kind of library keeps the interpreter's lock, which another thread would hold for long.
    library = ctypes.PyDLL(str(path))
    return library.MKL_Set_Num_Threads_Local if hasattr(library, "MKL_Set_Num_Threads_Local") else None
