"""English prose of documentation: sentences without code, markup and repetitions."""

import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tools.training import prose as prose_module
from tools.training.prose import Document, documents, prose, without_markup

pytestmark = pytest.mark.extended

MODULES = frozenset({"argparse", "asyncio", "collections", "email", "json", "logging", "shlex", "threading"})
ALL = pytest.param((sys.stdlib_module_names, 1_000_000), id="all modules", marks=pytest.mark.nightly)
FOUND = pytest.mark.parametrize("found", [pytest.param((MODULES, 400_000), id="some modules"), ALL], indirect=True)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> list[Document]:
    """All documents of these modules, of the topics and of compiled objects, with at least so many characters."""
    modules, least = request.param
    with patch.object(prose_module, "sys", SimpleNamespace(stdlib_module_names=modules)):
        all_found = documents()
    assert sum(len(x) for document in all_found for e in document.entries for x in e.paragraphs) > least
    return all_found


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        (
            "First line of the text.\n\n    It is indented and\n    goes on.\n",
            ("First line of the text.", "It is indented and goes on."),
        ),
        ("This is what to write:\n\n    x = [1, 2]\n", ("This is what to write.",)),
        (">>> print('This is the first line of it')\nThis is the output of it.", ()),
        ("The call is f(a.b, c_d) -> e[0], g(h) and i.j.", ()),
        ("some words of a heading without an end", ()),
        ("Too short.", ()),
        ("Value  Meaning\n=====  =======\n1      one of the values.", ()),
        ("- The first of the items.\n- The second of it all.", ("The first of the items.", "The second of it all.")),
        ("New in version 3.7: The argument is new.", ()),
        ("Copyright 2001 by the people of the foundation.", ()),
    ],
)
def test_prose_keeps_sentences_and_drops_code(text: str, paragraphs: tuple[str, ...]) -> None:
    assert prose(text) == paragraphs


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("a :class:`~json.Decoder` and ``None``, *not* **all**", "a json.Decoder and None, not all"),
        ('the "list" type \u2014 don\u2019t [3]', "the list type - don't"),
        ("comma-\n   separated", "comma-separated"),
        ("JSON <https://json.org> is", "JSON is"),
        ("2 * 3 * 4", "2 * 3 * 4"),
    ],
)
def test_without_markup_removes_markup(marked: str, plain: str) -> None:
    assert without_markup(marked) == plain


@FOUND
def test_documents_of_this_python(found: list[Document]) -> None:
    names = {entry.name: entry for document in found for entry in document.entries if entry.kind != "comment"}
    assert names["math.sqrt"].paragraphs == ("Return the square root of x.",)
    assert names["json"].kind == "module"
    assert names["the assert statement"].kind == "topic"
    assert names["shlex.quote"].kind == "function"
    assert names["threading.Thread"].kind == "class"


@FOUND
def test_documents_have_unique_one_line_paragraphs(found: list[Document]) -> None:
    paragraphs = [x for document in found for entry in document.entries for x in entry.paragraphs]
    assert len(set(paragraphs)) == len(paragraphs)
    for paragraph in paragraphs:
        assert paragraph.isascii()
        assert "\n" not in paragraph
        assert "  " not in paragraph
        assert ">>>" not in paragraph
        assert paragraph[0].isupper()
        assert paragraph[-1] in ".!?"
