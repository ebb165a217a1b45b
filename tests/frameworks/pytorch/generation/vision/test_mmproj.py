"""GGUF models with an mmproj file: their images and texts are those of the folder that both were converted from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from frameworks.pytorch.generation.weights.packed.building import build_causal_model
from frameworks.pytorch.packed_files import read_files
from frameworks.text.gguf.folder import GgufFolders
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.frameworks.pytorch.generation.vision.seeing import (
    IMAGES,
    Reference,
    compare,
    conversation,
    sequence,
    texts_of,
)
from tests.support.engine_hosts import CPU
from tests.support.gguf_files import write_gguf, write_mmproj
from tests.support.models.vision.catalogue import MAKERS

FAMILIES = ("smolvlm", "idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "llava")


def converted(folder: Path, name: str, kind: Kind, **options: Any) -> Path:
    """Write a folder with both files; the original is in its neighbour `original`."""
    original, target = folder / "original", folder / "gguf"
    original.mkdir()
    target.mkdir()
    MAKERS[name](original)
    if name == "llava":
        # Its files do not state what their processor does.
        file = original / "processor_config.json"
        file.write_text(file.read_text().replace('"do_pad": false', '"do_pad": true'))
    write_gguf(original, target / "model.gguf", kind)
    write_mmproj(original, target / "mmproj-model.gguf", kind, **options)
    return target


@pytest.mark.parametrize("name", FAMILIES)
def test_images_give_logits_of_original(tmp_path: Path, name: str) -> None:
    target = converted(tmp_path, name, Kind.F32)
    folder, files, found = read_files(target, GgufFolders(tmp_path / "cache"))
    assert found is not None
    model = build_causal_model(folder, found.source(folder, files.files, True), "f32", CPU)
    reference = Reference(tmp_path / "original")
    inputs = reference.inputs(conversation(IMAGES[:2]))
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    logits = []
    with torch.inference_mode():
        for each in (reference.model, model):
            output = each.generate(**inputs, **options, output_logits=True, return_dict_in_generate=True)
            logits.append(torch.cat(output.logits))
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_equal_those_of_original(tmp_path: Path, name: str) -> None:
    target = converted(tmp_path, name, Kind.F32)
    assert compare(target, (0, 1, 3), tmp_path / "original") is None


@pytest.mark.parametrize("name", FAMILIES)
def test_quantized_files_read_images(tmp_path: Path, name: str) -> None:
    target = converted(tmp_path, name, Kind.Q8_0)
    model = load_generating(target, kv_cache_bytes=1 << 24, cache_dir=tmp_path)
    assert model.spec.dtype == "int8"
    assert model.spec.generation.vision is not None
    assert model.spec.generation.unpaged_because is None
    assert len(texts_of(model, [sequence(model, 0, conversation(IMAGES[:2]))])[0]) == 8
    model.close()


@pytest.mark.parametrize("name", ["smolvlm", "gemma3"])
def test_file_alone_serves_texts(tmp_path: Path, name: str) -> None:
    target = converted(tmp_path, name, Kind.F32)
    both = load_generating(target, kv_cache_bytes=1 << 24, cache_dir=tmp_path)
    expected = texts_of(both, [sequence(both, 0, conversation([]))])
    both.close()
    for path, options in ((target, {"vision": False}), (target / "model.gguf", {})):
        model = load_generating(path, kv_cache_bytes=1 << 24, cache_dir=tmp_path, **options)
        assert model.spec.generation.vision is None
        assert texts_of(model, [sequence(model, 0, conversation([]))]) == expected
        model.close()
