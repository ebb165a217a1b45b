"""Prepared folders: complete or absent, made once; folders of users are kept."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.embedded.folder import MANIFEST, is_prepared, prepare_folder

RECIPE = {"recipe": "1"}


def write_model(folder: Path) -> None:
    (folder / "nested").mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    (folder / "nested" / "config.json").write_text("{}")


def test_prepare_folder_makes_folder_once(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "one"
    assert prepare_folder(folder, RECIPE, write_model)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert not prepare_folder(folder, RECIPE, write_model)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert [path.name for path in folder.parent.iterdir()] == ["one"]


def test_prepare_folder_remakes_after_recipe_change(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "one", RECIPE, write_model)
    assert prepare_folder(tmp_path / "one", {"recipe": "2"}, write_model)
    assert is_prepared(tmp_path / "one", {"recipe": "2"})
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize("damage", ["truncated", "missing", "manifest"])
def test_prepare_folder_remakes_damaged_folder(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "one"
    prepare_folder(folder, RECIPE, write_model)
    if damage == "truncated":
        (folder / "model.bin").write_bytes(b"weigh")
    elif damage == "missing":
        (folder / "nested" / "config.json").unlink()
    else:
        (folder / MANIFEST).write_text('{"recipe": ')
    assert not is_prepared(folder, RECIPE)
    assert prepare_folder(folder, RECIPE, write_model)
    assert (folder / "model.bin").read_bytes() == b"weights"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_prepare_folder_removes_old_unfinished_folders(tmp_path: Path) -> None:
    left, at_work = tmp_path / ".one.0a.making", tmp_path / ".one.0b.making"
    for folder in (left, at_work):
        folder.mkdir()
        (folder / "model.bin").write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(left, (long_ago, long_ago))
    assert prepare_folder(tmp_path / "one", RECIPE, write_model)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".one.0b.making", "one"]


def test_failed_make_keeps_previous_folder(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write_model(folder)
        raise RuntimeError("disk full")

    prepare_folder(tmp_path / "one", RECIPE, write_model)
    with pytest.raises(RuntimeError, match="disk full"):
        prepare_folder(tmp_path / "one", {"recipe": "2"}, fail)
    assert is_prepared(tmp_path / "one", RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_folder_of_user_is_renamed_and_kept(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "model.bin").write_bytes(b"my own")
    assert prepare_folder(tmp_path / "one", RECIPE, write_model)
    (kept,) = tmp_path.glob(".one.*.kept")
    assert (kept / "model.bin").read_bytes() == b"my own"
    assert is_prepared(tmp_path / "one", RECIPE)


def test_concurrent_calls_make_one_complete_folder(tmp_path: Path) -> None:
    def make_slowly(folder: Path) -> None:
        write_model(folder)
        time.sleep(0.02)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: prepare_folder(tmp_path / "one", RECIPE, make_slowly), range(8)))
    assert any(made)
    assert is_prepared(tmp_path / "one", RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
