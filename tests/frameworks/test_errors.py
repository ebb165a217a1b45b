"""Errors of the caller: similar names, and names that are too long to compare or to show."""

import pytest

from app.config.issues import nearest
from frameworks.errors import MAX_COMPARED_CHARACTERS, ModelNotFound, UnknownField, VersionNotFound, similar_names

LONG = "x" * 6_000_000


def test_similar_names_found_best_first() -> None:
    assert similar_names("digit", ["digits", "minilm", "digit-2"], 2) == ["digits", "digit-2"]
    assert UnknownField.among("promt", ["prompt"], "inputs.").reason == 'unknown field; did you mean "inputs.prompt"?'
    assert nearest("Prot", ["port", "host"]) == "port"


def test_only_short_names_are_compared() -> None:
    name = "x" * MAX_COMPARED_CHARACTERS
    assert similar_names(name, [name], 1) == [name]
    assert similar_names(f"{name}x", [f"{name}x"], 1) == []
    assert nearest(f"{name}x", [f"{name}x"]) is None


@pytest.mark.parametrize(
    "error", [UnknownField.among(LONG, ["prompt"]), ModelNotFound(LONG, ["digits"]), VersionNotFound("a", LONG, ["1"])]
)
def test_long_name_is_cut_in_message(error: Exception) -> None:
    assert len(str(error)) < 400
