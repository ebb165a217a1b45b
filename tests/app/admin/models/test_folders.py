"""GET /folders: which files and folders are models, and which of them are registered."""

from pathlib import Path

import pytest

from app.admin.models import folders
from app.admin.models.folders import FoldersApi, find_models
from tests.app.admin.monitoring.observed import make_slot


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    for path, size in {
        "digits/model.onnx": 10, "digits/labels.json": 3, "versions/1/model.onnx": 5, "versions/2/model.onnx": 6,
        "bert/model.safetensors": 7, "bert/config.json": 2, "graph.onnx": 4, "chat.gguf": 9, "org/name/model.onnx": 8,
        "hub/onnx/model.onnx": 3, "hub/config.json": 1,
        "org/deep/er/model.onnx": 1, "empty/readme.md": 1, "notes.txt": 1, ".hidden/model.onnx": 1,
        "quantized/copy/model.onnx": 1, "sources/hf/model.onnx": 1,
    }.items():  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(bytes(size))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "model.onnx").write_bytes(b"x")
    (root / "link").symlink_to(tmp_path / "outside")
    return root


def test_models_are_found_two_folders_deep(root: Path) -> None:
    found = {
        str(each.path.relative_to(root)): (each.framework, each.versions, each.size) for each in find_models((root,))
    }
    assert found == {
        "digits": ("onnx", [], 13),
        "versions": ("onnx", ["1", "2"], 11),
        "bert": ("pytorch", [], 9),
        "hub": ("onnx", [], 4),
        "graph.onnx": ("onnx", [], 4),
        "chat.gguf": ("pytorch", [], 9),
        "org/name": ("onnx", [], 8),
    }


def test_root_that_is_a_link_keeps_its_name(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert tmp_path / "alias" / "digits" in {each.path for each in find_models((tmp_path / "alias",))}


def test_absent_root_has_no_models(tmp_path: Path) -> None:
    assert find_models((tmp_path / "absent",)) == []


def test_walk_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_MOST_LOOKED_AT", 3)
    assert len(find_models((root,))) <= 3
    monkeypatch.undo()
    monkeypatch.setattr(folders, "_MOST_FOLDERS", 2)
    assert len(find_models((root,))) == 3


def test_registered_models_are_named(root: Path, tmp_path: Path) -> None:
    class Paths:
        roots = (root,)
        base_dir = tmp_path

    api = FoldersApi(None, Paths())  # type: ignore[arg-type]
    slot = make_slot("m")
    described = api._describe(
        [("a", root / "digits"), ("b", root / ".." / "models" / "digits"), (slot.name, slot.path)]
    )
    by_path = {each["path"]: each["registered_as"] for each in described["folders"]}
    assert by_path["./models/digits"] == ["a", "b"]
    assert by_path["./models/bert"] == []
    assert described["is_cut"] is False
