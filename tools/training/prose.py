"""Extract English prose from Python's documentation, the training text of `tiny-llama`.

Sources, all part of the running Python and under the PSF licence: the language reference's topics
(`pydoc_data.topics`), docstrings and comments of the standard library's modules, read as text, and docstrings of
built-in and compiled objects. The text depends on the version of Python.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["module", "class", "function", "topic", "comment"]

COMPILED = ("builtins", "decimal", "itertools", "math", "os", "socket", "sys", "time")
"""Modules with docstrings outside of Python files."""

LEAST_WORDS = 5
LEAST_PLAIN_SHARE = 0.8
"""Minimum share of a paragraph's words without brackets, dots or underscores."""

PLAIN_WORD = re.compile(r"[\"'(]?[A-Za-z]+(?:['-][A-Za-z]+)*[\"')]?[,.;:!?]?[\")]?")
FUNCTION_WORDS = frozenset({"a", "an", "and", "are", "be", "by", "for", "if", "in", "is", "it", "of", "the", "to"})
CODE = re.compile(r">>>|::|->|=>|==|\.\.\.|[|{}\\<>=^~$@#%]|__main__|https?:")
BULLET = re.compile(r"^\s*(?:[-*+o•]|\(?\d+[.)])\s+", re.MULTILINE)
UNDERLINE = re.compile(r"^(.+)\n([*=\-~^\"'+#])\2{2,}$", re.MULTILINE)
NOTE = re.compile(r"(?:New|Changed|Deprecated|Added) (?:in|since) (?:version )?\d|Source code:|See also|.*[Cc]opyright")
MARKUP = (
    (re.compile(r"\s*<https?:[^>]*>"), ""),
    (re.compile(r"[\u2018\u2019]"), "'"),
    (re.compile(r"[\u201c\u201d]"), '"'),
    (re.compile(r"\s*[\u2013\u2014]\s*"), " - "),
    (re.compile(r":[a-z:]+:`~?([^`]+)`"), r"\1"),
    (re.compile(r"`+([^`']+)[`']+"), r"\1"),
    (re.compile(r"\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}"), r"\1"),
    (re.compile(r"\"(\w[\w.]*(?:\(\))?)\""), r"\1"),
    (re.compile(r"\s*\[\d+\]"), ""),
    (re.compile(r"(\w)-\n\s*(?=[a-z])"), r"\1-"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The documentation of one object. `name`: for readers; paragraphs: one line each."""

    name: str
    kind: Kind
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """The entries of one module, topic or built-in type, in source order."""

    source: str
    entries: tuple[Entry, ...]


def documents() -> list[Document]:
    """Return all documents without repeated paragraphs, in an order that depends only on the version of Python."""
    seen: set[str] = set()
    found = []
    for source, entries in (*_topics(), *_compiled(), *_modules()):
        kept = []
        for entry in entries:
            paragraphs = tuple(x for x in dict.fromkeys(entry.paragraphs) if x not in seen)
            seen.update(paragraphs)
            if paragraphs:
                kept.append(Entry(entry.name, entry.kind, paragraphs))
        if kept:
            found.append(Document(source, tuple(kept)))
    return found


def prose(text: str) -> tuple[str, ...]:
    """Return the paragraphs of English sentences, without markup, one line each; code and tables are dropped."""
    pieces = (piece for block in re.split(r"\n\s*\n", inspect.cleandoc(text)) for piece in BULLET.split(block))
    return tuple(x for x in map(_sentences, pieces) if x)


def without_markup(text: str) -> str:
    """Return `text` on one line, without reStructuredText's emphasis, code, roles and footnotes."""
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def _sentences(block: str) -> str:
    """Return the block as one line of English; empty if it is not a sentence."""
    text = without_markup(block)
    if text.endswith(":"):  # code follows
        text = text[:-1] + "."
    words = text.split()
    plain = sum(bool(PLAIN_WORD.fullmatch(word)) for word in words)
    is_english = (
        len(words) >= LEAST_WORDS
        and text.isascii()
        and text[0].isupper()
        and text[-1] in ".!?"
        and not CODE.search(text)
        and not NOTE.match(text)
        and plain >= LEAST_PLAIN_SHARE * len(words)
        and not FUNCTION_WORDS.isdisjoint(words)
    )
    return text if is_english else ""


def _topics() -> Iterator[tuple[str, list[Entry]]]:
    from pydoc_data.topics import topics

    for label, text in sorted(topics.items()):
        _, *sections = UNDERLINE.split(text)
        entries = [Entry(_heading(title), "topic", prose(body)) for title, _, body in _triples(sections)]
        yield f"topic {label}", entries


def _triples(pieces: list[str]) -> Iterable[tuple[str, str, str]]:
    return zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)


def _heading(title: str) -> str:
    name = without_markup(title.replace('"', "")).split(" - ")[0]
    return re.sub(r"\b(?!None|Ellipsis|Python)[A-Z][a-z]+\b", lambda word: word[0].lower(), name)


def _compiled() -> Iterator[tuple[str, list[Entry]]]:
    for module in COMPILED:
        for name, value in sorted(vars(importlib.import_module(module)).items()):
            if not name.startswith("_") and callable(value):
                full_name = name if module == "builtins" else f"{module}.{name}"
                yield f"compiled {full_name}", list(_members_of_value(full_name, value))


def _members_of_value(name: str, value: object) -> Iterator[Entry]:
    is_type = isinstance(value, type)
    yield Entry(name, "class" if is_type else "function", prose(_summary(value.__doc__)))
    for member_name, member in sorted(vars(value).items()) if is_type else ():
        if not member_name.startswith("_"):
            yield Entry(f"{name}.{member_name}", "function", prose(_summary(member.__doc__)))


def _modules() -> Iterator[tuple[str, list[Entry]]]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if parts[0] not in sys.stdlib_module_names or "test" in parts or "tests" in parts or "idle_test" in parts:
            continue
        text = importlib.util.decode_source(path.read_bytes())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escape sequences
            tree = ast.parse(text)
        name = ".".join(part for part in parts if part != "__init__")
        about = Entry(name, "module", prose(_summary(ast.get_docstring(tree))))
        yield name, [about, *_members(tree, name), Entry(name, "comment", _comments(text))]


def _members(parent: ast.AST, prefix: str) -> Iterator[Entry]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{node.name}"
            kind: Kind = "class" if isinstance(node, ast.ClassDef) else "function"
            yield Entry(name, kind, prose(_summary(ast.get_docstring(node))))
            yield from _members(node, name)


def _comments(text: str) -> tuple[str, ...]:
    """Return the prose of comment lines."""
    lines = (re.sub(r"^\s*#+ ?", "", line) if re.match(r"\s*#", line) else "" for line in text.splitlines())
    return prose("\n".join(lines))


def _summary(docstring: object) -> str:
    """Return the docstring with a full stop after its first line, if that line is a sentence without one."""
    text = inspect.cleandoc(docstring) if isinstance(docstring, str) else ""
    return re.sub(r"\A([A-Z][^\n]*[A-Za-z)])(?=\n\s*\n|\Z)", r"\1.", text)
