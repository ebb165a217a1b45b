"""Parse and format sizes."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from memory.sizes import Bytes, format_size, parse_size


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (2147483648, 2147483648),
        ("2147483648", 2147483648),
        ("512 B", 512),
        ("2GiB", 2 * 1024**3),
        ("512MB", 512 * 1000**2),
        ("1.5 GiB", 3 * 512 * 1024**2),
        (" 1tib ", 1024**4),
        ("3KB", 3000),
        ("0.1GiB", 107374182),  # the fraction of a byte is dropped
        ("0.3TB", 300_000_000_000),  # exact: no binary fractions
    ],
)
def test_parse_size_returns_bytes(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written",
    [
        -1,
        True,
        1.5,
        float("nan"),
        None,
        [],
        "",
        "B",
        "-1",
        "-2GiB",
        "nan",
        "inf",
        "1e9",
        "2 parsecs",
        "2GiBs",
        "1.5",
        "0x10",
        "1.5 B",
        "1_000",
        "٣",
        "9" * 5000,
        "9999999 TiB",
        2**63,
        10**300,
    ],
)
def test_parse_size_refuses_other_values(written: object) -> None:
    with pytest.raises(ValueError, match=r'expected a size: .* like "2GiB"'):
        parse_size(written)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**31, "2 GiB"),
        (1024**2 - 1, "1 MiB"),
        (-(2**30), "-1 GiB"),
        (5000 * 1024**4, "5000 TiB"),
    ],
)
def test_format_size_uses_largest_fitting_unit(size: int, text: str) -> None:
    assert format_size(size) == text


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=2**60))
def test_format_size_parses_back_within_5_percent(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.05)


@settings(deadline=None)
@given(st.integers(min_value=1, max_value=1023), st.integers(min_value=0, max_value=4))
def test_format_size_of_whole_units_parses_back(count: int, power: int) -> None:
    assert parse_size(format_size(count * 1024**power)) == count * 1024**power


@settings(deadline=None)
@given(st.one_of(st.text(), st.floats(), st.integers(), st.binary(), st.from_regex(r"\A[0-9.]+ ?[KMGTkmgt]?i?[Bb]?\Z")))
def test_parse_size_raises_only_value_error(written: object) -> None:
    with suppress(ValueError):
        assert 0 <= parse_size(written) < 2**63


def test_bytes_type_parses_sizes_strictly() -> None:
    class Limit(BaseModel, strict=True):
        limit: Bytes

    assert Limit.model_validate({"limit": "1KiB"}).limit == 1024
    with pytest.raises(ValidationError, match="expected a size"):
        Limit.model_validate({"limit": True})
