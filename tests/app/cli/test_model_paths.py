"""Models of `roundhouse serve PATH …`: name and framework from the path."""

from pathlib import Path
from typing import NoReturn

import pytest

from app.cli import model_paths
from app.cli.model_paths import with_models
from app.config import ConfigError, Settings
from frameworks.core.addresses import SourceAddress
from frameworks.core.settings.entries import ModelsSettings, OnnxModelEntry, TorchModelEntry
from frameworks.sources.contract import Framework


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Some Model! (v2)", "bert", "torch", "both", "empty", "…", "one-gguf"):
        (tmp_path / name).mkdir()
    for file in ("Some Model! (v2)/model.onnx", "bert/model.onnx", "both/model.onnx", "…/model.onnx"):
        (tmp_path / file).touch()
    for file in (
        "torch/model.safetensors",
        "both/model.safetensors",
        "plain.onnx",
        "bert.onnx",
        "notes.txt",
        "Qwen Q4_K_M.gguf",
    ):
        (tmp_path / file).touch()
    (tmp_path / "one-gguf" / "model.gguf").touch()
    for name in ("hub", "torch"):
        (tmp_path / name / "onnx").mkdir(parents=True)
        (tmp_path / name / "onnx" / "model.onnx").touch()
    return tmp_path


def refused(address: SourceAddress) -> Framework:
    """Stand in for the fetch of tests without addresses."""
    raise AssertionError(f"expected no fetch, got {address}")


def names(folder: Path, *paths: str) -> tuple[list[str], list[str]]:
    """Return the names of the ONNX and of the PyTorch models."""
    models = with_models(Settings(), [str(folder / path) for path in paths], refused).models
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
    assert names(folder, "Qwen Q4_K_M.gguf") == ([], ["Qwen-Q4_K_M"])
    assert names(folder, "hub") == (["hub"], [])
    assert names(folder, "one-gguf") == ([], ["one-gguf"])
    assert names(folder, "torch", "plain.onnx", "bert") == (["plain", "bert"], ["torch"])
    assert names(folder) == ([], [])


def test_relative_path_starts_at_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "bert")
    for path in (".", "model.onnx", "../bert"):
        (entry,) = with_models(Settings(), [path], refused).models.onnx_models
        assert entry.name == "bert"
        assert isinstance(entry.path, Path)
        assert entry.path.is_absolute()


def test_paths_without_model_are_all_reported(folder: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        names(folder, "empty", "notes.txt", "nowhere", "bert", "bert.onnx")
    assert [issue.kind for issue in refusal.value.issues] == ["not_found"] * 3 + ["duplicate"]
    assert "expected an .onnx or .gguf file, or a folder with model.onnx, *.safetensors or one .gguf file, or a" in str(
        refusal.value
    )
    assert 'expected a unique name, got "bert" again' in str(refusal.value)


def test_missing_path_is_called_missing(folder: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        names(folder, "nowhere", "empty")
    assert ["got a path that does not exist" in issue.message for issue in refusal.value.issues] == [True, False]


def test_config_file_as_model_names_its_option(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"got a config file; say --config .*some\.toml"):
        names(folder, "some.toml")


def test_unreadable_folder_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ConfigError, match=r"got a path that cannot be read \(Permission denied\)"):
        names(folder, "empty")


def test_folder_of_models_adds_each(folder: Path) -> None:
    for name in (".hidden", "versioned/1", "versioned/10", "versioned/9"):
        (folder / name).mkdir(parents=True)
    for file in (".hidden/model.onnx", "versioned/9/model.onnx", "versioned/10/model.safetensors"):
        (folder / file).touch()
    (folder / "bert.onnx").unlink()
    (folder / "Qwen Q4_K_M.gguf").unlink()
    notes: list[str] = []
    models = with_models(Settings(), [str(folder)], refused, notes.append).models
    assert [entry.name for entry in models.onnx_models] == [
        *("Some-Model-v2", "bert", "both", "hub", "plain", "model"),
    ]
    assert [(entry.name, entry.path) for entry in models.torch_models] == [
        ("one-gguf", folder / "one-gguf"),
        ("torch", folder / "torch"),
        ("versioned", folder / "versioned"),
    ]
    assert notes == [f"{folder}: folders without a model are skipped: empty"]


def test_folder_that_is_model_stays_one(folder: Path) -> None:
    (folder / "bert" / "part").mkdir()
    (folder / "bert" / "part" / "model.onnx").touch()
    assert names(folder, "bert") == (["bert"], [])
    (folder / "bert" / "model.onnx").rename(folder / "bert" / "part" / "other.onnx")
    assert names(folder, "bert") == (["part"], [])
    # Its weights are missing, and the subfolder is a part of it.
    (folder / "bert" / "config.json").touch()
    with pytest.raises(ConfigError, match=r"expected an \.onnx"):
        names(folder, "bert")


def test_each_of_several_gguf_files_is_model(folder: Path) -> None:
    (folder / "one-gguf" / "other.gguf").touch()
    (folder / "one-gguf" / "config.json").touch()
    assert names(folder, "one-gguf") == ([], ["model", "other"])
    (folder / "one-gguf" / "model.safetensors").touch()
    assert names(folder, "one-gguf") == ([], ["one-gguf"])


def test_vision_part_of_gguf_file_is_no_model(folder: Path) -> None:
    (folder / "one-gguf" / "mmproj-model-f16.gguf").touch()
    assert names(folder, "one-gguf") == ([], ["one-gguf"])
    (folder / "one-gguf" / "other.gguf").touch()
    assert names(folder, "one-gguf") == ([], ["model", "other"])


def test_names_of_folder_are_unique(folder: Path) -> None:
    (folder / "Qwen Q4_K_M.gguf").unlink()
    with pytest.raises(ConfigError, match='expected a unique name, got "bert" again'):
        names(folder, ".")


def test_number_of_models_in_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / f"{number}.onnx").touch()
    monkeypatch.setattr(model_paths, "_MAX_MODELS", 3)
    with pytest.raises(ConfigError, match="expected at most 3 models in a folder, got 4"):
        names(tmp_path, ".")
    monkeypatch.setattr(model_paths, "_MAX_CHILDREN", 3)
    with pytest.raises(ConfigError, match="expected at most 3 files and folders, got more"):
        names(tmp_path, ".")


