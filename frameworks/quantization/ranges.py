"""How fast and how exactly a CPU multiplies int8: its instructions, and how far weights may be rounded up to before its
sums of products saturate.

Without VNNI x86 multiplies unsigned activations, 0 to 255, by signed weights, and adds the products of two adjacent
inputs in int16 (`vpmaddubsw`). A sum above 32,767 saturates. 255 * 128 is the largest below it, so the weights of a
pair that have the same sign may add up to 128. Weights of at most 64 keep to this in any order."""

import platform
from dataclasses import dataclass
from pathlib import Path

LARGEST_INT8 = 127
LARGEST_ROW = 255


@dataclass(frozen=True, slots=True)
class WeightRange:
    """`largest`: magnitude of a rounded weight. `largest_pair`: magnitude of the sum of two weights of the same sign,
    those of inputs 0 and 1, 2 and 3, …; None: any.
    """

    name: str
    largest: int
    largest_pair: int | None = None

    @property
    def largest_unrounded_pair(self) -> int | None:
        """The limit of a pair's sum before it is rounded, which adds half a step to each of the two."""
        return None if self.largest_pair is None else self.largest_pair - 1

    @property
    def probes(self) -> tuple[tuple[int, ...], ...]:
        """Weights of consecutive inputs, repeated, that saturate first on a CPU whose sums are too narrow."""
        if self.largest_pair is None:
            return ((self.largest,),)
        rest = self.largest_pair - self.largest
        half = self.largest_pair // 2
        # The third has its large neighbours in different pairs, so it tells which inputs the CPU pairs.
        return (half,), (self.largest, rest), (0, self.largest, self.largest, 0)


WHOLE = WeightRange("whole", LARGEST_INT8)
PAIRED = WeightRange("paired", LARGEST_INT8, 128)
HALVED = WeightRange("halved", 64)
RANGES = (WHOLE, PAIRED, HALVED)
"""The most exact first. The error of `PAIRED` is a third above that of `WHOLE`, that of `HALVED` is twice as large."""


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
