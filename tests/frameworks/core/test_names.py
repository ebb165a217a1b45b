"""Names of models: their form, and those that a caller may have meant."""

import re

import pytest

from app.extension import http_access
from frameworks.core.errors import ModelNotFound
from frameworks.core.names import WORDS_BEHIND_NAMES, checked_name, meant_names

HTTP_ACCESS = http_access()


@pytest.mark.parametrize("name", ["a", "BAAI/bge-m3", "org/a.b-c_1", "load", "load/a", "a" * 128])
def test_name_of_one_or_two_parts_accepted(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["", "a/", "/a", "a//b", "a/b/c", "..", "../a", "a/.b", "a/b\n", "a" * 129, "é/a"])
def test_other_name_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected a name or org/name of 1 to 128 letters"):
        checked_name(name)


def test_word_of_path_refused_as_second_part() -> None:
    with pytest.raises(ValueError, match=r"expected org/name without a word of a path .*; replace files"):
        checked_name("org/files")


def test_words_are_those_of_routes() -> None:
    """A route with another word behind a name: add the word to WORDS_BEHIND_NAMES."""
    found = {match[1] for path in HTTP_ACCESS if (match := re.search(r"\{name\}/(\w+)", path))}
    assert found == set(WORDS_BEHIND_NAMES)


@pytest.mark.parametrize("name", ["bge-m3", "baai/BGE-M3", "other/bge-m3", "BAAI/Bge-M3"])
def test_absent_name_gets_meant_one(name: str) -> None:
    assert ModelNotFound(name, ["digits", "BAAI/bge-m3", "bge-m"]).message == (
        f'model "{name}" is not registered; did you mean "BAAI/bge-m3"?'
    )


def test_several_meant_names_are_listed() -> None:
    assert ModelNotFound("M", ["b/m", "a/m", "n"]).message.endswith("there is a/m, b/m")


def test_long_name_is_not_compared() -> None:
    assert meant_names(f"{'o' * 200}/a", ["a"]) == []