def test_with_models_keeps_models_of_config(folder: Path) -> None:
    configured = OnnxModelEntry(name="bert", path=Path("elsewhere"))
    settings = Settings(models=ModelsSettings(onnx_models=(configured,)))
    served = with_models(settings, [str(folder / "plain.onnx")], refused).models.onnx_models
    assert [entry.name for entry in served] == ["bert", "plain"]
    with pytest.raises(ConfigError, match="expected a unique name"):
        with_models(settings, [str(folder / "bert")], refused)
    assert settings.models.onnx_models == (configured,)


def test_addresses_are_fetched_and_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    fetched: list[str] = []

    def fetch(address: SourceAddress) -> Framework:
        fetched.append(str(address))
        return "onnx" if "graph" in str(address) else "pytorch"

    paths = ["hf://org/first@main", "org/second@v1.0", "s3://bucket/graph.onnx", "bert/model.onnx"]
    models = with_models(Settings(), paths, fetch).models
    assert fetched == ["hf://org/first@main", "hf://org/second@v1.0", "s3://bucket/graph.onnx"]
    assert [entry.names for entry in models.torch_models] == [("org/first", "first"), ("org/second", "second")]
    assert [entry.name for entry in models.onnx_models] == ["graph", "bert"]
    assert models.torch_models[1] == TorchModelEntry(
        name="org/second", aliases=("second",), path=SourceAddress("hf", "org/second", "", "v1.0")
    )


def test_alias_of_repository_is_no_taken_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    paths = ["a/model", "b/model", "org/bert", "bert/model.onnx", "org/files", "hf://org/whole@main/part"]
    entries = with_models(Settings(), paths, lambda _: "onnx").models.onnx_models
    assert [entry.names for entry in entries] == [
        ("a/model", "model"), ("b/model",), ("org/bert",), ("bert",), ("files",), ("part",),
    ]  # fmt: skip


def test_local_path_wins_over_hub_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    (entry,) = with_models(Settings(), [f"{folder.name}/bert"], refused).models.onnx_models
    assert isinstance(entry.path, Path)


def test_nothing_is_fetched_beside_invalid_paths(folder: Path) -> None:
    paths = ["hf://org/bert", "ftp://host/model", "hf://org", str(folder / "bert")]
    with pytest.raises(ConfigError) as refusal:
        with_models(Settings(), paths, refused)
    assert [issue.kind for issue in refusal.value.issues] == ["invalid", "invalid"]
