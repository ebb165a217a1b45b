"""int8 Linear layers against exact arithmetic in float64 and the f32 model; reports reused from the cache."""

from pathlib import Path

import pytest
import torch

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.pytorch import device_kernels
from frameworks.pytorch.int8_choice import exact_kernels
from frameworks.pytorch.int8_matmul import CPU_MATMULS, Int8Kernel, quantize_weight
from frameworks.pytorch.quantize import Int8Linear, check_bits_run_on
from frameworks.quantization.comparison import row_cosines
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.alike import check_alike
from tests.support.models.text_files import TEXTS
from tests.support.models.torch_folders import save_classifier, save_embedder


def linear(bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(5)
    return torch.nn.Linear(48, 24, bias=bias).requires_grad_(False)


def int8_of(layer: torch.nn.Linear, kernel: Int8Kernel) -> Int8Linear:
    return Int8Linear(layer.weight, layer.bias, kernel)


@pytest.mark.isa
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", CPU_MATMULS, ids=lambda product: product.name, indirect=True)
def test_int8_linear_multiplies_quantized_activations(bias: bool, kernel: Int8Kernel) -> None:
    """float64 has room for every sum of products of int8, so the reference is exact."""
    layer = linear(bias)
    x = torch.randn(3, 5, 48) * torch.logspace(-3, 3, 5)[:, None]
    rounded, scale = quantize_weight(layer.weight, kernel.weight_range)
    rows = x.double()
    steps = rows.abs().amax(-1, keepdim=True) / 127
    expected = (torch.round(rows / steps) * steps) @ (rounded.double() * scale.double()[:, None]).T
    expected += layer.bias.double() if bias else 0
    torch.testing.assert_close(int8_of(layer, kernel)(x).double(), expected, rtol=1e-2, atol=1e-5)


@pytest.mark.isa
@pytest.mark.parametrize("kernel", CPU_MATMULS, ids=lambda product: product.name, indirect=True)
def test_int8_row_independent_of_neighbours(kernel: Int8Kernel) -> None:
    layer = linear()
    int8 = int8_of(layer, kernel)
    x = torch.stack([torch.randn(48), torch.full((48,), 1e4), torch.zeros(48)])
    torch.testing.assert_close(int8(x)[0], int8(x[:1])[0], rtol=0, atol=0)
    torch.testing.assert_close(int8(x)[2], layer.bias)


@pytest.mark.isa
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_output_keeps_input_dtype(dtype: torch.dtype) -> None:
    for kernel in exact_kernels():
        assert int8_of(linear().to(dtype), kernel)(torch.randn(2, 48, dtype=dtype)).dtype == dtype


@pytest.mark.isa
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_int8_model_near_original_and_smaller(made_once: FolderMaker, tmp_path: Path, family: str) -> None:
    folder = made_once(save_embedder, family=family)
    original, model = load_torch(folder), load_torch(folder, dtype="int8", cache_dir=tmp_path)
    report = model.spec.quantization
    assert report is not None
    assert (report.scheme, model.spec.dtype) == ("int8", "int8")
    cosines = row_cosines(rows_of(original, [*TEXTS]), rows_of(model, [*TEXTS]))
    assert 0.99 < cosines.min() < 1 - 1e-7
    assert 0.99 < report.cosine_min <= report.cosine_mean < 1 - 1e-7
    assert report.bytes_after == model.spec.memory_bytes < original.spec.memory_bytes
    assert report.bytes_before == (folder / "model.safetensors").stat().st_size


@pytest.mark.extended
def test_later_load_reuses_and_checks_report(
    made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_once(save_embedder)
    first = load_torch(folder, dtype="int8", cache_dir=tmp_path)

    def never(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("frameworks.pytorch.quantize.compare", never)
    again = load_torch(folder, dtype="int8", cache_dir=tmp_path)
    assert again.spec == first.spec
    # A last bit may change how a number of a row is rounded to int8.
    check_alike(rows_of(again, [*TEXTS]), rows_of(first, [*TEXTS]), tolerance=0.01)
    with pytest.raises(InvalidModel, match=r'int8.*at worst.*expected min_cosine 1; dtype = "bf16"'):
        load_torch(folder, dtype="int8", cache_dir=tmp_path, min_cosine=1.0)


@pytest.mark.extended
def test_int8_classifier_keeps_last_layer(made_once: FolderMaker, tmp_path: Path) -> None:
    folder = made_once(save_classifier)
    model = load_torch(folder, dtype="int8", cache_dir=tmp_path)
    assert model._model is not None
    kinds = {name: type(layer) for name, layer in model._model.named_modules()}
    assert kinds["classifier"] is torch.nn.Linear
    assert kinds["bert.encoder.layer.0.attention.self.query"] is Int8Linear


def test_int8_disabled_serves_original(made_once: FolderMaker, tmp_path: Path) -> None:
    model = load_torch(made_once(save_embedder), dtype="int8", cache_dir=tmp_path, enable_quantization=False)
    assert (model.spec.dtype, model.spec.quantization) == ("float32", None)


def test_unwritable_cache_refused(made_once: FolderMaker, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(InvalidModel, match=r"models\.cache_dir"):
        load_torch(made_once(save_embedder), dtype="int8", cache_dir=tmp_path / "cache")


def test_reason_of_missing_int4_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_kernels, "unavailable_because", lambda device: "install gcc")
    with pytest.raises(InvalidModel, match=r'got cuda:0: install gcc; set device = "cpu" or dtype = "f16"'):
        check_bits_run_on("int4", Device("cuda", 0, "H200", 1, 1), Path("m"))


def test_device_without_int8_refused_with_remedy() -> None:
    with pytest.raises(InvalidModel, match=r'got mps; set device = "cpu" or dtype = "f16"'):
        check_bits_run_on("int8", Device("mps", 0, "Apple", 1, 1), Path("m"))


@pytest.mark.isa
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_16_bit_cast_near_original(made_once: FolderMaker, dtype: str) -> None:
    folder = made_once(save_embedder)
    model = load_torch(folder, dtype=dtype)
    assert row_cosines(rows_of(load_torch(folder), [*TEXTS]), rows_of(model, [*TEXTS])).min() > 0.999
    assert model.spec.quantization is None
