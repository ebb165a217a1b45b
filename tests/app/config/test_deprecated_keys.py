"""Deprecated keys: an old name is accepted with a warning, from file, environment and body."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.cli.commands import main
from app.config import ConfigError, check_file, load_settings, parse_model_entry
from frameworks.core.settings.entries import ModelEntry, TorchModelEntry

ENTRY = "[[models.{table}]]\nname = 'a'\npath = '.'\n"
VARIABLE = "ROUNDHOUSE_MODELS__TORCH_MODELS__0__"


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `accelerator` a deprecated name of `device`."""
    monkeypatch.setattr(TorchModelEntry, "deprecated_keys", {"accelerator": "device"})


def write(folder: Path, keys: str, table: str = "torch_models") -> Path:
    file = folder / "config.toml"
    file.write_text(ENTRY.format(table=table) + keys, encoding="utf-8")
    return file


def load(folder: Path, keys: str, table: str = "torch_models", **variables: str) -> tuple[object, list[str]]:
    """Return the device and the warnings of one model."""
    loaded = load_settings(write(folder, keys, table), variables)
    return loaded.settings.models.torch_models[0].device, [str(warning) for warning in loaded.warnings]


@pytest.mark.parametrize("table", ["torch_models", "candle_models"])
def test_deprecated_key_sets_value_with_warning(table: str, tmp_path: Path) -> None:
    device, warnings = load(tmp_path, "accelerator = 'cuda:1'", table)
    assert device == "cuda:1"
    where = f"{tmp_path}/config.toml:4: models.{table}[0].accelerator"
    assert warnings == [f"{where}: deprecated key; rename it to device"]


def test_deprecated_key_error_names_old_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_settings(write(tmp_path, "accelerator = 'gpu'"), {})
    (issue,) = refusal.value.issues
    assert (issue.line, issue.key, issue.kind) == (4, "models.torch_models[0].accelerator", "invalid")


def test_both_names_in_one_file_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_settings(write(tmp_path, "accelerator = 'cpu'\ndevice = 'cpu'"), {})
    (issue,) = refusal.value.issues
    assert (issue.line, issue.kind) == (4, "duplicate")
    assert issue.message == "expected device or its deprecated name, got both; remove accelerator"


@pytest.mark.parametrize(
    ("keys", "name"), [("", "ACCELERATOR"), ("device = 'mps'", "ACCELERATOR"), ("accelerator = 'mps'", "DEVICE")]
)
def test_variable_replaces_either_name_of_file(keys: str, name: str, tmp_path: Path) -> None:
    device, warnings = load(tmp_path, keys, **{VARIABLE + name: "cuda"})
    assert device == "cuda"
    assert len(warnings) == 1


def test_variable_for_whole_list_may_hold_deprecated_key(tmp_path: Path) -> None:
    text = '[{"name": "b", "path": ".", "accelerator": "cuda"}]'
    device, warnings = load(tmp_path, "", ROUNDHOUSE_MODELS__TORCH_MODELS=text)
    assert device == "cuda"
    assert warnings == [
        "ROUNDHOUSE_MODELS__TORCH_MODELS: models.torch_models[0].accelerator: deprecated key; rename it to device"
    ]


def test_deprecated_key_of_other_table_is_unknown(tmp_path: Path) -> None:
    (issue,) = check_file(write(tmp_path, "accelerator = 'cpu'", "onnx_models"), {})
    assert issue.kind == "unknown_key"


def test_model_body_with_deprecated_key_logs_warning() -> None:
    body: dict[str, Any] = {"name": "a", "path": "b", "accelerator": "cuda"}
    with capture_logs() as logged:
        entry = parse_model_entry("pytorch", body)
    assert isinstance(entry, TorchModelEntry)
    assert entry.device == "cuda"
    assert [(event["event"], event["key"]) for event in logged] == [("deprecated key", "accelerator")]
    assert body == {"name": "a", "path": "b", "accelerator": "cuda"}
    with pytest.raises(ConfigError, match="got both"):
        parse_model_entry("pytorch", body | {"device": "cpu"})


def test_check_prints_warning_and_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "accelerator = 'cpu'")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out.count("deprecated key; rename it to device\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "value"), [("kv_cache", "kv_cache_bytes", 65536), ("max_step_tokens", "max_num_batched_tokens", 64)]
)
def test_former_generation_key_is_read(monkeypatch: pytest.MonkeyPatch, old: str, new: str, value: int) -> None:
    monkeypatch.undo()
    body = {"name": "m", "path": "m", old: value}
    with capture_logs() as logs:
        entry = parse_model_entry("pytorch", body)
    assert getattr(entry, new) == value
    assert new in str(logs)


def test_other_entries_have_no_deprecated_keys() -> None:
    assert dict(ModelEntry.deprecated_keys) == {}


def test_old_names_of_generation_keys_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    loaded = load_settings(write(tmp_path, "kv_cache = '2MiB'\nmax_step_tokens = 64"), {})
    (entry,) = loaded.settings.models.torch_models
    assert (entry.kv_cache_bytes, entry.max_num_batched_tokens) == (2 * 1024**2, 64)
    assert [warning.key.rpartition(".")[2] for warning in loaded.warnings] == ["kv_cache", "max_step_tokens"]
