"""A load on CUDA settles options, engines and captures before the session is opened, and refuses by name."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from frameworks.core.devices import Device, DeviceManager
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.engine.process.host.model_source import ModelSource
from frameworks.engine.registries import RegistrySettings, registry_factories
from frameworks.onnx import registry as registry_module
from frameworks.onnx.cuda.settings import CudaLoad, settle_cuda
from frameworks.onnx.providers import GraphDevice, ProviderChoice, ProviderRules, choose_providers
from frameworks.onnx.registry import OnnxRegistry
from frameworks.onnx.session import open_session as open_plain
from frameworks.quantization.copies import QuantizedCopies
from memory.tensor_pool import TensorPool
from tests.support.fake_probe import GIB, FakeProbe, cuda
from tests.support.models import onnx_costly_graphs, onnx_graphs

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
CARD = replace(cuda(1, 9 * GIB), grant_bytes=8 * GIB)
HOST = FakeProbe().host()


def settle(
    folder: Path,
    device: Device = CARD,
    *,
    is_alone: bool = True,
    available: tuple[str, ...] = (CUDA, CPU),
    **entry: Any,
) -> ProviderChoice:
    file = onnx_graphs.save(onnx_graphs.add(), folder)
    settings = OnnxModelEntry(name="m", path=folder, **entry)
    choice = choose_providers("m", settings.execution_providers, device, ProviderRules(available, True, True))
    load = CudaLoad(settings, [file], 100, 32, folder / "cache", is_alone)
    return settle_cuda(choice, load)


def options_of(choice: ProviderChoice, name: str) -> dict[str, str]:
    return dict(choice.session_providers)[name]


def test_instances_share_the_grant(tmp_path: Path) -> None:
    for instances in (1, 2, 3):
        choice = settle(tmp_path, instances=instances)
        assert options_of(choice, CUDA)["gpu_mem_limit"] == str(8 * GIB // instances)
        assert options_of(choice, CUDA)["device_id"] == "1"
    assert "gpu_mem_limit" not in options_of(settle(tmp_path, cuda(1, 9 * GIB)), CUDA)


def test_cuda_alone_makes_no_engine_folder(tmp_path: Path) -> None:
    choice = settle(tmp_path)
    assert choice.captures is None
    assert not (tmp_path / "cache").exists()


def test_tensorrt_has_folder_and_profile(tmp_path: Path) -> None:
    choice = settle(tmp_path, available=(TENSORRT, CUDA, CPU))
    options = options_of(choice, TENSORRT)
    assert Path(options["trt_engine_cache_path"]).parent == tmp_path / "cache" / "tensorrt"
    assert options["trt_profile_max_shapes"] == "a:32x4,b:32x4"
    assert options_of(choice, CUDA)["gpu_mem_limit"] == str(8 * GIB)


def test_graphs_are_captured_on_device_of_model(tmp_path: Path) -> None:
    choice = settle(tmp_path, cuda_graph=True)
    assert choice.captures == GraphDevice("cuda", 1, 32)
    assert (options_of(choice, CUDA)["enable_cuda_graph"], choice.fallbacks) == ("1", ())


@pytest.mark.parametrize(
    ("available", "device", "first"),
    [((CPU,), HOST, CPU), ((CUDA, CPU), HOST, CPU), ((TENSORRT, CUDA, CPU), CARD, TENSORRT)],
)
def test_other_provider_is_refused_by_name(
    tmp_path: Path, available: tuple[str, ...], device: Device, first: str
) -> None:
    reason = (
        rf'cuda_graph: expected CUDA as the model\'s first provider, got {first}; set execution_providers = \["CUDA"\]'
    )
    with pytest.raises(InvalidModel, match=reason):
        settle(tmp_path, device, available=available, cuda_graph=True)


def test_shared_process_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidModel, match=r'cuda_graph: expected a model in a process of its own.*isolation = "process"'
    ):
        settle(tmp_path, is_alone=False, cuda_graph=True)


def make_registry(folder: Path, probe: FakeProbe) -> OnnxRegistry:
    copies = QuantizedCopies(folder / "cache")
    return OnnxRegistry(DeviceManager(probe), PerformanceSettings(intra_op_threads=1), GIB, copies)


def test_registry_refuses_graphs_without_cuda(tmp_path: Path) -> None:
    onnx_graphs.save(onnx_graphs.add(), tmp_path)
    entry = OnnxModelEntry(name="m", path=tmp_path, cuda_graph=True)
    with pytest.raises(InvalidModel, match="cuda_graph: expected CUDA as the model's first provider, got CPU"):
        make_registry(tmp_path, FakeProbe()).load(entry, tmp_path, HOST)


class Opened:
    """Note what the sessions of a registry are opened with; they run on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, active: str = CPU) -> None:
        self.choices: list[ProviderChoice] = []

        def open_session(path: Path, choice: ProviderChoice, *others: Any) -> ort.InferenceSession:
            self.choices.append(choice)
            session = open_plain(path, ProviderChoice([(CPU, {})], None), *others)
            monkeypatch.setattr(session, "get_providers", lambda: [active, CPU])
            return session

        monkeypatch.setattr(registry_module, "open_session", open_session)
        monkeypatch.setattr(ort, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
        monkeypatch.setattr(ort, "preload_dlls", lambda **_: None)


def test_registry_hands_grant_to_each_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, active=CUDA)
    onnx_graphs.save(onnx_costly_graphs.external_data("weights.bin"), tmp_path)
    (tmp_path / "weights.bin").write_bytes(onnx_costly_graphs.external_bytes())
    registry = make_registry(tmp_path, FakeProbe([CARD]))
    models = registry.load(OnnxModelEntry(name="m", path=tmp_path, instances=2), tmp_path, CARD)
    assert [options_of(choice, CUDA)["gpu_mem_limit"] for choice in opened.choices] == [str(4 * GIB)] * 2
    assert [model.spec.device for model in models] == ["cuda:1"] * 2


def test_session_that_is_not_on_cuda_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Opened(monkeypatch, active=CPU)
    onnx_graphs.save(onnx_graphs.add(), tmp_path)
    registry = make_registry(tmp_path, FakeProbe([CARD]))
    registry.is_alone = True
    entry = OnnxModelEntry(name="m", path=tmp_path, cuda_graph=True)
    with pytest.raises(
        InvalidModel, match=f"cuda_graph: expected a session on CUDA, got one on {CPU}; correct the inst"
    ):
        registry.load(entry, tmp_path, CARD)


def test_only_engine_process_is_alone(tmp_path: Path) -> None:
    file = onnx_graphs.save(onnx_graphs.add(), tmp_path)
    settings = RegistrySettings(max_model_size=None, cache_dir=tmp_path / "cache", ageing_ms=1.0)
    shared = registry_factories(settings, DeviceManager(FakeProbe()), TensorPool(settings.memory))["onnx"]()
    source = ModelSource()
    source.prepare("onnx", OnnxModelEntry(name="m", path=file), file, settings)
    assert source._measured is not None
    registries = [shared, source._measured.registry]
    assert [each.is_alone for each in registries if isinstance(each, OnnxRegistry)] == [False, True]


def test_model_on_cpu_imports_no_cuda_code(tmp_path: Path) -> None:
    file = onnx_graphs.save(onnx_graphs.add(), tmp_path)
    code = (
        "import sys; from pathlib import Path; from tests.frameworks.models.loading import load_onnx; "
        f"load_onnx(Path({str(file)!r})).warm_up(); "
        "sys.exit(', '.join(name for name in sys.modules if name.startswith('frameworks.onnx.cuda')) or 0)"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
