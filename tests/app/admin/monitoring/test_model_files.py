"""Files of a model: no path leads out of its folder, and the quantized graph takes the place of the original."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admin.monitoring.file_sending import file_of, read_version
from app.admin.monitoring.model_files import ModelFolder
from app.protocols.shared.errors import NotFound
from frameworks.core.errors import InvalidInput


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, and beside it files that no client may fetch."""
    folder = tmp_path / "models" / "m"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / "model.onnx").write_bytes(b"original")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / ".cache" / "token").write_text("secret")
    (folder / ".env").write_text("secret")
    (tmp_path / "keys.toml").write_text("secret")
    (tmp_path / "models" / "m-other").mkdir()
    (tmp_path / "models" / "m-other" / "secret.txt").write_text("secret")
    (folder / "link.toml").symlink_to(tmp_path / "keys.toml")
    (folder / "other").symlink_to(tmp_path / "models" / "m-other")
    (folder / "inside.json").symlink_to(folder / "1_Pooling" / "config.json")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "gone").symlink_to(folder / "absent")
    os.mkfifo(folder / "pipe")
    return folder


def content(opened_by: ModelFolder, path: str) -> bytes:
    opened = opened_by.open(path)
    try:
        return os.pread(opened.descriptor, opened.size, 0)
    finally:
        os.close(opened.descriptor)


def test_listed_files_are_those_that_open(folder: Path) -> None:
    model = ModelFolder(folder)
    listed = {each.path: each.size for each in model.list_files()}
    assert listed == {"1_Pooling/config.json": 2, "inside.json": 2, "model.onnx": 8}
    assert {path: len(content(model, path)) for path in listed} == listed


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "../m-other/secret.txt", "../../keys.toml", "1_Pooling/../../../keys.toml", "/etc/passwd",
        "link.toml", "other/secret.txt", "other", "loop", "gone", "pipe", "1_Pooling", "1_Pooling/", "./model.onnx",
        "1_Pooling//config.json", ".env", ".cache/token", "model.onnx/", "model.onnx/x", "model.onnx\0", "a" * 300,
        "a/" * 9 + "a", "..\\keys.toml", "absent", "~/x", "%2e%2e/keys.toml",
    ],
)  # fmt: skip
def test_other_paths_are_not_found(folder: Path, path: str) -> None:
    with pytest.raises(NotFound, match="expected a file of the model"):
        ModelFolder(folder).open(path)


@given(
    path=st.lists(st.sampled_from(["..", ".", "", "m", "other", "keys.toml", "secret.txt", "link.toml", "/"])).map(
        "/".join
    )
)
def test_no_path_opens_a_secret(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "hypothesis" / "m"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder.parent / "keys.toml").write_text("secret")
        (folder / "link.toml").symlink_to(folder.parent / "keys.toml")
        (folder / "other").symlink_to(folder.parent)
    with pytest.raises(NotFound):
        ModelFolder(folder).open(path)


def test_link_to_the_folder_itself_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert content(ModelFolder(tmp_path / "alias"), "model.onnx") == b"original"
    assert len(ModelFolder(tmp_path / "alias").list_files()) == 3


def test_model_of_one_file_has_no_other(folder: Path) -> None:
    model = ModelFolder(folder / "model.onnx")
    assert [(each.path, each.size) for each in model.list_files()] == [("model.onnx", 8)]
    assert content(model, "model.onnx") == b"original"
    for path in ("inside.json", "1_Pooling/config.json"):
        with pytest.raises(NotFound):
            model.open(path)


def test_quantized_graph_replaces_the_original(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "cache" / "quantized" / "copy"
    copy.mkdir(parents=True)
    (copy / "model.onnx").write_bytes(b"int8")
    (copy / "model.onnx.data").write_bytes(b"weights")
    (copy / "report.json").write_text("{}")
    model = ModelFolder(folder, copy / "model.onnx")
    listed = {each.path: (each.size, each.quantized) for each in model.list_files()}
    assert listed == {
        "1_Pooling/config.json": (2, False),
        "inside.json": (2, False),
        "model.onnx": (4, True),
        "model.onnx.data": (7, True),
    }
    assert (content(model, "model.onnx"), content(model, "model.onnx.data")) == (b"int8", b"weights")
    single = ModelFolder(folder / "model.onnx", copy / "model.onnx")
    assert content(single, "model.onnx") == b"int8"
    # On another node of a cluster the copy is not there: the model has its own graph.
    assert content(ModelFolder(folder, tmp_path / "elsewhere" / "model.onnx"), "model.onnx") == b"original"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/models/a/files/model.onnx", ("a", "model.onnx")), ("/models/a/files/b/c", ("a", "b/c")),
        ("/models/a/files", None), ("/models/a/files/", None), ("/models//files/x", None),
        ("/models/a/b/files/x", ("a/b", "x")), ("/models/a/b/c/files/x", None),
        ("/v1/models/a/files/x", None), ("/models/a/load", None), ("/models/a/files/files/x", ("a", "files/x")),
    ],
)  # fmt: skip
def test_path_names_model_and_file(path: str, expected: tuple[str, str] | None) -> None:
    assert file_of(path) == expected


def test_query_names_a_version() -> None:
    assert (read_version(b""), read_version(b"version=3")) == (None, "3")
    for query in (b"version=", b"version=a", b"v=1", b"version=1&version=2", b"version=" + b"1" * 20):
        with pytest.raises(InvalidInput):
            read_version(query)


def test_quantized_graph_replaces_that_of_hub_layout(tmp_path: Path) -> None:
    folder, copy = tmp_path / "m", tmp_path / "copy"
    for path in (folder / "onnx" / "model.onnx", folder / "onnx" / "model.onnx_data", copy / "model.onnx"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(path.parent.name.encode())
    (copy / "model.onnx.data").write_bytes(b"data")
    listed = {each.path: each.quantized for each in ModelFolder(folder, copy / "model.onnx").list_files()}
    assert listed == {"onnx/model.onnx": True, "onnx/model.onnx.data": True, "onnx/model.onnx_data": False}
