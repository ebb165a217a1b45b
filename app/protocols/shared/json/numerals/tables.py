"""Powers of five and ten for the compiled reader of numbers, and the places of its arguments. numba is not imported."""

import numpy as np

from frameworks.types import Array

TEXT, LIMIT, SHIFT, OUTPUT, KIND, TABLES = range(6)
"""Arguments: addresses of the array's bracket, of the last bytes, from these to their copy, of the output, and of the
tables. KIND: one of those below."""
COUNT, END, RANK = 6, 7, 8
"""Results: how many numbers there are, -1 if the reader gave up; the address behind the array; its dimensions."""
MAX_RANK = 30
COUNTS = 16
"""From here on, for each depth: the elements of the open array."""
SIZES = COUNTS + MAX_RANK + 1
"""From here on, for each depth: the elements of each array, -1 where none is complete."""
NUM_ARGUMENTS = SIZES + MAX_RANK + 1

FLOAT32, FLOAT64, INT64 = range(3)

FIRST_POWER, LAST_POWER = -342, 308
"""Of ten: a decimal with at most 19 digits before a smaller one is 0, before a larger one an infinity."""
MAX_EXACT_POWER = 22
"""The largest power of ten that is a float64."""
MAX_DIGITS = 19
"""Of a decimal in 64 bits."""
INTEGER_POWERS_BYTE = 16 * (LAST_POWER - FIRST_POWER + 1)
"""From here on in the tables: 10⁰ to 10¹⁹, as uint64. Before: the upper 128 bits of each power of five, upper half
first."""
FLOAT_POWERS_BYTE = INTEGER_POWERS_BYTE + 8 * (MAX_DIGITS + 1)
"""From here on: 10⁰ to 10²², as float64."""


def make_tables() -> Array:
    """Return the tables, uint64, in Python's integers: 1 ms."""
    words: list[int] = []
    for power in range(FIRST_POWER, LAST_POWER + 1):
        five = _upper_bits(power)
        words += (five >> 64, five & (2**64 - 1))
    words += (10**power for power in range(MAX_DIGITS + 1))
    floats = np.array([float(10**power) for power in range(MAX_EXACT_POWER + 1)])
    return np.concatenate((np.array(words, np.uint64), floats.view(np.uint64)))


def _upper_bits(power: int) -> int:
    """Return the upper 128 bits of 5^power: cut off for a positive power, rounded up for a negative one."""
    five: int = 5 ** abs(power)
    if power >= 0:
        return five << 128 >> five.bit_length()
    length = (five - 1).bit_length()
    return (1 << (length + 127)) // five + 1
