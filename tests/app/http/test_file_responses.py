"""Ranges and conditions of a file (RFC 9110), beside slices of its bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.file_responses import is_known, wanted_range

TAG = b'"abc"'


@given(st.integers(1, 50), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 60)))
def test_range_equals_slice(size: int, first: int, last: int | None) -> None:
    content = bytes(range(size))
    text = b"bytes=%d-%b" % (first, b"" if last is None else b"%d" % last)
    wanted = wanted_range(TAG, size, [(b"range", text)])
    if first >= size or (last is not None and last < first):
        assert wanted is None
    else:
        assert wanted is not None
        assert content[wanted[0] : wanted[1]] == content[first : None if last is None else last + 1]


@given(st.integers(1, 50), st.integers(0, 60))
def test_suffix_range_equals_slice(size: int, count: int) -> None:
    wanted = wanted_range(TAG, size, [(b"range", b"bytes=-%d" % count)])
    assert (wanted is None) is (count == 0)
    if wanted is not None:
        assert bytes(range(size))[wanted[0] : wanted[1]] == bytes(range(size))[-count:]


NOT_RANGES = (b"", b"bytes=", b"bytes=-", b"bytes=0-1,4-5", b"lines=0-1", b"bytes=a-b", b"bytes=1-0", b"bytes=%b-")


@pytest.mark.parametrize("text", [text.replace(b"%b", b"1" * 30) for text in NOT_RANGES])
def test_other_ranges_are_ignored(text: bytes) -> None:
    assert wanted_range(TAG, 10, [(b"range", text)]) is None


def test_range_of_another_content_is_ignored() -> None:
    asked = (b"range", b"bytes=0-1")
    assert wanted_range(TAG, 10, [asked, (b"if-range", TAG)]) == (0, 2)
    assert wanted_range(TAG, 10, [asked, (b"if-range", b'"old"')]) is None
    # A weak tag does not say that the bytes are the same.
    assert wanted_range(TAG, 10, [asked, (b"if-range", b"W/" + TAG)]) is None
    assert wanted_range(TAG, 10, [asked, asked]) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [([TAG], True), ([b'"x", W/' + TAG], True), ([b"*"], True), ([b'"x"', TAG], True), ([b'"x"'], False), ([], False)],
)
def test_tags_name_the_content(values: list[bytes], expected: bool) -> None:
    assert is_known(TAG, [(b"if-none-match", value) for value in values]) is expected
