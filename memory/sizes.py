"""Parse sizes ("2GiB", "512 MB", 1048576) into bytes, and format bytes."""

import re
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BYTES_PER_UNIT = {unit.lower(): 1024**power for power, unit in enumerate(_BINARY_UNITS)} | {
    unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))
}
_SIZE = re.compile(r"\s*([0-9]{1,19})(\.[0-9]{1,9})?\s*([A-Za-z]*)\s*", re.ASCII)
_MAX_BYTES = 2**63 - 1  # a signed 64-bit integer, for the libraries
_EXPECTED = (
    'expected a size: an integer of bytes, or a number and a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB), like "2GiB"'
)


def parse_size(size: object) -> int:
    """Parse a size of a config file into bytes.

    `size`: an integer of bytes, or a string: digits, or a number and a unit in any case. KiB, MiB, GiB and TiB are
    powers of 1024; KB, MB, GB and TB powers of 1000. A fraction of a byte is dropped. Raises ValueError.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        return _checked(size)
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None:
        raise ValueError(_EXPECTED)
    whole, fraction, unit = match[1], match[2] or "", match[3].lower() or "b"
    if unit not in _BYTES_PER_UNIT or (fraction and unit == "b"):
        raise ValueError(_EXPECTED)
    return _checked(int(Fraction(whole + fraction) * _BYTES_PER_UNIT[unit]))


def format_size(size: int) -> str:
    """Format bytes as "512 B" or "1.5 GiB": at most one decimal, in the largest unit with a value of 1 or more."""
    sign, rest = ("-", -size) if size < 0 else ("", size)
    power = 0
    while power < len(_BINARY_UNITS) - 1 and round(rest / 1024**power, 1) >= 1024:
        power += 1
    figure = f"{rest / 1024**power:.1f}".removesuffix(".0")
    return f"{sign}{figure} {_BINARY_UNITS[power]}"


def _checked(size: int) -> int:
    if not 0 <= size <= _MAX_BYTES:
        raise ValueError(f"{_EXPECTED}, from 0 to 8 EiB")
    return size


Bytes = Annotated[int, BeforeValidator(parse_size)]
"""Type of a setting in bytes, parsed by parse_size."""
