"""Choose the model of a load test from the list of a server."""

import pytest

from extensions.load_test.target import _own_names


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ([{"id": "a"}, {"id": "b", "root": "a"}, {"id": "a:x", "root": "a", "parent": "a"}], ["a"]),
        ([{"id": "a", "root": "a"}], ["a"]),
        ([{"id": "served", "root": "/files/a", "parent": None}], ["served"]),
        ([{"id": "a"}, {"id": "b"}, {"name": "c"}, 1], ["a", "b"]),
        ([], []),
    ],
)
def test_aliases_and_adapters_are_no_models(listed: list[object], names: list[str]) -> None:
    assert _own_names(listed) == names
