"""How far weights may be rounded up to before a CPU's sums of products saturate.

Without VNNI x86 multiplies unsigned rows, 0 to 255, by signed weights, and adds the products of two neighbouring inputs
in 16 bits (`vpmaddubsw`). A sum above 32,767 saturates. 255 * 128 is the largest below it, so the weights of a pair
that have the same sign may add up to 128. Weights of at most 64 keep to this in any order.
"""

from dataclasses import dataclass

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
        """Weights of consecutive inputs, repeated, that saturate first where a CPU has no room for this range."""
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
