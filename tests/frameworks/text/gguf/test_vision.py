"""mmproj files: what does not fit its language model, or is not served, is refused by key or tensor."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from frameworks.core.errors import InvalidModel
from frameworks.text.gguf.folder import find_gguf, find_projector, read_gguf
from frameworks.text.gguf.header import GgufFile, read_header
from frameworks.text.gguf.vision import read_vision
from tests.frameworks.conftest import FolderMaker
from tests.support.gguf_files import write_gguf, write_mmproj
from tests.support.models.vision.catalogue import MAKERS


def save_both(folder: Path, family: str) -> None:
    (folder / "original").mkdir()
    MAKERS[family](folder / "original")
    write_gguf(folder / "original", folder / "model.gguf", Kind.F32)
    write_mmproj(folder / "original", folder / "mmproj-model.gguf", Kind.F32)


def headers(folder: Path) -> tuple[GgufFile, GgufFile]:
    return read_header(folder / "model.gguf"), read_header(folder / "mmproj-model.gguf")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("smolvlm", {"general.architecture": "llama"}, "general.architecture: expected clip with"),
        ("smolvlm", {"clip.has_vision_encoder": False}, "expected clip with clip.has_vision_encoder"),
        ("smolvlm", {"clip.projector_type": "resampler"}, "projector_type: expected one of idefics3, .* got resampler"),
        ("smolvlm", {"clip.vision.block_count": 1 << 40}, "block_count: expected at most .* as tensors"),
        ("smolvlm", {"clip.vision.patch_size": 0}, "patch_size: expected at least 1, got 0"),
        ("smolvlm", {"clip.vision.image_size": 1 << 30}, "position_embd.weight: expected the shape"),
        ("smolvlm", {"clip.vision.image_mean": np.ones(2, "<f4")}, "image_mean: expected three numbers"),
        ("smolvlm", {"clip.vision.projector.scale_factor": 3}, r"mm.model.fc.weight: expected the shape \[64, 288\]"),
        ("smolvlm", {"clip.vision.block_count": 1}, "v.blk.1.* expected none of this name"),
        ("qwen3_vl", {"clip.vision.is_deepstack_layers": np.ones(2, "?")}, "expected a value for each of 3 layers"),
        ("llava", {"clip.vision.mm_patch_merge_type": "spatial_unpad"}, "expected flat, got spatial_unpad"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(
    made_once: FolderMaker, family: str, changes: dict[str, Any], message: str
) -> None:
    text, file = headers(made_once(save_both, family=family))
    with pytest.raises(InvalidModel, match=message):
        read_vision(text, replace(file, metadata={**file.metadata, **changes}))


def test_missing_tensor_is_named(made_once: FolderMaker) -> None:
    text, file = headers(made_once(save_both, family="smolvlm"))
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != "v.post_ln.bias"}
    with pytest.raises(InvalidModel, match=r"v.post_ln.bias: expected the shape \[32\] .* got none; do both files"):
        read_vision(text, replace(file, tensors=tensors))


def test_vocabulary_without_image_token_is_refused(made_once: FolderMaker) -> None:
    text, file = headers(made_once(save_both, family="smolvlm"))
    tokens = [token.replace("<image>", "<picture>") for token in text.strings("tokenizer.ggml.tokens")]
    metadata = {**text.metadata, "tokenizer.ggml.tokens": tokens}
    with pytest.raises(InvalidModel, match="expected the token <image> for images"):
        read_vision(replace(text, metadata=metadata), file)


def test_text_decoder_of_vision_model_needs_its_file(made_once: FolderMaker) -> None:
    folder = made_once(save_both, family="qwen2_5_vl")
    with pytest.raises(InvalidModel, match="qwen2vl reads images; name a folder with this file and its mmproj file"):
        read_gguf(folder / "model.gguf")
    # Texts alone are computed by the whole model's class.
    assert read_gguf(folder / "model.gguf", folder / "mmproj-model.gguf", sees=False).vision is not None


def test_exchanged_names_of_layers_are_read(made_once: FolderMaker) -> None:
    """As older files have them."""
    text, file = headers(made_once(save_both, family="smolvlm"))
    names = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    tensors = {}
    for name, tensor in file.tensors.items():
        kind = name.split(".")[-2]
        tensors[name.replace(kind, names.get(kind, kind))] = tensor
    parts = [read_vision(text, each).parameters for each in (file, replace(file, tensors=tensors))]
    path = "model.vision_model.encoder.layers.1.mlp.fc1.weight"
    assert [each[path].tensors for each in parts] == [("v.blk.1.ffn_up.weight",), ("v.blk.1.ffn_down.weight",)]


def test_folder_has_one_of_each(tmp_path: Path) -> None:
    for name in ("model.gguf", "mmproj-model-f16.gguf"):
        (tmp_path / name).touch()
    assert find_gguf(tmp_path) == tmp_path / "model.gguf"
    assert find_projector(tmp_path) == tmp_path / "mmproj-model-f16.gguf"
    assert find_projector(tmp_path / "model.gguf") is None
    (tmp_path / "mmproj-model-q8_0.gguf").touch()
    with pytest.raises(InvalidModel, match="expected one mmproj file, got 2: mmproj-model-f16"):
        find_projector(tmp_path)
