"""Find the pages of the manual, and the examples in them."""

import re
from itertools import count
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
ANY = "…"
"""Stands for any value in the expected output of an example."""


class Example(NamedTuple):
    """A block of code and the block with its output. `name`: page and number."""

    name: str
    code: str
    output: str


def examples(language: str, output: str) -> list[Example]:
    """Return the blocks of a language on all pages that are followed by a block with their output."""
    pattern = rf"```{language}\n(.*?)```\n```{output}\n(.*?)```"
    return [
        Example(f"{page.stem}-{number}", code, printed)
        for page in PAGES
        for number, (code, printed) in zip(
            count(1), re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL), strict=False
        )
    ]


def blocks(language: str) -> list[str]:
    """Return every block of a language on all pages."""
    found: list[str] = []
    for page in PAGES:
        found += re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return found
