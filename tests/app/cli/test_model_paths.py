"""`roundhouse serve PATH …`: name and framework come from the path."""

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
    """The names of ONNX and of PyTorch models."""
    models = with_models(Settings(), [str(folder / path) for path in paths]).models
    return [entry.name for entry in models.onnx_models], [entry.name for entry in models.torch_models]


def test_a_name_comes_from_file_or_folder(folder: Path) -> None:
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


def test_a_relative_path_starts_where_the_command_was_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "bert")
    for path in (".", "model.onnx", "../bert"):
        (entry,) = with_models(Settings(), [path]).models.onnx_models
        assert entry.name == "bert"
        assert entry.path.is_absolute()


def test_what_leads_to_no_model_is_told_all_at_once(folder: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        names(folder, "empty", "notes.txt", "nowhere", "bert", "bert.onnx")
    assert [fault.kind for fault in refusal.value.faults] == ["not_found"] * 3 + ["duplicate"]
    assert "no .onnx file, and no folder with model.onnx or *.safetensors" in str(refusal.value)
    assert 'a second model would be named "bert"' in str(refusal.value)


def test_models_of_the_config_stay(folder: Path) -> None:
    configured = OnnxModelEntry(name="bert", path=Path("elsewhere"))
    settings = Settings(models=ModelsSettings(onnx_models=(configured,)))
    served = with_models(settings, [str(folder / "plain.onnx")]).models.onnx_models
    assert [entry.name for entry in served] == ["bert", "plain"]
    with pytest.raises(ConfigError, match="a second model"):
        with_models(settings, [str(folder / "bert")])
    assert settings.models.onnx_models == (configured,)
