"""The rooms of the code stay small: their lines have bounds in docs/architecture.md, the files of a folder one here."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "extensions", "frameworks", "memory")
MAX_FILES = 16
MAX_DOCSTRING_LINES = 10

_ROW = re.compile(r"^\| `([\w/]+)` \| ([\d,]+) \|", re.MULTILINE)


def lines_of(files: Iterator[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def rooms() -> dict[str, int]:
    """Return the lines of each room: a folder of a package, and the loose files of a package together."""
    found = {}
    for package in PACKAGES:
        for folder in sorted(each for each in (ROOT / package).iterdir() if any(each.glob("*.py"))):
            found[f"{package}/{folder.name}"] = lines_of(folder.rglob("*.py"))
        found[package] = lines_of((ROOT / package).glob("*.py"))
    return found


def bounds() -> dict[str, int]:
    """Return the bounds of the table in docs/architecture.md."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Rooms")[2].partition("\n## ")[0]
    return {room: int(lines.replace(",", "")) for room, lines in _ROW.findall(table)}


def folders() -> list[Path]:
    return [folder for package in PACKAGES for folder in (ROOT / package).rglob("*") if any(folder.glob("*.py"))]


def test_each_room_has_a_bound() -> None:
    assert bounds().keys() == rooms().keys()


@pytest.mark.parametrize("room", rooms())
def test_room_keeps_its_bound(room: str) -> None:
    """A room that needs more raises its number in docs/architecture.md, in a commit that says why."""
    assert rooms()[room] <= bounds().get(room, 0)


def test_folders_have_few_files() -> None:
    found = {str(each.relative_to(ROOT)): len([*each.glob("*.py")]) - 1 for each in folders()}
    assert not {folder: files for folder, files in found.items() if files > MAX_FILES}


def test_packages_say_where_to_begin() -> None:
    long = {}
    for folder in folders():
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        docstring = text.split('"""')[1] if text.startswith('"""') else ""
        if not 0 < len(docstring.strip().splitlines()) <= MAX_DOCSTRING_LINES:
            long[str(folder.relative_to(ROOT))] = docstring
    assert not long
