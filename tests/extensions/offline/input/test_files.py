"""The input files of a run and their output files."""

from pathlib import Path

import pytest

from extensions.offline.contract import WrongCommand
from extensions.offline.input.files import find_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.csv", "a.parquet", "notes.txt", "c.jsonl"):
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def test_single_file_has_named_output(folder: Path) -> None:
    (file,) = find_files(str(folder / "b.csv"), folder / "out.jsonl")
    assert (file.path, file.output, file.format, file.size) == (folder / "b.csv", folder / "out.jsonl", "csv", 1)
    assert not file.has_changed
    file.path.write_bytes(b"xy")
    assert file.has_changed


def test_folder_gives_files_in_order(folder: Path) -> None:
    files = find_files(str(folder), folder / "out")
    assert [file.output.name for file in files] == ["a.parquet", "b.csv", "c.jsonl"]
    files = find_files(str(folder), folder / "out", "parquet")
    assert [file.output.name for file in files] == ["a.parquet", "b.parquet", "c.parquet"]


def test_glob_selects_files(folder: Path) -> None:
    assert [file.path.name for file in find_files(str(folder / "*.[cj]s*"), folder / "out")] == ["b.csv", "c.jsonl"]


@pytest.mark.parametrize(
    ("source", "output", "output_format", "message"),
    [
        ("none*", "out", None, "INPUT"),
        ("notes.txt", "out.csv", None, "expected a file name with"),
        ("b.csv", "out.txt", None, "expected a file name with"),
        ("b.csv", "b.csv", None, "the same"),
        ("b.csv", "out.csv", "parquet", "leave --format out"),
        ("*.csv", "out.csv", None, "expected a folder"),
        (".", ".", None, "twice"),
    ],
)
def test_wrong_paths_are_refused(
    folder: Path, source: str, output: str, output_format: str | None, message: str
) -> None:
    with pytest.raises(WrongCommand, match=message):
        find_files(str(folder / source), folder / output, output_format)
