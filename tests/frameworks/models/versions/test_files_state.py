"""Files of a version: which changes count."""

import os
from pathlib import Path

from frameworks.models.versions.files_state import files_state


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
