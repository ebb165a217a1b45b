"""The framework of files and folders."""

from pathlib import Path

import pytest

from frameworks.models.versions.local_files import framework_of, framework_of_model


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
