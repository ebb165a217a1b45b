"""Hold comments, docstrings, messages, test names and the manual to plain technical English.

`python tests/test_language.py [PATH ...]` lists every offence.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

BANNED = (
    r"nobody|whoever|anew|for want of|of which none",
    r"who (?:asks?|waits?|leaves?|comes?|reads?)",
    r"is no (?:tensor|number|list|text|string|integer)",
    r"lets? (?:it|them) go",
    r"visitors?|doors?|journeys?|house|turntable",
    r"sent out|com(?:es|e|ing) and go(?:es|ing)?|(?:has|have|had) left",
    r"(?:is|are|was|were) told",
    r"(?:on )?(?:its|their) way",
    r"wants",
    r"least recently used .{0,40} leaves",
    r"waiting line|back into the line",
    r"who is (?:let in|next)|with whom|devices they stand on|used last is last|made-up rows",
    r"under way|in the mean|put back|known from before|promised to models|lost count",
)
"""Phrases of the old style, as regular expressions that match whole words in any case."""

WHAT_AS_SUBJECT = r"(?<![\w\"'`])(?:What|Whoever|Who|Nobody) (?![^.?!]*\?)"
"""A sentence whose subject is not named. Questions are allowed."""

BANNED_IN_NAMES = frozenset({"anew", "asking", "door", "doors", "house", "journey", "nobody", "turntable"}) | frozenset(
    {"visitor", "visitors", "whoever"}
)
"""Words that no name of a variable, function or class contains."""

MAX_WORDS_OF_A_TEST_NAME = 8

CHECKED = (
    *(".ci", "Makefile", "README.md", "app", "config.toml", "docker", "docs", "extensions", "frameworks", "memory"),
    *("mkdocs.yml", "pyproject.toml", "tests", "tools"),
)
"""Files and folders below the root that follow the rules."""

_PHRASES = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)
_SUBJECT = re.compile(rf"(?:^|(?<=[.:;!] )){WHAT_AS_SUBJECT}")
_NAMES = re.compile(
    "|".join(rf"(?:(?<![A-Za-z]){word}|{word.capitalize()})(?![a-z])" for word in sorted(BANNED_IN_NAMES))
)
# Quotes inside of a comment and number signs inside of a string belong to the one that began first.
_COMMENT_OR_STRING = re.compile(
    r"""#(?P<comment>[^\n]*)"""
    r"""|\"{3}[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*\"{3}|'{3}[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'{3}"""
    r"""|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'""",
    re.DOTALL,
)
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_GENERATED = re.compile(r"<!-- generated: .*?<!-- end: ", re.DOTALL)
_SKIPPED = (
    "tests/test_language.py",  # holds the phrases themselves
    "app/embedded/tiny_llama/",  # files of a trained model
    "tools/training/dialogues.py",  # training texts
    "tools/training/prose.py",
    "tools/training/tool_tasks.py",
    "frameworks/quantization/texts.py",
    "tools/bench/shared/corpus.py",
)
_DASHBOARDS = "docker/grafana/"
_TEXT_SUFFIXES = {".md", ".toml", ".yml", ".yaml", ".sh", ".proto", ".cfg"}
_TEXT_NAMES = {"Makefile", "Dockerfile", "run"}


def offences(path: Path) -> list[str]:
    """Return one line for each banned phrase in a file: its line number, the phrase, the text around it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        found = _found_in(_texts_of(json.loads(text)))
    elif path.suffix == ".py":
        nodes = list(ast.walk(ast.parse(text)))
        pieces = [*_comments(text), *_strings(nodes, is_test=path.is_relative_to(ROOT / "tests"))]
        found = [*_found_in(pieces), *_banned_names(text), *_long_test_names(nodes)]
    else:
        # Generated tables repeat texts of the code, which are checked there.
        found = _found_in(_paragraphs(_GENERATED.sub(lambda match: "\n" * match[0].count("\n"), text)))
    return found


def checked_files(*paths: str) -> list[Path]:
    """List the tracked files below the paths whose language is checked."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *paths]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [
        ROOT / name
        for name in sorted(set(names))
        if (ROOT / name).is_file()
        and not name.startswith(_SKIPPED)
        and (
            (name.endswith(".py") or Path(name).suffix in _TEXT_SUFFIXES or Path(name).name in _TEXT_NAMES)
            or (name.startswith(_DASHBOARDS) and name.endswith(".json"))
        )
    ]


