"""The compiled function that reads a nested JSON array of numbers. It is compiled in a process of its own.

It gives up at each text that is no such array, and at numbers that need more than 64 bits: simdjson then reads the
whole body, and finds the error if there is one. So it only has to be right about the arrays that it accepts.
"""

from typing import Any

import numpy as np

from app.protocols.shared.json.numerals.llvm import (
    double_of,
    inlined,
    load_byte,
    load_word,
    store_float,
    store_word,
    trailing_zeros,
)
from app.protocols.shared.json.numerals.rounding import NOT_FOUND, to_bits
from app.protocols.shared.json.numerals.tables import (
    COUNT,
    COUNTS,
    END,
    FLOAT32,
    INT64,
    INTEGER_POWERS_BYTE,
    KIND,
    LIMIT,
    MAX_DIGITS,
    MAX_RANK,
    OUTPUT,
    RANK,
    SHIFT,
    SIZES,
    TABLES,
    TEXT,
)

# numba computes a uint64 with an int64 as float64: each constant has the type of its words.
_U = np.uint64
_ZERO, _ONE, _THREE, _EIGHT, _NINE, _SIXTEEN, _WORD_BITS = (_U(each) for each in (0, 1, 3, 8, 9, 16, 64))
_OPEN, _CLOSE, _COMMA, _POINT, _MINUS, _PLUS, _EXPONENT, _DIGIT_ZERO, _SPACE, _LOWER_CASE = (
    _U(each) for each in (*b"[],.-+e0 ", 0x20)
)
_ZEROS, _TO_HIGH_BIT, _HIGH_BITS = (_U(each * 0x0101010101010101) for each in (0x30, 0x76, 0x80))
_PAIRS, _FIRST_PAIRS, _LAST_PAIRS = _U(0x000000FF000000FF), _U(0x000F424000000064), _U(0x0000271000000001)
_TEN, _HALF_WORD = _U(10), _U(32)
_SPACES = _U(sum(1 << each for each in b" \t\n\r"))
_SIGN = _U(2**63)
_MAX_DIGITS, _FEW_DIGITS = _U(MAX_DIGITS), _U(18)
_TOO_LARGE = float(np.finfo(np.float32).max) + 2.0**103  # half of the distance to the next power of two
_FAR = 2**62


@inlined
def _count_digits(word: Any) -> Any:
    """Return how many characters at the begin of the word are digits, 0 to 8."""
    digits = word ^ _ZEROS
    # The first byte above 9 sets its upper bit; a carry reaches only bytes behind it.
    return trailing_zeros(((digits + _TO_HIGH_BIT) | digits) & _HIGH_BITS) >> _THREE


@inlined
def _value_of(word: Any, count: Any) -> Any:
    """Return the number of the first `count` digits, 0 to 8. Three products: of pairs, of fours, of all."""
    shift = (_EIGHT - count) << _THREE
    half = shift >> _ONE  # a shift by 64 has no result
    digits = ((word ^ _ZEROS) << half) << (shift - half)
    pairs = digits * _TEN + (digits >> _EIGHT)
    return ((pairs & _PAIRS) * _FIRST_PAIRS + ((pairs >> _SIXTEEN) & _PAIRS) * _LAST_PAIRS) >> _HALF_WORD


@inlined
def _power_of_ten(tables: Any, power: Any) -> Any:
    return load_word(tables + INTEGER_POWERS_BYTE + np.int64(power << _THREE))


@inlined
def _read_integer(place: Any, tables: Any) -> Any:
    """Return the place behind the digits, 0 to give up, their number, and their count, 0 for a zero."""
    word = load_word(place)
    count = _count_digits(word)
    if count == _ZERO:
        return 0, _ZERO, _ZERO
    if load_byte(place) == _DIGIT_ZERO:
        return (place + 1 if count == _ONE else 0), _ZERO, _ZERO
    decimal, total = _value_of(word, count), count
    place += np.int64(count)
    while count == _EIGHT:
        word = load_word(place)
        count = _count_digits(word)
        total += count
        if total > _MAX_DIGITS:
            return 0, _ZERO, _ZERO
        decimal = decimal * _power_of_ten(tables, count) + _value_of(word, count)
        place += np.int64(count)
    return place, decimal, total


@inlined
def _read_fraction(place: Any, tables: Any, decimal: Any, count: Any) -> Any:
    """Return the place behind the digits, 0 to give up, the decimal with them, and how many there are.

    `decimal`, of `count` digits: before the point. Up to 16 digits are read without a branch that depends on them.
    """
    word, next_word = load_word(place), load_word(place + 8)
    in_word = _count_digits(word)
    in_next = _count_digits(next_word) & (_ZERO - (in_word >> _THREE))  # 0 unless all of the first word are digits
    total = in_word + in_next
    if in_word == _ZERO or count + total > _MAX_DIGITS:
        return 0, _ZERO, _ZERO
    decimal = decimal * _power_of_ten(tables, in_word) + _value_of(word, in_word)
    decimal = decimal * _power_of_ten(tables, in_next) + _value_of(next_word, in_next)
    place += np.int64(total)
    if total == _SIXTEEN:
        word = load_word(place)
        more = _count_digits(word)
        # Zeros at the begin leave room for further digits.
        if more == _EIGHT or decimal >= _power_of_ten(tables, _MAX_DIGITS - more):
            return 0, _ZERO, _ZERO
        decimal = decimal * _power_of_ten(tables, more) + _value_of(word, more)
        total += more
        place += np.int64(more)
    return place, decimal, total


