"""Parse JSON bodies with simdjson and exactly, and compare both."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.protocols.shared.errors import InvalidJson
from app.protocols.shared.json import body as json_body
from app.protocols.shared.json.body import (
    Document,
    NonNumericArray,
    NumberKind,
    RaggedArray,
    describe_type,
    flatten,
    parse,
    parse_exact,
)
from frameworks.core.errors import InvalidInput, UnknownField

Reader = Callable[[bytes], Document]
both = pytest.mark.parametrize("reader", [parse, parse_exact])


def numbers(reader: Reader, data: str, kind: NumberKind) -> Any:
    document = reader(f'{{"x": {data}}}'.encode())
    flat, shape = document.numbers(document.members(document.root, {"x"})["x"], kind)
    assert document.shapes_are_certain()
    return flat.reshape(shape)


@both
def test_numbers_reads_every_kind(reader: Reader) -> None:
    for kind, dtype in (("float", np.float64), ("int", np.int64), ("uint", np.uint64)):
        array = numbers(reader, "[[1, 2, 3], [4, 5, 6]]", kind)  # type: ignore[arg-type]
        assert (array.dtype, array.tolist()) == (dtype, [[1, 2, 3], [4, 5, 6]])
    assert numbers(reader, "[0.1, -0.0, 5e-324, 1.7976931348623157e308]", "float").tolist() == [
        0.1, -0.0, 5e-324, 1.7976931348623157e308,
    ]  # fmt: skip
    assert numbers(reader, "[-9223372036854775808, 9223372036854775807]", "int").tolist() == [-(2**63), 2**63 - 1]
    assert numbers(reader, "[18446744073709551615]", "uint").tolist() == [2**64 - 1]
    assert numbers(reader, "[[], []]", "int").shape == (2, 0)


@both
@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        ("[1, true]", "float", "a boolean"),
        ('["1"]', "float", "a string"),
        ("[null]", "int", "null"),
        ("[{}]", "uint", "an object"),
        ("[1.5]", "int", "1.5 instead of an integer"),
        ("[1e3]", "uint", "1000.0 instead of an integer"),
        ("[9223372036854775808]", "int", "9223372036854775808, outside -9223372036854775808 to"),
        ("[-1]", "uint", "-1, outside 0 to 18446744073709551615"),
        ("[18446744073709551616]", "uint", "instead of an integer of 64 bits"),
    ],
)
def test_numbers_refuses_other_values(reader: Reader, data: str, kind: NumberKind, words: str) -> None:
    with pytest.raises(NonNumericArray, match=words):
        numbers(reader, data, kind)


@both
def test_members_returns_nodes(reader: Reader) -> None:
    document = reader(b'{"a": 1, "b": [2], "c": {"d": null}}')
    members = document.members(document.root, {"a", "b", "c"})
    assert members["a"] == 1
    assert document.is_array(members["b"])
    assert document.python(members["b"]) == [2]
    assert document.is_object(members["c"])
    assert document.python(members["c"]) == {"d": None}
    assert not document.is_array(members["c"])
    assert not document.is_object(members["a"])
    assert document.python(members["a"]) == 1
    with pytest.raises(UnknownField, match="c: unknown field"):
        document.members(document.root, {"a", "b"})


def test_members_refuses_repeated_names() -> None:
    document = parse(b'{"a": 1, ' + b'"b": 1, ' * 100_000 + b'"a": 2}')
    with pytest.raises(InvalidInput, match=r"b: expected one member of this name, got several"):
        document.members(document.root, {"a", "b"})


@both
def test_parse_invalid_json_gives_the_position(reader: Reader) -> None:
    for body in (b'{"a": }', b"\xef\xbb\xbf{}", b"", b"{}{}", b'"\xff"', b'"\\ud800"'):
        with pytest.raises(InvalidJson, match="line 1 column"):
            reader(body)


def test_shapes_are_uncertain_with_additional_brackets() -> None:
    for body, shapes_are_certain in (
        (b'{"x": [1, 2]}', True),
        (b'{"x": [[1], [2]]}', True),
        (b'{"x": [1, [2]]}', False),
        (b'{"x": [1, 2], "[": 0}', False),
        (b'{"x": [1, 2], "y": []}', False),
    ):
        document = parse(body)
        document.numbers(document.members(document.root, {"x", "y", "["})["x"], "int")
        assert document.shapes_are_certain() is shapes_are_certain


def test_parse_without_simdjson_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "simdjson", None)
    assert isinstance(parse(b"{}").root, dict)


def test_flatten_returns_elements_and_shape() -> None:
    assert flatten([]) == ([], (0,))
    assert flatten([[1, 2], [3, 4]]) == ([1, 2, 3, 4], (2, 2))
    assert flatten([[[]]]) == ([], (1, 1, 0))
    ragged: list[list[Any]] = [[1, [2]], [[1], 2], [[1], [2, 3]], [[[1]], [2]], [[], 1]]
    for nest in ragged:
        with pytest.raises(RaggedArray):
            flatten(nest)


def test_describe_type_names_json_types() -> None:
    document = parse(b'{"a": [], "o": {}}')
    members = document.members(document.root, {"a", "o"})
    names: dict[str, tuple[Any, ...]] = {
        "an array": ([], members["a"]), "an object": ({}, members["o"]), "null": (None,), "a string": ("",),
        "a number": (1, 1.5), "a boolean": (True,),
    }  # fmt: skip
    for name, values in names.items():
        assert [describe_type(value) for value in values] == [name] * len(values)
