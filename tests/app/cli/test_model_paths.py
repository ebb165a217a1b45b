"""Models of `roundhouse serve PATH …`: name and framework from the path."""

from pathlib import Path

import pytest

from app.cli.model_paths import with_models
from app.config import ConfigError, Settings
from frameworks.settings import ModelsSettings, OnnxModelEntry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Some Model! (v2)", "bert", "torch", "both", "empty", "…"):
        (tmp_path / name).mkdir()
    for file in ("Some Model! (v2)/model.onnx", "bert/model.onnx", "both/model.onnx", "…/model.onnx"):
        (tmp_path / file).touch()
    for file in ("torch/model.safetensors", "both/model.safetensors", "plain.onnx", "bert.onnx", "notes.txt"):
        (tmp_path / file).touch()
    return tmp_path


def names(folder: Path, *paths: str) -> tuple[list[str], list[str]]:
    """Return the names of the ONNX and of the PyTorch models."""
    models = with_models(Settings(), [str(folder / path) for path in paths]).models
    return [entry.name for entry in models.onnx_models], [entry.name for entry in models.torch_models]


def test_model_name_is_file_or_folder_name(folder: Path) -> None:
    assert names(folder, "plain.onnx") == (["plain"], [])
    assert names(folder, "bert") == (["bert"], [])
    assert names(folder, "bert/") == (["bert"], [])
    assert names(folder, "bert/model.onnx") == (["bert"], [])
    assert names(folder, "torch") == ([], ["torch"])
    assert names(folder, "both") == (["both"], [])
    assert names(folder, "Some Model! (v2)") == (["Some-Model-v2"], [])
    assert names(folder, "…") == (["model"], [])
    assert names(folder, "torch", "plain.onnx", "bert") == (["plain", "bert"], ["torch"])
    assert names(folder) == ([], [])


def test_relative_path_starts_at_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "bert")
    for path in (".", "model.onnx", "../bert"):
        (entry,) = with_models(Settings(), [path]).models.onnx_models
        assert entry.name == "bert"
        assert entry.path.is_absolute()


def test_paths_without_model_are_all_reported(folder: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        names(folder, "empty", "notes.txt", "nowhere", "bert", "bert.onnx")
    assert [issue.kind for issue in refusal.value.issues] == ["not_found"] * 3 + ["duplicate"]
    assert "expected an .onnx file, or a folder with model.onnx or *.safetensors" in str(refusal.value)
    assert 'expected a unique name, got "bert" again' in str(refusal.value)


def test_with_models_keeps_models_of_config(folder: Path) -> None:
    configured = OnnxModelEntry(name="bert", path=Path("elsewhere"))
    settings = Settings(models=ModelsSettings(onnx_models=(configured,)))
    served = with_models(settings, [str(folder / "plain.onnx")]).models.onnx_models
    assert [entry.name for entry in served] == ["bert", "plain"]
    with pytest.raises(ConfigError, match="expected a unique name"):
        with_models(settings, [str(folder / "bert")])
    assert settings.models.onnx_models == (configured,)
