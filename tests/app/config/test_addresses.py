"""Addresses of models in config.toml, and the sources of registrations."""

import pickle
from pathlib import Path

import pytest

from app.config import ConfigError, load_settings, parse_model_entry
from app.config.loading import check_file
from frameworks.core.addresses import SourceAddress
from frameworks.core.settings.entries import ModelsSettings, OnnxModelEntry

ENTRY = '[[models.onnx_models]]\nname = "m"\npath = "{path}"\n'


def issues(folder: Path, text: str) -> str:
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refusal:
        load_settings(file, {})
    return str(refusal.value).replace(str(folder), "")


def test_path_of_entry_may_be_address(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(ENTRY.format(path="hf://org/name@v1/onnx"), encoding="utf-8")
    (entry,) = load_settings(file, {}).settings.models.onnx_models
    assert entry.path == SourceAddress("hf", "org/name", "onnx", "v1")
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert entry.model_dump(mode="json")["path"] == "hf://org/name@v1/onnx"
    assert OnnxModelEntry(**entry.model_dump()) == entry


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hf://org", "expected hf://org/name"),
        ("ftp://host/model", 'expected the scheme hf, s3, gs, az, https, got "ftp"'),
        ("https://user:secret@host/model", "credentials are not allowed"),
        ("s3://bucket/a/../b", "expected letters, digits and punctuation without empty parts"),
    ],
)
def test_invalid_address_is_error(path: str, expected: str, tmp_path: Path) -> None:
    assert expected in issues(tmp_path, ENTRY.format(path=path))


@pytest.mark.parametrize(
    ("key", "value"), [("watch", "true"), ("version_policy", "[1]"), ("input_values", '"values.npz"')]
)
def test_key_of_local_folders_is_refused(key: str, value: str, tmp_path: Path) -> None:
    found = issues(tmp_path, ENTRY.format(path="hf://org/name") + f"{key} = {value}")
    assert f"models.onnx_models[0].{key}: expected a local path beside it, got an address" in found


def test_default_keys_are_accepted_beside_address() -> None:
    body = {"name": "m", "path": "hf://org/name", "watch": False, "version_policy": "all", "input_values": None}
    assert parse_model_entry("onnx", body).path == SourceAddress("hf", "org/name")


def test_check_needs_no_file_of_an_address(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    (tmp_path / "models").mkdir()
    file.write_text(ENTRY.format(path="https://host/models/m.onnx"), encoding="utf-8")
    assert check_file(file, {}) == ()


def test_sources_are_prefixes_of_addresses(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[models]\nsources = ["hf://", "hf://org", "s3://bucket/folder", "https://Host"]', encoding="utf-8")
    models = load_settings(file, {}).settings.models
    assert models.sources == (
        "hf",
        SourceAddress("hf", "org"),
        SourceAddress("s3", "bucket", "folder"),
        SourceAddress("https", "host"),
    )
    assert ModelsSettings(**models.model_dump()) == models
    assert "models.sources[0]: expected" in issues(tmp_path, '[models]\nsources = ["./models"]')


def test_max_download_bytes_is_size(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[models]\nmax_download_bytes = "2GiB"', encoding="utf-8")
    assert load_settings(file, {}).settings.models.max_download_bytes == 2 * 1024**3
