"""Filters as plain values for other processes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.search.collections.filter_serialization import filter_from_list, filter_to_list
from frameworks.core.filters import All, Any_, AnyOf, Exists, Filter, Not, Range

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


@given(FILTERS)
def test_sent_filter_is_the_same(where: Filter) -> None:
    received = filter_from_list(msgspec.msgpack.decode(msgspec.msgpack.encode(filter_to_list(where))))
    # 1.0 equals true: the types have to be the same too.
    assert repr(received) == repr(where)


@pytest.mark.parametrize("value", [[], ["like", "a"], ["exists", 1], ["in", "a", "b"], ["not"]])
def test_other_list_is_refused(value: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        filter_from_list(value)
