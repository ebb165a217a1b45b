"""Numbers by compiled code have the bits of those by simdjson and numpy, or are left to them."""

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.protocols.shared.errors import InvalidJson
from app.protocols.shared.json.body import NonNumericArray, NumberKind, RaggedArray, parse
from app.protocols.shared.json.numerals import reader as numerals
from app.protocols.shared.json.numerals.reader import NumberReader
from app.protocols.shared.json.tensors import narrow
from frameworks.core.errors import InvalidInput
from frameworks.core.machine_code.object_code import NoMachineCode
from tests.support.json_numbers import loaded_reader

READER = loaded_reader()
KINDS: dict[str, NumberKind] = {"float32": "float", "float64": "float", "int64": "int"}

floats = st.floats(allow_nan=False, allow_infinity=False)
normal = st.floats(-1e30, 1e30).map(lambda value: value if abs(value) > 1e-300 else 0.0)
common = st.one_of(
    normal.map(repr),
    normal.map("{:.17e}".format),
    st.floats(-1e4, 1e4).map("{:.4f}".format),
    st.floats(0, 1, width=32).map(lambda value: f"{value:.9g}"),
    st.integers(-(10**18), 10**18).map(str),
    st.sampled_from(["0", "-0", "-0.0", "0.5", "1E5", "1e+2", "-2.5e-3", "123456789.125", "0e7", "-0e0"]),
)
"""Numerals that compiled code has to read."""
anything = st.one_of(
    common,
    floats.map(repr),
    st.from_regex(r"-?[0-9]{1,30}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,5})?", fullmatch=True),
    st.sampled_from(["", "-", "+1", "01", "1.", ".5", "1e", "1e+", "NaN", "Infinity", "0x1", "1_0", "--1", "1.5.5"]),
    st.sampled_from(["true", "null", '"1"', "{}", "[]", "[1]", " 1", "1 ", "\n1\t\r", "\x0b1", "1 1", "1e400", "4e38"]),
    st.sampled_from(["9" * 800, "0." + "0" * 800 + "1", "1" + "0" * 300, "0." + "3" * 800, "5e-324", "2.2e-308"]),
    st.sampled_from([str(2**53 + 1), str(2**63), str(2**64 - 1), str(2**64), str(-(2**63)), "9007199254740993.0"]),
)
"""Numerals, and texts that are none."""


def as_today(text: str, dtype: str) -> Any:
    """Return the array by simdjson or orjson and numpy, or the error."""
    try:
        document = parse(f"[{text}]".encode())
        numbers, shape = document.numbers(document.root, KINDS[dtype])
        if not document.shapes_are_certain():
            return RaggedArray("a row beside a number")
        return narrow(numbers, dtype, "x").reshape(shape)
    except (InvalidJson, InvalidInput, NonNumericArray, RaggedArray) as error:
        return error


def compiled(text: str, dtype: str) -> Any:
    """Return the array by compiled code, None where it gives up."""
    body = f"[{text}]".encode()
    read = READER.read(body, 0, len(body) - 1, np.dtype(dtype))
    return None if read is None else read[0].reshape(read[1])


def check(text: str, dtype: str, *, is_common: bool = False) -> None:
    made, wanted = compiled(text, dtype), as_today(text, dtype)
    if made is None:
        assert not is_common or isinstance(wanted, Exception)
        return
    assert isinstance(wanted, np.ndarray), wanted
    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape)
    assert made.tobytes() == wanted.tobytes()


@given(st.lists(common, min_size=1), st.sampled_from(sorted(KINDS)), st.sampled_from([",", ", ", " ,\n\t"]))
@settings(max_examples=300)
def test_reader_reads_common_numbers_exactly(numerals: list[str], dtype: str, comma: str) -> None:
    if dtype == "int64":
        numerals = [each for each in numerals if each.lstrip("-").isdigit()] or ["1"]
    check(comma.join(numerals), dtype, is_common=True)


@given(st.lists(anything, min_size=1, max_size=6), st.sampled_from(sorted(KINDS)))
@settings(max_examples=500)
def test_reader_accepts_only_arrays_of_numbers(numerals: list[str], dtype: str) -> None:
    check(",".join(numerals), dtype)


@given(st.lists(anything, min_size=1, max_size=8), st.data())
@settings(max_examples=200)
def test_reader_reads_damaged_arrays_as_today(numerals: list[str], data: Any) -> None:
    text = ",".join(numerals)
    place = data.draw(st.integers(0, len(text)))
    other = data.draw(st.sampled_from([*"[],.-+e0 \n", "],[", "", "]", "]]", "[["]))
    check(text[:place] + other + text[place + data.draw(st.integers(0, 2)) :], "float64")


@given(floats.filter(lambda value: value != 0), st.integers(-2, 2), st.integers(15, 19))
@settings(max_examples=300)
@example(9007199254740993.0, 0, 17)
@example(2.0**-1022, 0, 17)
def test_reader_rounds_halfway_numbers_to_even(value: float, distance: int, digits: int) -> None:
    (bits,) = struct.unpack("<Q", struct.pack("<d", abs(value)))
    (next_value,) = struct.unpack("<d", struct.pack("<Q", bits + 1))
    if next_value == float("inf"):
        return
    halfway = (Fraction(abs(value)) + Fraction(next_value)) / 2
    exponent = len(str(int(halfway))) - digits if halfway >= 1 else -digits - len(str(int(1 / halfway))) + 1
    decimal = round(halfway / Fraction(10) ** exponent) + distance
    check(f"{decimal}e{exponent}", "float64")
    check(f"{decimal}e{exponent}", "float32")


@given(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=5))
@settings(max_examples=50)
def test_reader_returns_the_shape(first: int, rest: list[int]) -> None:
    shape = (first, *rest)
    wanted = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    text = str(wanted.tolist())
    made = compiled(text[1:-1], "float64")
    assert made is not None
    assert made.shape == shape
    assert (made == wanted).all()


@pytest.mark.parametrize("text", ["[1],[2,3]", "1,[2]", "[1],2", "[[1]],[2]", "", "[],[]", "[" * 40 + "1" + "]" * 40])
def test_reader_leaves_irregular_arrays(text: str) -> None:
    assert compiled(text, "float64") is None


def test_reader_reads_every_length() -> None:
    for count in range(1, 200):
        numbers = [0.1 + each for each in range(count)]
        made = compiled(", ".join(map(repr, numbers)), "float64")
        assert made is not None
        assert made.tolist() == numbers


def test_reader_leaves_an_array_that_ends_elsewhere() -> None:
    body = b"[1,2],[3]"
    assert READER.read(body, 0, 8, np.dtype(np.float32)) is None
    assert READER.read(body, 0, 4, np.dtype(np.float32)) is not None
    assert READER.read(body, 0, 4, np.dtype(np.uint64)) is None


def test_reader_loads_after_many_bytes(tmp_path: Path) -> None:
    made = NumberReader(worth_bytes=100)
    assert not made.is_ready(200)
    assert not made.wait()  # no folder yet
    made.set_cache_folder(tmp_path)
    assert not made.is_ready(1)
    assert made.wait()
    assert made.is_ready(1)


def test_reader_without_compiler_logs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NoMachineCode("no LLVM")

    monkeypatch.setattr(numerals, "link", fail)
    made = NumberReader(worth_bytes=0)
    made.set_cache_folder(tmp_path)
    with capture_logs() as logs:
        for _ in range(3):
            assert not made.is_ready(1)
            assert not made.wait()
    assert [each["error"] for each in logs] == ["no LLVM"]
