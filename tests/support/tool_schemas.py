"""Random JSON schemas of function parameters: nested objects, enums, arrays and unions, all of bounded size."""

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
_NAMES = ("a", "city", "unit_2", "ids")
# Of strings within strings: JSON escapes, other alphabets, and characters that Python escapes otherwise.
_CONSTANTS = st.sampled_from(
    ["x", "", 'say "hi"', "back\\slash", "línea\n2", "'", "🚂", 0, -1.5, True, None, "</tool_call>"]
)

_leaves: st.SearchStrategy[Schema] = st.one_of(
    st.builds(lambda size: {"type": "string", "maxLength": size}, st.integers(0, 8)),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-50, 50),
        st.integers(0, 500),
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "format": "date"}]),
    st.builds(lambda values: {"enum": values}, st.lists(_CONSTANTS, min_size=1, max_size=3, unique_by=repr)),
    st.builds(lambda value: {"const": value}, _CONSTANTS),
    st.just({"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"}),
)


def _objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.dictionaries(st.sampled_from(_NAMES), inner, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from([*properties] or ["a"])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & properties.keys()),
                "additionalProperties": False,
            }
        )
    )


def _wider(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        _objects(inner),
        st.builds(lambda items, size: {"type": "array", "items": items, "maxItems": size}, inner, st.integers(0, 3)),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3)),
    )


parameters: st.SearchStrategy[Schema] = _objects(st.recursive(_leaves, _wider, max_leaves=6))
"""Schemas of the arguments of a function."""
