"""Folders of GPTQ, AWQ and compressed-tensors: their logits are those of the numbers that they mean."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.generation.weights.packed.folder_weights import FolderWeights
from frameworks.pytorch.generation.weights.packed.modules import ReorderedLinear
from frameworks.pytorch.generation.weights.packed.weight import dense
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import decoder_of, load_generating
from tests.frameworks.pytorch.generation.weights.packed.logits import logits_of, own_logits
from tests.support.models.causal_folders import causal_model, save_causal_model
from tests.support.packed_folders import Pack, awq, compressed, compressed_scheme, gptq, save_packed

IDS = [3, 250, 77, 12, 99, 256, 41, 42]
# As in test_gguf.py.
TOLERANCE = 0.1

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
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
    source = FolderWeights(folder, [folder / "model.safetensors"], scheme)
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
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "format: expected one of pack-quantized"),
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
