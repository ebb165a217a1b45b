"""Packed weights: the same results as torch's layers, in the same places, and weights that a model reads itself."""

import sys
from pathlib import Path

import pytest
import torch
import transformers

from frameworks.pytorch import kernels
from frameworks.pytorch.cpu_layers import packed as packed_layers
from frameworks.pytorch.cpu_layers.packed import PackedConv2d, PackedLayer, PackedLinear, pack_layers, packer_of
from frameworks.pytorch.quantize import held_bytes
from memory.host import mapped_bytes

pytestmark = pytest.mark.skipif(not kernels.packs(torch.float32), reason="this CPU has no packed weights")


def linear(inputs: int = 96, outputs: int = 80, **options: bool) -> torch.nn.Linear:
    torch.manual_seed(3)
    return torch.nn.Linear(inputs, outputs, **options).eval().requires_grad_(False)


@pytest.mark.parametrize("shape", [(1, 96), (37, 96), (2, 5, 96), (2, 3, 5, 96), (0, 96)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_linear_equals_layer(shape: tuple[int, ...], bias: bool) -> None:
    layer = linear(bias=bias)
    values = torch.randn(shape)
    with torch.inference_mode():
        found = PackedLinear(layer)(values)
    torch.testing.assert_close(found, layer(values), rtol=1e-5, atol=1e-5)


def test_packed_linear_reads_values_of_any_order() -> None:
    layer = linear()
    values = torch.randn(96, 7, 3).permute(2, 1, 0)
    torch.testing.assert_close(PackedLinear(layer)(values), layer(values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((9, 11), {"kernel_size": 1}),
        ((20, 11), {"kernel_size": 1, "stride": 2, "bias": False}),
        ((9, 11), {"kernel_size": 1, "padding": 1}),
        ((40, 40), {"kernel_size": 3, "padding": 1}),
        ((31, 17), {"kernel_size": 3, "stride": 2, "padding": 1, "bias": False}),
        ((64, 48), {"kernel_size": 16, "stride": 16}),
        ((30, 30), {"kernel_size": 3, "padding": 4, "dilation": 4}),
        ((200, 200), {"kernel_size": (1, 7), "padding": (0, 3)}),
    ],
)
def test_packed_convolution_equals_layer(size: tuple[int, int], options: dict[str, int]) -> None:
    torch.manual_seed(3)
    layer = torch.nn.Conv2d(32, 48, **options).eval().requires_grad_(False)  # type: ignore[arg-type]
    packed = PackedConv2d(layer)
    for batch in (1, 3):
        values = torch.randn(batch, 32, *size)
        with torch.inference_mode():
            found = packed(values)
        torch.testing.assert_close(found, layer(values), rtol=1e-4, atol=1e-4)


def test_weight_that_is_read_is_that_of_layer() -> None:
    layer = linear()
    packed = PackedLinear(layer)
    values = torch.randn(4, 96)
    before = packed(values)
    assert torch.equal(packed.weight, layer.weight)
    assert packed.weight is packed.weight
    torch.testing.assert_close(packed(values), before, rtol=1e-5, atol=1e-5)
    assert packed.weight_bytes == layer.weight.nbytes


def test_weight_of_convolution_has_its_shape() -> None:
    layer = torch.nn.Conv2d(32, 48, 1, stride=2).eval().requires_grad_(False)
    packed, values = PackedConv2d(layer), torch.randn(2, 32, 9, 9)
    before = packed(values)
    assert torch.equal(packed.weight, layer.weight)
    torch.testing.assert_close(packed(values), before, rtol=1e-4, atol=1e-4)


def test_layers_of_other_kinds_stay() -> None:
    hooked = linear()
    hooked.register_forward_hook(lambda *_: None)
    kept = (
        hooked,
        linear(8, 8),
        linear().bfloat16(),
        torch.nn.LazyLinear(96),
        torch.nn.MultiheadAttention(96, 4).out_proj,
        torch.nn.Conv2d(32, 32, 3, groups=32),
        torch.nn.Conv2d(32, 32, 3, padding="same"),
        torch.nn.Conv2d(32, 32, 3, padding=1, padding_mode="reflect"),
        torch.nn.Conv1d(32, 32, 5),
    )
    assert [packer_of(each, is_forced=True) for each in kept] == [None] * len(kept)


def test_shared_weights_stay() -> None:
    table = torch.nn.Embedding(80, 96)
    head = linear()
    head.weight = table.weight
    twice = linear()
    model = torch.nn.ModuleDict({"table": table, "head": head, "first": twice, "second": twice})
    pack_layers(model, "onednn")
    assert type(model["head"]) is torch.nn.Linear
    assert isinstance(model["first"], PackedLinear)
    assert model["second"] is model["first"]


def test_held_bytes_count_packed_weights() -> None:
    config = transformers.ViTConfig(
        hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    model = transformers.ViTModel(config).eval().requires_grad_(False)
    before, pixels = held_bytes(model), torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = model(pixels).last_hidden_state
        pack_layers(model, "onednn")
        found = model(pixels).last_hidden_state
    assert sum(isinstance(each, PackedLayer) for each in model.modules()) > 12
    assert held_bytes(model) == before
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("plain_s", "packed_s", "kind"), [(1.0, 0.5, PackedLinear), (1.0, 0.95, torch.nn.Linear)])
def test_slower_weights_are_not_packed(
    monkeypatch: pytest.MonkeyPatch, plain_s: float, packed_s: float, kind: type
) -> None:
    monkeypatch.setattr(packed_layers, "shortest_seconds", lambda _: {"plain": plain_s, "packed": packed_s})
    packed_layers.packs_linear.cache_clear()
    model = torch.nn.Sequential(linear())
    pack_layers(model, "auto")
    packed_layers.packs_linear.cache_clear()
    assert type(model[0]) is kind


def test_plain_kernels_keep_layers() -> None:
    model = torch.nn.Sequential(linear())
    pack_layers(model, "plain")
    assert type(model[0]) is torch.nn.Linear


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the mappings of files")
@pytest.mark.parametrize("has_view", [False, True])
def test_mapped_weights_are_given_back(tmp_path: Path, has_view: bool) -> None:
    config = transformers.ViTConfig(
        hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=384, image_size=32, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    model = transformers.ViTModel.from_pretrained(str(tmp_path)).eval().requires_grad_(False)
    file, pixels = tmp_path / "model.safetensors", torch.randn(2, 3, 32, 32)
    largest = max((each.weight for each in model.modules() if type(each) is torch.nn.Linear), key=torch.numel)
    views = [largest[:5]] if has_view else []
    kept = [each.clone() for each in views]
    nbytes = largest.nbytes
    del largest
    before = mapped_bytes(file)
    with torch.inference_mode():
        expected = model(pixels).last_hidden_state
        pack_layers(model, "onednn")
        found = model(pixels).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    given_back = before - mapped_bytes(file)
    # All but the first and the last page of each weight; some have a page or less.
    assert given_back > 0.5 * before - (nbytes if has_view else 0)
    assert all(torch.equal(one, other) for one, other in zip(views, kept, strict=True))


def test_rows_have_few_numbers() -> None:
    layer = linear(72, 56)
    packed, counts = PackedLinear(layer), [*range(1, 1100, 3)]
    for rows in counts:
        values = torch.randn(rows, 72)
        torch.testing.assert_close(packed(values), layer(values), rtol=1e-5, atol=1e-5)
    sizes = {packed_layers._padded_rows(rows, (56, 72)) for rows in counts}
    assert len(sizes) <= 4 + 8 + 33
    assert all(rows <= packed_layers._padded_rows(rows, (56, 72)) <= max(1.25 * rows, rows + 15) for rows in counts)
