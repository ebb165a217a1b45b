"""The CPU's vectors of float32."""

import importlib.util
import platform
from functools import cache

import torch

from frameworks.pytorch.openmp import parallel_library

_LANES = {"AVX512": 16, "AVX2": 8}
_ARM_LANES = 4


@cache
def lanes() -> int:
    """Return how many float32 a vector holds; 0 where nothing can be compiled for this CPU.

    torch's own choice is taken, so its variable masks instruction sets here too. Products need the threads that torch
    has: those of GNU OpenMP.
    """
    if importlib.util.find_spec("numba") is None or parallel_library() is None:
        return 0
    if platform.machine() in ("aarch64", "arm64"):
        return _ARM_LANES
    return _LANES.get(torch.backends.cpu.get_cpu_capability(), 0)
