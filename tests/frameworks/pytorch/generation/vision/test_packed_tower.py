"""Vision parts with packed weights: the texts of `generate`, and the bytes of the model."""

from pathlib import Path

import pytest
import torch

from frameworks.pytorch import kernels
from frameworks.pytorch.cpu_layers import packed
from frameworks.pytorch.cpu_layers.packed import PackedLayer
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.frameworks.pytorch.generation.vision.seeing import compare
from tests.support.models.vision.catalogue import MAKERS


@pytest.mark.skipif(not kernels.packs(torch.float32), reason="this CPU packs no float32")
@pytest.mark.parametrize("name", ["smolvlm", "qwen2_5_vl", "mllama", "llava_onevision"])
def test_texts_with_packed_towers_equal_generate(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "packs_linear", lambda: True)
    monkeypatch.setattr(packed, "_packs_convolutions", lambda: True)
    monkeypatch.setattr(packed, "_MIN_WEIGHTS", 1)
    MAKERS[name](tmp_path)
    model = load_generating(tmp_path, kv_cache_bytes=1 << 24)
    assert model.image_prompts is not None
    whole = model.image_prompts.processing._whole
    if whole is not None:
        assert any(isinstance(each, PackedLayer) for each in whole.modules())
        assert not any(isinstance(each, PackedLayer) for each in whole.get_decoder().modules())
    model.close()
    compare(tmp_path, (0, 1, 3))
