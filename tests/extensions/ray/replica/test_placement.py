"""The share of a GPU that a replica reserves."""

from pathlib import Path

import pytest

from extensions.ray.config import ReplicaConfig
from extensions.ray.replica.placement import gpu_share, measured_share
from frameworks.core.devices import Device, DeviceManager, ModelNeeds
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.engine.process.host.model_source import ModelSource
from frameworks.engine.registries import RegistrySettings
from tests.support.engine_hosts import SETTINGS
from tests.support.fake_probe import FakeProbe

GPU = Device("cuda", 0, "gpu", 1000, 900)
CPU = Device("cpu", 0, "cpu", 1000, 900)


@pytest.mark.parametrize(
    ("size", "share"),
    [(8, 0.01), (9, 0.02), (400, 0.5), (800, 1.0), (5000, 1.0)],
)
def test_gpu_share_follows_memory(size: int, share: float) -> None:
    assert gpu_share(ModelNeeds(1, size, usable=("cuda",)), GPU) == share


@pytest.mark.parametrize(
    ("needs", "device"),
    [
        (ModelNeeds(1, 100, usable=()), GPU),
        (ModelNeeds(1, 100, wanted="cpu", usable=("cuda",)), GPU),
        (ModelNeeds(1, 100, usable=("cuda",)), CPU),
    ],
)
def test_model_without_gpu_reserves_none(needs: ModelNeeds, device: Device) -> None:
    assert gpu_share(needs, device) == 0.0


def test_share_is_measured_on_largest_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The GPU with the least memory counts: Ray may place a replica on any."""
    small = Device("cuda", 1, "gpu", 500, 400)
    monkeypatch.setattr(ModelSource, "prepare", lambda *_: ModelNeeds(1, 100, usable=("cuda",)))
    settings = RegistrySettings(max_model_size=None, cache_dir=tmp_path, ageing_ms=1000.0)
    config = ReplicaConfig("onnx", OnnxModelEntry(name="m", path=tmp_path), SETTINGS, settings)
    both = FakeProbe([GPU, small])
    assert measured_share(config, str(tmp_path), DeviceManager(both)) == 0.25
    assert measured_share(config, str(tmp_path), DeviceManager(FakeProbe())) == 0.0
