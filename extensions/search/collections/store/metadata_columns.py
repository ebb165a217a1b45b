"""Store metadata in columns, so that a filter is a few vectorized comparisons.

Numbers are float64. Every other value is dictionary-encoded: a filter is then tested once per distinct value, not once
per row.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from frameworks.core.filters import All, Any_, AnyOf, Exists, Filter, Not, Range, Scalar
from frameworks.core.vector_search import Metadata

Mask = npt.NDArray[np.bool_]
_BYTES_OF_VALUE = 160
"""Estimated memory of one dictionary entry beside its characters."""


DictionaryValue = str | bool | list[str]


class Dictionary:
    """The codes of one key's values: 1, 2, …; 0 stands for no value. Only grows; one thread adds."""

    def __init__(self) -> None:
        self.memory_bytes = 0
        self._codes: dict[tuple[type, Any], int] = {}
        self._of_lists: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def code(self, value: DictionaryValue) -> int:
        """Return the code of a value, a new one for a new value."""
        key = _key_of(value)
        code = self._codes.get(key)
        if code is None:
            items = value if isinstance(value, list) else []
            code = len(self._codes) + 1
            self.memory_bytes += bytes_of_value(value)
            self._codes[key] = code
            for item in set(items):
                self._of_lists[item] = [*self._of_lists.get(item, ()), code]
        return code

    def has(self, value: DictionaryValue) -> bool:
        """Whether the value has a code."""
        return _key_of(value) in self._codes

    def codes_equal(self, value: Scalar) -> list[int]:
        """Return the codes of this value and of the lists that hold it."""
        code = self._codes.get((type(value), value))
        of_lists = self._of_lists.get(value, []) if isinstance(value, str) else []
        return of_lists if code is None else [code, *of_lists]


def _key_of(value: DictionaryValue) -> tuple[type, Any]:
    return type(value), tuple(value) if isinstance(value, list) else value


def bytes_of_value(value: DictionaryValue) -> int:
    """Return the estimated memory of a value in a dictionary."""
    items = value if isinstance(value, list) else []
    return _BYTES_OF_VALUE * (1 + len(items)) + len(str(value))


@dataclass(slots=True)
class Column:
    """One key in one segment. `codes`: uint32 [capacity], 0 for none. `floats`: float64 [capacity], NaN for none.

    An array is absent until a row of the segment has such a value.
    """

    codes: npt.NDArray[np.uint32] | None = None
    floats: npt.NDArray[np.float64] | None = None

    def take(self, positions: npt.NDArray[np.int64]) -> "Column":
        """Return the column of the rows at these positions, int64 [n]."""
        return Column(
            None if self.codes is None else self.codes[positions],
            None if self.floats is None else self.floats[positions],
        )

    @property
    def memory_bytes(self) -> int:
        return sum(each.nbytes for each in (self.codes, self.floats) if each is not None)


Columns = dict[str, Column]
Dictionaries = dict[str, Dictionary]


@dataclass(slots=True)
class Schema:
    """The keys of a collection and their dictionaries, shared by its segments."""

    dictionaries: Dictionaries = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    @property
    def memory_bytes(self) -> int:
        return sum(each.memory_bytes for each in list(self.dictionaries.values()))

    def write(self, columns: Columns, capacity: int, position: int, metadata: Metadata) -> None:
        """Write the values of one row; those that its position held before are cleared."""
        for column in columns.values():
            if column.codes is not None:
                column.codes[position] = 0
            if column.floats is not None:
                column.floats[position] = np.nan
        for key, value in metadata.items():
            if value is not None:
                self._write_value(columns.setdefault(key, Column()), key, capacity, position, value)

    def _write_value(
        self, column: Column, key: str, capacity: int, position: int, value: str | float | bool | list[str]
    ) -> None:
        dictionary = self.dictionaries.setdefault(key, Dictionary())
        if isinstance(value, str | bool | list):
            if column.codes is None:
                column.codes = np.zeros(capacity, dtype=np.uint32)
            column.codes[position] = dictionary.code(value)
        else:
            if column.floats is None:
                column.floats = np.full(capacity, np.nan)
            column.floats[position] = value

    def mask(self, where: Filter, columns: Columns, count: int) -> Mask:
        """Return which of the first `count` rows of a segment match, bool [count]."""
        match where:
            case All(parts):
                found = np.ones(count, dtype=np.bool_)
                for part in parts:
                    found &= self.mask(part, columns, count)
                return found
            case Any_(parts):
                found = np.zeros(count, dtype=np.bool_)
                for part in parts:
                    found |= self.mask(part, columns, count)
                return found
            case Not(inner):
                return ~self.mask(inner, columns, count)
        column = columns.get(where.key)
        if column is None:
            return np.zeros(count, dtype=np.bool_)
        match where:
            case Exists():
                return _exists(column, count)
            case Range():
                return _in_range(where, column, count)
            case AnyOf():
                return _equals(where, column, self.dictionaries[where.key], count)


def _exists(column: Column, count: int) -> Mask:
    found = np.zeros(count, dtype=np.bool_)
    if column.codes is not None:
        found |= column.codes[:count] != 0
    if column.floats is not None:
        found |= ~np.isnan(column.floats[:count])
    return found


def _in_range(where: Range, column: Column, count: int) -> Mask:
    if column.floats is None:
        return np.zeros(count, dtype=np.bool_)
    floats = column.floats[:count]
    found = ~np.isnan(floats)
    if where.above is not None:
        found &= floats > where.above
    if where.at_least is not None:
        found &= floats >= where.at_least
    if where.below is not None:
        found &= floats < where.below
    if where.at_most is not None:
        found &= floats <= where.at_most
    return found


def _equals(where: AnyOf, column: Column, dictionary: Dictionary, count: int) -> Mask:
    found = np.zeros(count, dtype=np.bool_)
    if column.codes is not None:
        matching = [code for value in where.values for code in dictionary.codes_equal(value)]
        codes = column.codes[:count]
        if len(matching) == 1:
            found |= codes == matching[0]
        elif matching:
            # After the rows: each of their codes is in the dictionary by now.
            table = np.zeros(max(len(dictionary), *matching) + 1, dtype=np.bool_)
            table[matching] = True
            found |= table[codes]
    if column.floats is not None:
        floats = [value for value in where.values if isinstance(value, float) and not isinstance(value, bool)]
        if len(floats) == 1:
            found |= column.floats[:count] == floats[0]
        elif floats:
            found |= np.isin(column.floats[:count], floats)
    return found
