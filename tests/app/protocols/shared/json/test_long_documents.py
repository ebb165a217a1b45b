"""Long bodies are read in pieces as short ones are read at once."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.shared.errors import InvalidJson
from app.protocols.shared.json import long_documents as long_json
from app.protocols.shared.json import scan as json_scan
from app.protocols.shared.json.body import NonNumericArray, RaggedArray, parse_exact
from app.protocols.shared.json.long_documents import LongDocument
from app.protocols.shared.json.scan import UnclosedContainer, count_values, divide
from frameworks.core.errors import InvalidInput, UnknownField
from tests.app.protocols.strategies import json_values, tensors

BLOCK = 16


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few bytes, so that short texts have many pieces and every border between two blocks occurs."""
    for module in (json_scan, long_json):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)


def texts(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """JSON with various spaces."""
    layouts = st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 1}, {"separators": (" ,\r\n", "\t:")}])
    escaped = st.booleans()
    return st.builds(
        lambda value, layout, ascii_only: json.dumps(value, ensure_ascii=ascii_only, **layout).encode(),
        values.filter(is_utf8),
        layouts,
        escaped,
    )


def is_utf8(value: Any) -> bool:
    """Return whether a value has no lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


class TestDivide:
    @given(texts(st.lists(json_values, max_size=8) | st.dictionaries(st.text(max_size=5), json_values, max_size=8)))
    def test_pieces_are_the_elements(self, text: bytes) -> None:
        pieces, close = divide(text, 0, len(text))
        assert close == len(text) - 1
        brackets = (text[:1], text[-1:])
        parsed = [orjson.loads(brackets[0] + text[a:b] + brackets[1]) for a, b in pieces]
        whole = orjson.loads(text)
        if isinstance(whole, list):
            assert [item for piece in parsed for item in piece] == whole
        else:
            assert {name: value for piece in parsed for name, value in piece.items()} == whole
        assert all(b - a <= BLOCK or len(piece) == 1 for (a, b), piece in zip(pieces, parsed, strict=True))

    @given(texts(st.lists(json_values, min_size=1, max_size=5)), st.data())
    def test_unclosed_text_refused(self, text: bytes, data: st.DataObject) -> None:
        end = data.draw(st.integers(1, len(text) - 1))
        with pytest.raises(UnclosedContainer):
            divide(text, 0, end)

    @pytest.mark.parametrize("num_backslashes", range(40))
    def test_quote_behind_backslashes(self, num_backslashes: int) -> None:
        quoted = b'["' + b"\\" * num_backslashes + b'"' + (b'x"' if num_backslashes % 2 else b"") + b",1]"
        pieces, close = divide(quoted, 0, len(quoted))
        assert (close, pieces[-1][1]) == (len(quoted) - 1, len(quoted) - 1)
        assert sum(len(orjson.loads(b"[" + quoted[a:b] + b"]")) for a, b in pieces) == 2

    def test_values_counted_outside_strings(self) -> None:
        assert count_values(b'1,"a,b",[2,3]') == 4


class TestLongDocument:
    @given(texts(json_values | st.lists(json_values, max_size=10)))
    def test_python_equals_exact_parser(self, text: bytes) -> None:
        document = LongDocument(text)
        assert document.python(document.root) == parse_exact(text).root
        assert document.shapes_are_certain()

    @given(texts(st.fixed_dictionaries({"x": tensors})), st.sampled_from(["float", "int", "uint"]))
    def test_numbers_equal_exact_parser(self, text: bytes, kind: Any) -> None:
        found, expected = read_numbers(LongDocument(text), kind), read_numbers(parse_exact(text), kind)
        assert type(found) is type(expected)
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype

    @given(texts(json_values | st.lists(json_values, max_size=10)), st.data())
    def test_damaged_text_refused_as_by_exact_parser(self, text: bytes, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(text) - 1))
        byte = data.draw(st.sampled_from([b"", b",", b"[", b"]", b"{", b"}", b'"', b"\\", b":", b" ", b"1", b"\xff"]))
        damaged = text[:place] + byte + text[place + 1 :]
        assert (outcome(LongDocument, damaged) is InvalidJson) == (outcome(parse_exact, damaged) is InvalidJson)

    @pytest.mark.parametrize(
        "text",
        [
            b"[" + b"1," * 50 + b"]",
            b"[," + b"1," * 50 + b"2]",
            b"[" + b"1," * 50 + b",1]",
            b"[" + b"1," * 50,
            b"[" + b"1," * 50 + b"2]]",
            b"[" + b"1," * 50 + b"2}",
            b"[[" + b"1," * 50 + b"2] 3]",
            b'{"a":' + b"[1," * 50 + b"2" + b"]" * 50 + b"x}",
            b'{"a" [' + b"1," * 50 + b"2]}",
            b'["' + b"a" * 50 + b'\\", 1]',
        ],
    )
    def test_message_has_line_and_column(self, text: bytes) -> None:
        with pytest.raises(InvalidJson, match=r"the body is not valid JSON: .*: line \d+ column \d+ \(char \d+\)$"):
            read_python(b"\n" + text)

    def test_place_of_error_is_that_in_the_body(self) -> None:
        text = b"[\n" + b"1,\n" * 50 + b"nul,\n" + b"1,\n" * 50 + b"1]"
        document = LongDocument(text)
        with pytest.raises(InvalidJson, match=rf"line 52 column \d+ \(char {text.index(b'nul')}\)"):
            document.python(document.root)

    def test_unread_array_is_checked(self) -> None:
        document = LongDocument(b'{"a":[' + b"1," * 50 + b"x]}")
        document.members(document.root, {"a"})
        with pytest.raises(InvalidJson):
            document.shapes_are_certain()

    def test_first_wrong_name_reported(self) -> None:
        text = b'{"known":1,' + b",".join(b'"%06d":[%b1]' % (i, b"1," * 30) for i in range(20)) + b"}"
        document = LongDocument(text)
        with pytest.raises(UnknownField, match=r"within\.000000"):
            document.members(document.root, {"known"}, "within.")
        twice = LongDocument(b'{"a":[' + b"1," * 30 + b'1],"a":1,"b":"' + b"x" * 60 + b'"}')
        with pytest.raises(InvalidInput, match="a: expected one member of this name"):
            twice.members(twice.root, {"a", "b"})

    def test_too_many_values_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(long_json, "MAX_VALUES", 100)
        for text in (b"[" + b'"a",' * 120 + b"1]", b"[" + b"[[],[],[]]," * 40 + b"1]"):
            document = LongDocument(text)
            with pytest.raises(InvalidInput, match="body: expected at most 100 values besides numeric tensors"):
                document.python(document.root)
        commas = LongDocument(b'["' + b"," * 400 + b'"]')
        assert commas.python(commas.root) == ["," * 400]

    def test_long_nested_arrays_bounded(self) -> None:
        with pytest.raises(InvalidJson, match="at most 16 levels deep"):
            read_python(b"[" * 60 + b"]" * 60)

    def test_long_number_and_name_refused(self) -> None:
        for text in (b"[1" + b"0" * 100 + b"]", b'{"' + b"x" * 5000 + b'":[' + b"1," * 50 + b"1]}"):
            with pytest.raises(InvalidJson, match="at most"):
                read_python(text)


def read_python(text: bytes) -> Any:
    """Read everything."""
    document = LongDocument(text)
    return document.python(document.root)


def read_numbers(document: Any, kind: Any) -> Any:
    """Return the array of member x, or the type of the error."""
    node = document.members(document.root, {"x"})["x"]
    if not document.is_array(node):
        return None
    try:
        flat, shape = document.numbers(node, kind)
    except (NonNumericArray, RaggedArray) as error:
        return NonNumericArray() if isinstance(error, RaggedArray) else error
    return flat.reshape(shape)


def outcome(reader: Any, text: bytes) -> Any:
    """Return the value of a text, or InvalidJson."""
    try:
        document = reader(text)
        return document.python(document.root)
    except InvalidJson:
        return InvalidJson
    except InvalidInput:
        return None
