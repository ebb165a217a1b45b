"""Test which versions a path has, and which of them are served."""

import os
from pathlib import Path

import pytest

from frameworks.core.settings.entry_values import VersionPolicy
from frameworks.models.versions.version_folders import (
    files_state,
    find_versions,
    framework_of,
    framework_of_model,
    served_versions,
)
from tests.frameworks.models.sized_registry import make_versions


def test_numbered_folders_are_versions_oldest_first(tmp_path: Path) -> None:
    make_versions(tmp_path, 10, 2, 1)
    assert find_versions(tmp_path) == {name: tmp_path / name for name in ("1", "2", "10")}
    assert list(find_versions(tmp_path)) == ["1", "2", "10"]


@pytest.mark.parametrize("name", ["0", "01", "-1", "1.0", "v1", "1 ", "²", "٣", "1" * 19])
def test_folder_without_plain_number_is_ignored(tmp_path: Path, name: str) -> None:
    make_versions(tmp_path, 3)
    (tmp_path / name).mkdir()
    assert list(find_versions(tmp_path)) == ["3"]


def test_numbered_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"")
    assert find_versions(tmp_path) == {"1": tmp_path}


def test_path_without_version_folders_is_version_1(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    for path in (tmp_path, tmp_path / "model.onnx", tmp_path / "absent"):
        assert find_versions(path) == {"1": path}


@pytest.mark.parametrize(
    ("policy", "served"),
    [("latest", ["10"]), ("all", ["1", "2", "10"]), ((1, 10), ["1", "10"]), ((10, 1, 7), ["1", "10"]), ((7,), [])],
)
def test_version_policy_selects_served_versions(policy: VersionPolicy, served: list[str]) -> None:
    assert served_versions(["1", "2", "10"], policy) == served


def test_state_of_file_includes_its_external_data(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"graph")
    (tmp_path / "other.onnx").write_bytes(b"other")
    before = files_state(model)
    (tmp_path / "other.onnx").write_bytes(b"changed")
    assert files_state(model) == before
    (tmp_path / "m.onnx.data").write_bytes(b"weights")
    with_data = files_state(model)
    assert with_data != before
    os.utime(tmp_path / "m.onnx.data", ns=(1, 1))
    assert files_state(model) != with_data


def test_state_of_folder_includes_folders_below(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    config = tmp_path / "1_Pooling" / "config.json"
    config.write_bytes(b"{}")
    before = files_state(tmp_path)
    for folder in ("2", ".cache"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.onnx").write_bytes(b"of no interest")
    assert files_state(tmp_path) == before
    replaced = tmp_path / "1_Pooling" / ".new"
    replaced.write_bytes(b"[]")
    os.utime(replaced, ns=(config.stat().st_atime_ns, config.stat().st_mtime_ns))
    replaced.rename(config)
    assert files_state(tmp_path) != before, "the same size and time, another inode"


def test_state_of_link_is_that_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"one")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").symlink_to(tmp_path / "blob")
    before = files_state(tmp_path / "m")
    (tmp_path / "blob").write_bytes(b"other")
    assert files_state(tmp_path / "m") != before
    (tmp_path / "blob").unlink()
    assert files_state(tmp_path / "m") == files_state(tmp_path / "absent") == frozenset()


@pytest.mark.parametrize(
    ("files", "path", "expected"),
    [
        (["model.onnx"], "", "onnx"), (["a.onnx"], "a.onnx", "onnx"), (["a.onnx"], "", None),
        (["model.onnx", "model.safetensors"], "", "onnx"), (["a.safetensors"], "", "pytorch"),
        (["a.GGUF"], "", "pytorch"), (["a.gguf"], "a.gguf", "pytorch"), (["a.txt"], "a.txt", None),
        (["a.txt"], "", None), (["a.txt"], "absent", None),
    ],
)  # fmt: skip
def test_framework_follows_from_files(files: list[str], path: str, expected: str | None, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert framework_of(tmp_path / path) == expected


def test_framework_is_that_of_newest_version(tmp_path: Path) -> None:
    for name in ("1/model.onnx", "2/model.safetensors"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert framework_of(tmp_path) is None
    assert framework_of_model(tmp_path) == "pytorch"
