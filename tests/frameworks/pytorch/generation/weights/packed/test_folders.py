"""Folders of GPTQ, AWQ and compressed-tensors: their logits are those of the numbers that they mean."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.generation.weights.packed.float8 import Float8Weight
from frameworks.pytorch.generation.weights.packed.folder_weights import FolderWeights
from frameworks.pytorch.generation.weights.packed.integers import RowWeight
from frameworks.pytorch.generation.weights.packed.modules import PackedModule, ReorderedLinear
from frameworks.pytorch.generation.weights.packed.weight import dense
from frameworks.pytorch.packed_files import read_files, read_scheme
from frameworks.text.gguf.folder import GgufFolders
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import decoder_of, load_generating
from tests.frameworks.pytorch.generation.weights.packed.logits import logits_of, own_logits
from tests.support.models.causal_folders import causal_model, save_causal_model
from tests.support.packed_folders import Pack, awq, compressed, compressed_scheme, float8, gptq, save_packed

IDS = [3, 250, 77, 12, 99, 256, 41, 42]
# As in test_gguf.py.
TOLERANCE = 0.1

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
FLOAT_BLOCKS = compressed_scheme("float-quantized", 8)
FLOAT_BLOCKS["config_groups"]["group_0"]["weights"] |= {"strategy": "block", "block_structure": [24, 32]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
CASES: dict[str, tuple[Pack, dict[str, Any]]] = {
    "gptq": (gptq(4), GPTQ),
    "gptq_8_bits": (gptq(8), GPTQ | {"bits": 8}),
    "gptq_symmetric": (gptq(4, has_zeros=False), GPTQ | {"sym": True}),
    "gptq_act_order": (gptq(4, acts_in_order=False), GPTQ | {"desc_act": True}),
    "gptq_v2": (gptq(4, version=2), GPTQ | {"checkpoint_format": "gptq_v2"}),
    "awq": (awq, AWQ),
    "packed": (compressed(4), compressed_scheme("pack-quantized", 4)),
    "packed_8_bits": (compressed(8), compressed_scheme("pack-quantized", 8)),
    "packed_zeros": (compressed(4, has_zeros=True), compressed_scheme("pack-quantized", 4)),
    "int": (compressed(8, group=None, is_packed=False), compressed_scheme("int-quantized", 8)),
    "int_zeros": (compressed(8, has_zeros=True, is_packed=False), compressed_scheme("int-quantized", 8)),
    "naive": (compressed(8, is_packed=False), compressed_scheme("naive-quantized", 8)),
    "float8_rows": (float8(None), compressed_scheme("float-quantized", 8)),
    "float8_tensor": (float8(None, has_one_scale=True), {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "float8_blocks": (float8((24, 32), name="weight_scale_inv"), FP8 | {"weight_block_size": [24, 32]}),
    "float8_part_of_block": (float8((128, 48), name="weight_scale_inv"), FP8 | {"weight_block_size": [128, 48]}),
    "float8_compressed_blocks": (float8((24, 32)), FLOAT_BLOCKS),
    "float8_fbgemm": (float8(None), {"quant_method": "fbgemm_fp8"}),
}


@pytest.mark.parametrize("case", CASES)
def test_folder_gives_logits_of_dequantized_weights(copied: FolderMaker, case: str) -> None:
    folder = copied(save_causal_model)
    pack, scheme = CASES[case]
    meant = save_packed(folder, pack, scheme)
    reference = causal_model()
    reference.load_state_dict(meant, strict=False)
    expected = logits_of(reference, IDS)
    model = load_generating(folder)
    assert model.spec.generation.unpaged_because is None
    error = (own_logits(model, IDS) - expected).square().mean().sqrt() / expected.std()
    assert error < TOLERANCE
    stated = read_scheme(folder)
    assert stated is not None
    source = FolderWeights(folder, [folder / "model.safetensors"], stated)
    for name, numbers in meant.items():
        packed = source.packed(name)
        assert (packed is None) == ("_proj" not in name)
        if packed is not None:
            assert torch.equal(dense(packed, torch.float32, torch.device("cpu")), numbers)
    assert isinstance(decoder_of(model).layers[0].output, ReorderedLinear) == (case == "gptq_act_order")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "gptq", "bits": 3}, "bits: expected 4 or 8, got 3"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "expected the layout gemm, got gemv"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format: expected one of pack-quantized"),
        (FP8 | {"weight_block_size": [128]}, r"weight_block_size: expected two integers above 0, got \[128\]"),
        (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size: expected two integers above 0"),
        (FP8 | {"fmt": "e5m2"}, "fmt: expected e4m3, got e5m2"),
        (FP8 | {"expert_dtype": "fp4"}, "expert_dtype: expected fp8, got fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo: expected FP8, got NVFP4"),
    ],
)
def test_variant_not_served_is_refused(copied: FolderMaker, change: dict[str, Any], message: str) -> None:
    folder = copied(save_causal_model)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": change}))
    with pytest.raises(InvalidModel, match=message):
        load_generating(folder)


def test_scales_of_wrong_shape_are_refused(copied: FolderMaker) -> None:
    folder = copied(save_causal_model)

    def pack(weight: torch.Tensor) -> Any:
        tensors, meant = gptq(4)(weight)
        return tensors | {"scales": tensors["scales"][:, 1:]}, meant

    save_packed(folder, pack, GPTQ)
    with pytest.raises(InvalidModel, match=r"q_proj: expected scales \[groups, 64\]"):
        load_generating(folder)


def test_dtype_of_quantized_folder_is_refused(copied: FolderMaker) -> None:
    folder = copied(save_causal_model)
    save_packed(folder, awq, AWQ)
    with pytest.raises(InvalidModel, match='dtype: expected "f32", "f16" or "bf16", got "int8"'):
        load_generating(folder, dtype="int8")


def test_other_family_computes_with_packed_layers(copied: FolderMaker) -> None:
    folder: Path = copied(save_causal_model, model_type="phi3")
    meant = save_packed(folder, compressed(8), compressed_scheme("pack-quantized", 8))
    reference = causal_model("phi3")
    reference.load_state_dict(meant, strict=False)
    expected = logits_of(reference, IDS)
    error = (own_logits(load_generating(folder), IDS) - expected).square().mean().sqrt() / expected.std()
    assert error < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": None}, "expected weight_scale or weight_scale_inv, got neither"),
        ({"weight_scale": torch.ones(3)}, r"expected weight_scale \[64, 1\], got \[3\]"),
        ({"weight_scale": torch.full((64, 1), torch.inf)}, "expected finite scales"),
        ({"weight": torch.full((64, 64), torch.nan).to(torch.float8_e4m3fn)}, "expected weights without NaN"),
        ({"weight": torch.zeros(64, 64).to(torch.float8_e5m2)}, "expected a matrix of float8_e4m3fn"),
    ],
)
def test_damaged_float8_is_refused(copied: FolderMaker, changes: dict[str, Any], message: str) -> None:
    folder = copied(save_causal_model)
    save_packed(folder, float8(None), {"quant_method": "fbgemm_fp8"})
    file, layer = folder / "model.safetensors", "model.layers.1.self_attn.q_proj"
    tensors = load_file(file)
    assert tensors[f"{layer}.weight"].shape == (64, 64)
    for name, tensor in changes.items():
        tensors.pop(f"{layer}.{name}")
        if tensor is not None:
            tensors[f"{layer}.{name}"] = tensor
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(InvalidModel, match=f"{layer}: {message}"):
        load_generating(folder)


def test_float8_and_int8_are_not_joined() -> None:
    """Their bits and groups are the same."""
    weight = torch.randn(8, 32)
    tensors = float8(None)(weight)[0]
    of_floats = Float8Weight(tensors["weight"], tensors["weight_scale"], None)
    of_integers = RowWeight(torch.ones(8, 32, dtype=torch.int8), torch.ones(8, 1), None, None, (8, 32), 8)
    one, other = (PackedModule(each, None, torch.device("cpu")) for each in (of_floats, of_integers))
    assert one.joins(one)
    assert not one.joins(other)
    expected = torch.cat([dense(each, torch.float32, torch.device("cpu")) for each in (of_floats, of_integers)])
    rows = torch.randn(3, 32)
    joined = torch.cat([one(rows), other(rows)], 1)
    torch.testing.assert_close(joined, rows @ expected.t(), rtol=0, atol=1e-4)


def test_memory_of_widened_float8_is_planned(copied: FolderMaker) -> None:
    """A CPU holds them in the dtype of the arithmetic."""
    folder = copied(save_causal_model)
    plain = load_generating(folder, dtype="f32").spec.memory_bytes
    save_packed(folder, float8(None), {"quant_method": "fbgemm_fp8"})
    weights, packed = read_files(folder, GgufFolders(folder))[1:]
    assert packed is not None
    assert packed.float_elements == packed.elements > weights.elements
    assert weights.dtype == "F32"
    model = load_generating(folder, dtype="f32")
    assert model.spec.memory_bytes == plain
    assert model.spec.dtype == "float32"
