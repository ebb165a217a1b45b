"""Filters: what is parsed, and what is refused."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.errors import InvalidInput, RequestError, UnknownField
from frameworks.core.filters import (
    All,
    Any_,
    AnyOf,
    Exists,
    Filter,
    Not,
    Range,
    filter_from_list,
    filter_to_list,
    parse_filter,
)

SCALARS = st.text(max_size=3) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
BOUNDS = st.none() | st.floats(-9, 9)
LEAVES = st.one_of(
    st.builds(AnyOf, st.text(max_size=3), st.lists(SCALARS, max_size=3).map(tuple)),
    st.builds(Range, st.text(max_size=3), BOUNDS, BOUNDS, BOUNDS, BOUNDS),
    st.builds(Exists, st.text(max_size=3)),
)
FILTERS: st.SearchStrategy[Filter] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Any_, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, All(())),
        ({"lang": "en"}, AnyOf("lang", ("en",))),
        ({"lang": {"eq": "en"}}, AnyOf("lang", ("en",))),
        ({"n": 3}, AnyOf("n", (3.0,))),
        ({"n": {"ne": 3}}, Not(AnyOf("n", (3.0,)))),
        ({"n": {"in": [1, "a", True]}}, AnyOf("n", (1.0, "a", True))),
        ({"n": {"nin": ["a"]}}, Not(AnyOf("n", ("a",)))),
        ({"n": {"gte": 1, "lt": 2}}, Range("n", at_least=1.0, below=2.0)),
        ({"n": {"gt": 1}, "m": True}, All((Range("n", above=1.0), AnyOf("m", (True,))))),
        ({"n": {"lte": 1, "exists": True}}, All((Range("n", at_most=1.0), Exists("n")))),
        ({"n": {"exists": False}}, Not(Exists("n"))),
        ({"$or": [{"a": 1}, {"b": 2}]}, Any_((AnyOf("a", (1.0,)), AnyOf("b", (2.0,))))),
        ({"$and": []}, All(())),
        ({"$not": {"a": "x"}}, Not(AnyOf("a", ("x",)))),
    ],
)
def test_filter_is_parsed(value: Any, expected: Filter) -> None:
    assert parse_filter(value) == expected


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([], InvalidInput, "filter: expected an object, got a list"),
        ({"a": None}, InvalidInput, "filter.a: expected a string, a number, true or false, got null"),
        ({"a": {}}, InvalidInput, "filter.a: expected a value or one of eq"),
        ({"a": {"eqq": 1}}, UnknownField, 'filter.a.eqq: unknown field; did you mean "filter.a.eq"?'),
        ({"a": {"gt": "x"}}, InvalidInput, "filter.a.gt: expected a number, got a string"),
        ({"a": {"gt": True}}, InvalidInput, "filter.a.gt: expected a number, got a boolean"),
        ({"a": {"lt": 10**400}}, InvalidInput, "filter.a.lt: expected a finite number"),
        ({"a": {"in": "x"}}, InvalidInput, "filter.a.in: expected a list of values"),
        ({"a": {"in": [1] * 5000}}, InvalidInput, "filter.a.in: expected at most 4096 values, got 5000"),
        ({"a": {"exists": 1}}, InvalidInput, "filter.a.exists: expected true or false"),
        ({"$or": {}}, InvalidInput, "filter.$or: expected a list of filters, got an object"),
        ({"$nor": []}, UnknownField, 'filter.$nor: unknown field; did you mean "filter.$or"?'),
        ({"$and": [{"a": 1}, 2]}, InvalidInput, "filter.$and[1]: expected an object"),
        ({"": 1}, InvalidInput, "filter.: expected a key of 1 to 128 characters"),
        ({"$or": [{"a": 1}] * 300}, InvalidInput, "expected at most 256 conditions"),
    ],
)
def test_wrong_filter_is_refused(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        parse_filter(value)
    assert message in str(raised.value)


def test_deep_filter_is_refused() -> None:
    value: Any = {"a": 1}
    for _ in range(500):
        value = {"$not": value}
    with pytest.raises(InvalidInput, match="at most 16 levels"):
        parse_filter(value)


_KEYS = st.sampled_from(["a", "$and", "$or", "$not", "eq", "in", "gt", "exists", "$x", ""])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
)


@given(_JSON)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    with contextlib.suppress(RequestError):
        assert isinstance(parse_filter(value), AnyOf | Range | Exists | Not | All | Any_)


@given(FILTERS)
def test_sent_filter_is_the_same(where: Filter) -> None:
    received = filter_from_list(msgspec.msgpack.decode(msgspec.msgpack.encode(filter_to_list(where))))
    # 1.0 equals true: the types have to be the same too.
    assert repr(received) == repr(where)


@pytest.mark.parametrize("value", [[], ["like", "a"], ["exists", 1], ["in", "a", "b"], ["not"]])
def test_other_list_is_refused(value: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        filter_from_list(value)
