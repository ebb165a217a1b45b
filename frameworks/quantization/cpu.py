"""Tell what instructions a CPU has for products of int8. Figures measured on one kind of CPU do not hold on another."""

import platform
from pathlib import Path

# The first that a CPU has decides how fast it multiplies int8.
_INSTRUCTIONS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512bw", "avx2", "i8mm", "asimddp")


def cpu_capability(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the architecture and the best of its instructions, as in `x86_64 avx2`.

    A system without /proc/cpuinfo (not Linux) tells its name of the processor instead.
    """
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    named = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    flags = set(next(named, []))
    return " ".join([platform.machine(), *[each for each in _INSTRUCTIONS if each in flags][:1]])
