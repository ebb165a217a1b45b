"""Adapters in config.toml: relative paths, unique names, and the checks of `roundhouse check`."""

from pathlib import Path

import pytest

from app.config import ConfigError, check_file, load_settings

HEAD = '[[models.torch_models]]\nname = "lm"\npath = "./lm"\n'


def table(name: str, path: str) -> str:
    return f'[[models.torch_models.adapters]]\nname = "{name}"\npath = "{path}"\n'


def test_paths_start_at_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(HEAD + table("red", "./red") + table("blue", "/blue"))
    loaded = load_settings(file, {})
    [entry] = loaded.settings.models.torch_models
    resolved = entry.with_paths(loaded.resolve, {}).adapters
    assert [(each.name, each.path) for each in resolved] == [("red", tmp_path / "red"), ("blue", Path("/blue"))]


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        (table("red", "./a") + table("red", "./b"), "adapters"),
        (table("a:b", "./a"), "adapters[0].name"),
        (table("red", "./a") + "rank = 4\n", "adapters[0].rank"),
        ('[[models.torch_models.adapters]]\nname = "red"\n', "adapters[0].path"),
    ],
    ids=["twice", "mark", "unknown", "missing"],
)
def test_invalid_adapters_are_named(tmp_path: Path, tables: str, key: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(HEAD + tables)
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {})
    assert [issue.key for issue in refused.value.issues] == [f"models.torch_models[0].{key}"]


def test_check_reports_missing_folders(tmp_path: Path) -> None:
    (tmp_path / "lm").mkdir()
    (tmp_path / "file").touch()
    file = tmp_path / "config.toml"
    file.write_text(HEAD + table("red", "./red") + table("blue", "./file"))
    issues = {issue.key: issue.message for issue in check_file(file, {})}
    assert "no such file" in issues["models.torch_models[0].adapters[0].path"]
    assert "expected a folder" in issues["models.torch_models[0].adapters[1].path"]
