"""Divide a long JSON text at commas, without parsing it and without holding the interpreter's lock.

A parser holds the lock until it has read a whole text, 10 ms for every megabyte of short numbers. numpy's operations
release it. So a long text is divided first, and its pieces are parsed one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from frameworks.types import Array

BLOCK_BYTES = 128 * 1024
"""About the bytes of a piece. simdjson and orjson read them in one or two milliseconds."""

_QUOTE, _BACKSLASH, _COMMA = b'"'[0], b"\\"[0], b","[0]
_OPENING, _CLOSING = b"{"[0], b"}"[0]
_DEPTH_CHANGE = np.zeros(256, np.int8)
_DEPTH_CHANGE[list(b"[{")] = 1
_DEPTH_CHANGE[list(b"]}")] = -1


Place = tuple[int, int]
"""Start and end in the body."""


@dataclass(slots=True)
class LongArray:
    """An array that is read in pieces; each holds some elements, or a long one. `is_read`: all were parsed."""

    pieces: list[Place]
    depth: int
    is_read: bool = False


@dataclass(slots=True)
class LongObject:
    """An object that is read in pieces; each holds some members, or a long one."""

    pieces: list[Place]
    depth: int


class UnclosedContainer(Exception):
    """The text ends within an array, an object or a string."""


@dataclass(slots=True)
class _State:
    """The state between two blocks. `num_backslashes`: at the end of the last block, without another byte behind."""

    depth: int = 0
    is_in_string: bool = False
    num_backslashes: int = 0


def divide(text: bytes, start: int, end: int) -> tuple[list[Place], int]:
    """Divide the array or object whose bracket is at `start`; return the places of its pieces, and of its end bracket.

    A piece is from one comma between its elements to another, without both. It is at most BLOCK_BYTES long, or it is a
    single element. Raises UnclosedContainer if the array or object does not end before `end`. The text may be invalid
    otherwise: only strings are recognised, and brackets of both kinds count alike.
    """
    state = _State()
    places = [start]
    for block_start in range(start, end, BLOCK_BYTES):
        block_end = min(block_start + BLOCK_BYTES, end)
        if state.is_in_string or text.find(b'"', block_start, block_end) >= 0:
            commas, close = _commas_beside_strings(text, block_start, block_end, state)
        else:
            commas, close = _commas(text, block_start, block_end, state)
        places += dict.fromkeys(commas)
        if close is not None:
            places.append(close)
            return [(before + 1, place) for before, place in pairwise(places)], close
    raise UnclosedContainer


def count_values(text: bytes) -> int:
    """Return one more than the commas outside of strings: about the values in the text."""
    if not text:
        return 0
    block = np.frombuffer(text, np.uint8)
    return 1 + int(np.count_nonzero((block == _COMMA) & _outside_strings(block, _State())))


def _commas(text: bytes, start: int, end: int, state: _State) -> tuple[list[int], int | None]:
    """Return the first and the last comma at depth 1 in a block without strings, and the end bracket if it is there."""
    block = np.frombuffer(text, np.uint8, end - start, start)
    # [ and { and their counterparts differ in this bit only.
    letters = block | 0x20
    brackets = np.flatnonzero((letters == _OPENING) | (letters == _CLOSING))
    depths = np.cumsum(_DEPTH_CHANGE[block[brackets]], dtype=np.int32) + state.depth
    closed = np.flatnonzero(depths == 0)
    close = None
    if closed.size:
        close, end = start + int(brackets[closed[0]]), start + int(brackets[closed[0]])
        brackets, depths = brackets[: closed[0]], depths[: closed[0]]
    # The parts of the block between brackets, by their depth.
    edges = np.concatenate(([start], brackets + start, [end]))
    at_one = np.flatnonzero(np.concatenate(([state.depth], depths)) == 1)
    state.depth = int(depths[-1]) if depths.size else state.depth
    first = _first(text.find(b",", edges[part], edges[part + 1]) for part in at_one)
    if first is None:
        return [], close
    last = _first(text.rfind(b",", edges[part], edges[part + 1]) for part in at_one[::-1])
    assert last is not None
    return [first, last], close


def _first(places: Iterator[int]) -> int | None:
    return next((place for place in places if place >= 0), None)


def _commas_beside_strings(text: bytes, start: int, end: int, state: _State) -> tuple[list[int], int | None]:
    """As `_commas`, in a block with strings; in ten times the time."""
    block = np.frombuffer(text, np.uint8, end - start, start)
    outside = _outside_strings(block, state)
    changes = _DEPTH_CHANGE[block]
    changes[~outside] = 0
    depths = np.cumsum(changes, dtype=np.int32)
    depths += state.depth
    state.depth = int(depths[-1])
    closed = depths == 0
    place = int(closed.argmax())
    close = start + place if closed[place] else None
    is_comma = (block == _COMMA) & outside & (depths == 1)
    commas = np.flatnonzero(is_comma if close is None else is_comma[:place])
    return [start + int(comma) for comma in commas[:: max(1, len(commas) - 1)]], close


def _outside_strings(block: Array, state: _State) -> Array:
    """Return for each byte whether it is outside of strings; quotes count as either."""
    quotes = block == _QUOTE
    backslashes = block == _BACKSLASH
    if state.num_backslashes or backslashes.any():
        _drop_escaped(quotes, backslashes, state)
    inside = np.bitwise_xor.accumulate(quotes)
    if state.is_in_string:
        inside = ~inside
    state.is_in_string = bool(inside[-1])
    return ~inside


def _drop_escaped(quotes: Array, backslashes: Array, state: _State) -> None:
    """Clear the quotes behind an odd number of backslashes."""
    length = len(quotes)
    # The place of the last byte up to here that is no backslash; -1: all bytes of the block are backslashes.
    other = np.maximum.accumulate(np.where(backslashes, -1, np.arange(length)))
    runs = np.arange(length) - other  # the backslashes that end at each byte
    runs[other == -1] += state.num_backslashes
    before = np.empty_like(runs)
    before[0], before[1:] = state.num_backslashes, runs[:-1]
    quotes &= before % 2 == 0
    state.num_backslashes = int(runs[-1])
