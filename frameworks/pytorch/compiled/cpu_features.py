"""The SIMD vectors of this CPU, and its instructions for int8, bfloat16 and AMX."""

import importlib.util
import platform
from functools import cache

import torch

from frameworks.pytorch.openmp import parallel_library

AVX512_LANES = 16
_LANES = {"AVX512": AVX512_LANES, "AVX2": 8}
_ARM_LANES = 4


@cache
def lanes() -> int:
    """Return how many float32 a SIMD vector holds; 0 where nothing can be compiled for this CPU.

    torch's own choice is taken, so its variable masks instruction sets here too. Regions need the threads that torch
    has: those of GNU OpenMP.
    """
    if importlib.util.find_spec("numba") is None or parallel_library() is None:
        return 0
    if platform.machine() in ("aarch64", "arm64"):
        return _ARM_LANES
    return _LANES.get(torch.backends.cpu.get_cpu_capability(), 0)


def has_vnni() -> bool:
    """Return whether vectors have VNNI, dot products of unsigned and signed bytes: those of 512 bits, or of 256 bits on
    a CPU without AVX-512.
    """
    return _has("avx512vnni") or _has("avxvnni", "AVX2")


def has_bfloat16() -> bool:
    """Return whether vectors of 512 bits have dot products of pairs of bfloat16."""
    return _has("avx512bf16")


@cache
def has_amx() -> bool:
    """Return whether the CPU has Intel's AMX for bfloat16, and the system lets this process use it."""
    if not (_has("amx-tile") and _has("amx-bf16")):
        return False
    # Linux saves the registers of a process that has asked for them alone.
    return torch.cpu._init_amx()


def has_integers() -> bool:
    """Return whether GEMMs of int8 and int4 can be compiled for this CPU."""
    return lanes() in _LANES.values()


def _has(feature: str, vectors: str = "AVX512") -> bool:
    """Return whether numba compiles for a CPU with this feature, and torch's vectors are these."""
    if lanes() != _LANES[vectors]:
        return False
    import numba  # noqa: F401 - its parts cannot be imported first
    from numba.core.registry import cpu_target

    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return f"+{feature}" in features.split(",")