def _found_in(pieces: Iterator[tuple[int, str]] | list[tuple[int, str]]) -> list[str]:
    return [
        f"{line}: {match[0].strip()!r} in {text[max(0, match.start() - 30) : match.end() + 40]!r}"
        for line, text in pieces
        for pattern in (_PHRASES, _SUBJECT)
        for match in pattern.finditer(text)
    ]


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments with their first line; neighbouring lines of comments are one text."""
    first, last, words = 0, -1, ""
    line, counted = 1, 0
    for match in _COMMENT_OR_STRING.finditer(source):
        if match["comment"] is None:
            continue
        start = match.start()
        line += source.count("\n", counted, start)
        counted = start
        text = match["comment"].lstrip("#: ")
        is_alone = not source[source.rfind("\n", 0, start) + 1 : start].strip()
        if line == last + 1 and is_alone:
            words = f"{words} {text}"
        else:
            if words:
                yield first, words
            first, words = line, text
        last = line
    if words:
        yield first, words


def _strings(nodes: list[ast.AST], is_test: bool) -> Iterator[tuple[int, str]]:
    """Yield docstrings and other string literals; of a test the docstrings only: the rest is test data."""
    blocks = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    bodies = (node.body for node in nodes if isinstance(node, blocks))
    documented = {id(each.value) for body in bodies for each in body if isinstance(each, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (id(node) in documented or not is_test):
            yield node.lineno, " ".join(node.value.split())


def _banned_names(source: str) -> list[str]:
    code = _COMMENT_OR_STRING.sub(lambda match: "\n" * match[0].count("\n"), source)
    if not _NAMES.search(code):
        return []
    names = {name: line for line, text in enumerate(code.split("\n"), 1) for name in _IDENTIFIER.findall(text)}
    return [f"{line}: the name {name}" for name, line in names.items() if _NAMES.search(name)]


def _long_test_names(nodes: list[ast.AST]) -> list[str]:
    return [
        f"{node.lineno}: {node.name} has more than {MAX_WORDS_OF_A_TEST_NAME} words"
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if len(node.name.split("_")) - 1 > MAX_WORDS_OF_A_TEST_NAME
    ]


def _texts_of(value: Any) -> Iterator[tuple[int, str]]:
    """Yield the texts that a dashboard shows."""
    if isinstance(value, list):
        for each in value:
            yield from _texts_of(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in ("title", "description", "legendFormat"):
                yield 1, each
            else:
                yield from _texts_of(each)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a text file without its marks for comments, lists and tables."""
    line = 1
    for paragraph in text.split("\n\n"):
        yield line, " ".join(part.lstrip("#/-*|> ") for part in paragraph.splitlines())
        line += paragraph.count("\n") + 2


@pytest.mark.parametrize("path", CHECKED)
def test_language_is_plain(path: str) -> None:
    found = {str(file.relative_to(ROOT)): offences(file) for file in checked_files(path)}
    assert not any(found.values()), "\n".join(f"{name}:{each}" for name, lines in found.items() for each in lines)


@pytest.mark.parametrize(
    "text",
    [
        "A request's way from its words to its answer, whatever door it came in by",
        "is its visitor until its answer has left",
        "the least recently used model that nobody uses leaves",
        "What nobody waits for is told at the latest after so long",
        "is true or false; wants a whole number",
        "Loads the model. What is old goes.",
    ],
)
def test_phrase_of_old_style_is_found(text: str) -> None:
    assert _found_in([(1, text)])


@pytest.mark.parametrize(
    "text",
    [
        "Run one request, for every protocol",
        "holds a reference until the response is sent",
        "the least recently used idle model is evicted",
        "Maximum delay before buffered tokens are delivered",
        "expected an integer, got a boolean",
        "Roundhouse serves models. What is a list?",
    ],
)
def test_plain_phrase_is_not_found(text: str) -> None:
    assert not _found_in([(1, text)])


def test_long_test_name_is_found() -> None:
    assert _long_test_names([*ast.walk(ast.parse("def test_one_two_three_four_five_six_seven_eight_nine(): ..."))])
    assert not _long_test_names([*ast.walk(ast.parse("def test_one_two_three_four_five_six_seven_eight(): ..."))])


def test_banned_word_of_a_name_is_found() -> None:
    assert _banned_names("for_nobody = GrpcDoor()") == ["1: the name for_nobody", "1: the name GrpcDoor"]
    assert not _banned_names("roundhouse = Pipeline()")


def test_texts_of_dashboard_are_read() -> None:
    dashboard = {
        "title": "Server",
        "panels": [{"title": "Under way", "targets": [{"legendFormat": "known from before"}]}],
    }
    assert [text for _, text in _texts_of(dashboard)] == ["Server", "Under way", "known from before"]
    assert len(_found_in(_texts_of(dashboard))) == 2


def test_comment_over_two_lines_is_one_text() -> None:
    assert list(_comments("# for want\n# of room\nx = 1  # other\n\n# third\n")) == [
        (1, "for want of room"),
        (3, "other"),
        (5, "third"),
    ]


@pytest.mark.parametrize(
    "literal",
    ['"#"', "'\\'#'", 'r"\\"#"', '"""\n"\n#"""', "'''\\'''#'''", "f'{x:#x}'", "'\\\n#'", "''", '""""#"""'],
)
def test_number_sign_in_string_is_no_comment(literal: str) -> None:
    source = f"x = {literal}  # one's comment\n# next\ny = 1  # last"
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    wanted = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    assert wanted == ["one's comment", "next", "last"]
    assert " ".join(text for _, text in _comments(source)) == " ".join(wanted)


def main() -> None:
    """Print every offence in the project, then a count by folder."""
    counts: Counter[str] = Counter()
    for file in checked_files(*sys.argv[1:]):
        name = str(file.relative_to(ROOT))
        for each in offences(file):
            print(f"{name}:{each}")
            counts[str(Path(name).parent)] += 1
    for folder, count in sorted(counts.items()):
        print(f"{count:5} {folder}")
    print(f"{counts.total():5} in all")


if __name__ == "__main__":
    main()
