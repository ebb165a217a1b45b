"""Weights of modules: what their files hold."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from frameworks.text.sentence_modules.module_weights import read_weights
from frameworks.text.sentence_modules.modules import Module


def test_bfloat16_weights_become_float32(tmp_path: Path) -> None:
    """numpy has no such type; published modules are saved in it."""
    save_file({"linear.weight": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    weights = read_weights(Module("Dense", tmp_path))
    assert weights["linear.weight"].tolist() == [[1.5, -2.0]]
    assert str(weights["linear.weight"].dtype) == "float32"
