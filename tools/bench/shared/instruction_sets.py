"""Mask the instruction sets of servers: `BENCH_ISA=avx2` shows how they run on an older CPU."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.cpus import OLDER_CPU

# The libraries of tests, then MKL and FBGEMM.
_AVX2 = {**OLDER_CPU, "MKL_ENABLE_INSTRUCTIONS": "AVX2", "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"}


def is_masked() -> bool:
    """Return whether servers use AVX2 at most. Raises RuntimeError for another value of BENCH_ISA."""
    wanted = os.environ.get("BENCH_ISA", "")
    if wanted not in ("", "avx2"):
        raise RuntimeError(f'BENCH_ISA: expected "avx2" or nothing, got "{wanted}"; change it')
    return wanted == "avx2"


def mask() -> Mapping[str, str]:
    """Return the variables that mask the libraries of a server; none without BENCH_ISA."""
    return _AVX2 if is_masked() else {}


def multiplies_bf16() -> bool:
    """Return whether the CPU of servers has instructions for products of bfloat16."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return not is_masked() and any(flag in flags for flag in (" avx512_bf16", " amx_bf16"))
