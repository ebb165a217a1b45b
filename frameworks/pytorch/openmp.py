"""OpenMP's threads: every thread that computes has some of its own, and those of one that rests slow down the others'.

GNU OpenMP counts them all. Where they are more than the CPUs it puts those of every model to sleep at each barrier,
also when the others sleep already: beside an encoder that nobody asks, a step of a language model takes three times as
long (1.4 and 4.4 ms, 12.6 and 27 ms on two cores).
"""

import ctypes
import sys
from functools import cache
from pathlib import Path

import torch

_SOFT_PAUSE = 1


def let_threads_go() -> None:
    """Ends the OpenMP threads that wait for the calling thread. Its next product makes them anew, in half a
    millisecond.
    """
    library = _library()
    if library is not None:
        library.omp_pause_resource_all(_SOFT_PAUSE)


@cache
def _library() -> ctypes.CDLL | None:
    """In which torch's own OpenMP is found; None where it is no GNU OpenMP, which alone counts like that."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if sys.platform != "linux" or not path.exists():
        return None
    library = ctypes.CDLL(str(path))
    # The second name is in no other OpenMP.
    return library if hasattr(library, "omp_pause_resource_all") and hasattr(library, "GOMP_parallel") else None
