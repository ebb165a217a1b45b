"""Test which versions a path has, and which of them are served."""

from pathlib import Path

import pytest

from frameworks.core.settings.entry_values import VersionPolicy
from frameworks.models.versions.version_folders import find_versions, served_versions
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
