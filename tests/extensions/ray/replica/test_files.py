"""The files of a version on the node of a replica."""

from dataclasses import replace
from pathlib import Path

import pytest

from extensions.ray.config import ReplicaConfig
from extensions.ray.replica.files import local_files, newest_files
from frameworks.core.addresses import SourceAddress
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.engine.registries import RegistrySettings
from tests.frameworks.sources.fake_remote import FakeSource
from tests.support.engine_hosts import SETTINGS


@pytest.fixture
def config(tmp_path: Path) -> ReplicaConfig:
    """The config of a model with an address."""
    settings = RegistrySettings(max_model_size=None, cache_dir=tmp_path, ageing_ms=1000.0)
    entry = OnnxModelEntry(name="m", path="hf://org/name")  # type: ignore[arg-type]
    return ReplicaConfig("onnx", entry, SETTINGS, settings)


def test_local_path_is_used(config: ReplicaConfig, tmp_path: Path) -> None:
    local = replace(config, entry=OnnxModelEntry(name="m", path=tmp_path / "absent"))
    assert newest_files(local, "/models/m", _never) == Path("/models/m")
    assert local_files(local, "/models/m", _never) == Path("/models/m")


def test_address_is_fetched_before_serving(config: ReplicaConfig, tmp_path: Path) -> None:
    fetched: list[tuple[str, str]] = []

    def fetch(address: SourceAddress, framework: str) -> Path:
        fetched.append((str(address), framework))
        return tmp_path / "versions" / "1"

    assert newest_files(config, str(tmp_path), fetch) == tmp_path / "versions" / "1"
    assert local_files(config, str(tmp_path / "versions" / "2"), fetch) == tmp_path / "versions" / "1"
    assert fetched == [("hf://org/name", "onnx")] * 2


def test_source_of_config_is_read(config: ReplicaConfig, tmp_path: Path) -> None:
    """The configuration names the function that opens sources: extensions have schemes of their own."""
    entry = OnnxModelEntry(name="m", path="s3://bucket/m")  # type: ignore[arg-type]
    source = FakeSource(files={"m/model.onnx": b"graph"}, revision=None)
    files = newest_files(replace(config, entry=entry, open_remote=source.open), str(tmp_path))
    assert (files / "model.onnx").read_bytes() == b"graph"


def test_folder_of_ingress_is_used(config: ReplicaConfig, tmp_path: Path) -> None:
    assert local_files(config, str(tmp_path), _never) == tmp_path


def _never(address: SourceAddress, framework: str) -> Path:
    raise AssertionError("nothing is fetched")