@inlined
def _read_exponent(place: Any) -> Any:
    """Return the place behind the digits, 0 to give up, and the power of ten. `place`: behind the letter."""
    sign = load_byte(place)
    if (sign == _MINUS) | (sign == _PLUS):
        place += 1
    word = load_word(place)
    count = _count_digits(word)
    if not _ZERO < count < _EIGHT:
        return 0, 0
    power = np.int64(_value_of(word, count))
    return place + np.int64(count), (-power if sign == _MINUS else power)


@inlined
def _read_number(place: Any, tables: Any) -> Any:
    """Return the place behind the number, 0 to give up, its decimal, its power of ten, and whether it is an integer.

    `place`: behind a minus.
    """
    digit, character = load_byte(place) ^ _DIGIT_ZERO, load_byte(place + 1)
    if digit <= _NINE and character == _POINT:
        # The most common case: the next load need not wait for a count.
        decimal, count = digit, (_ONE if digit else _ZERO)
        place += 1
    else:
        place, decimal, count = _read_integer(place, tables)
        if place == 0:
            return 0, _ZERO, 0, False
        character = load_byte(place)
    power: Any = 0
    is_integer = True
    if character == _POINT:
        place, decimal, count = _read_fraction(place + 1, tables, decimal, count)
        if place == 0:
            return 0, _ZERO, 0, False
        power -= np.int64(count)
        is_integer = False
        character = load_byte(place)
    if character | _LOWER_CASE == _EXPONENT:
        place, exponent = _read_exponent(place + 1)
        power += exponent
        is_integer = False
    return place, decimal, power, is_integer


@inlined
def _skip_space(place: Any) -> Any:
    """Return the place of the next character that is no space of JSON; a NUL ends it."""
    character = load_byte(place)
    while character <= _SPACE and (_SPACES >> character) & _ONE:
        place += 1
        character = load_byte(place)
    return place


@inlined
def _copy_number(place: Any, output: Any, kind: Any, tables: Any) -> Any:
    """Read a number and write it; return the place behind it, 0 to give up, and the address behind its bytes."""
    is_negative = load_byte(place) == _MINUS
    place, decimal, power, is_integer = _read_number(place + 1 if is_negative else place, tables)
    if place == 0:
        return 0, output
    if kind == INT64:
        if not is_integer or decimal >= _SIGN:
            return 0, output
        store_word(output, _ZERO - decimal if is_negative else decimal)
        return place, output + 8
    bits = to_bits(decimal, power, tables)
    if bits == NOT_FOUND:
        return 0, output
    if is_negative and not (is_integer and decimal == _ZERO):  # simdjson reads -0 as an integer, 0
        bits |= _SIGN
    if kind == FLOAT32:
        value = double_of(bits)
        if abs(value) >= _TOO_LARGE:
            return 0, output
        store_float(output, np.float32(value))
        return place, output + 4
    store_word(output, bits)
    return place, output + 8


@inlined
def _end_number(arguments: Any, place: Any, depth: Any, length: Any) -> Any:
    """Return the place of the next element, 0 to give up, and its depth, 0 at the end. `length`: of the inner array."""
    if load_byte(place) == _COMMA:
        return _skip_space(place + 1), depth
    place = _skip_space(place)
    while load_byte(place) == _CLOSE:
        size = arguments[SIZES + depth]
        if size >= 0 and size != length:
            return 0, depth
        arguments[SIZES + depth] = length
        depth -= 1
        if depth == 0:
            return place + 1, depth
        arguments[COUNTS + depth] += 1
        length = arguments[COUNTS + depth]
        place = _skip_space(place + 1)
    return (_skip_space(place + 1) if load_byte(place) == _COMMA else 0), depth


def compiled_function(arguments: Any) -> None:
    """Read a nested array of numbers into the output. `arguments`: int64, at the places of `tables`.

    The last bytes are read from a copy with bytes behind it: a word at the end of a body would reach beyond.
    """
    place, limit, shift, output = arguments[TEXT], arguments[LIMIT], arguments[SHIFT], arguments[OUTPUT]
    kind, tables = arguments[KIND], arguments[TABLES]
    depth = leaf = total = length = 0
    for is_copy in range(2):
        while place < limit:
            if load_byte(place) == _OPEN:
                if 0 < leaf == depth or depth == MAX_RANK:
                    return
                depth += 1
                arguments[COUNTS + depth] = length = 0
                place = _skip_space(place + 1)
                continue
            if leaf == 0:
                leaf = depth
            if depth != leaf:
                return
            place, output = _copy_number(place, output, kind, tables)
            if place == 0:
                return
            length += 1
            total += 1
            place, depth = _end_number(arguments, place, depth, length)
            if place == 0:
                return
            if depth == 0:
                arguments[COUNT], arguments[RANK] = total, leaf
                arguments[END] = place - shift * is_copy
                return
        place += shift
        limit = _FAR
