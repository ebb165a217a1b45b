"""Serialize filters to lists of plain values for other processes, and deserialize them."""

from typing import Any, assert_never

from frameworks.core.filters import All, Any_, AnyOf, Exists, Filter, Not, Range


def filter_to_list(where: Filter) -> list[Any]:
    """Return the plain value of a filter: the name of its kind, and its fields."""
    match where:
        case AnyOf(key, values):
            return ["in", key, list(values)]
        case Range(key, above, at_least, below, at_most):
            return ["range", key, above, at_least, below, at_most]
        case Exists(key):
            return ["exists", key]
        case Not(inner):
            return ["not", filter_to_list(inner)]
        case All(parts):
            return ["and", *map(filter_to_list, parts)]
        case Any_(parts):
            return ["or", *map(filter_to_list, parts)]
    assert_never(where)


def filter_from_list(value: list[Any]) -> Filter:
    """Return the filter of `filter_to_list`. Raises ValueError for another list."""
    match value:
        case ["in", str() as key, list() as values]:
            return AnyOf(key, tuple(values))
        case ["range", str() as key, above, at_least, below, at_most]:
            return Range(key, above, at_least, below, at_most)
        case ["exists", str() as key]:
            return Exists(key)
        case ["not", inner]:
            return Not(filter_from_list(inner))
        case ["and", *parts]:
            return All(tuple(map(filter_from_list, parts)))
        case ["or", *parts]:
            return Any_(tuple(map(filter_from_list, parts)))
    raise ValueError("filter: expected a kind and its fields, got another list")
