"""Whether this CPU adds up products of int8 without overflow."""

import platform
from pathlib import Path


def needs_reduced_range(cpu_info: Path = Path("/proc/cpuinfo"), machine: str = "") -> bool:
    """Whether weights must keep to 7 bits: x86 without VNNI adds pairs of products in 16 bits, which saturate.

    `machine`: as platform.machine() says, which is asked where it is left out. An x86 that does not tell what it can
    (not Linux) is taken for one without.
    """
    if (machine or platform.machine()).lower() not in ("x86_64", "amd64", "i386", "i686"):
        return False
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not {"avx512_vnni", "avx_vnni"} & set(flags)
