"""Models that see with packed weights: their images give the logits of the numbers that the files mean."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from frameworks.pytorch.generation.weights.packed.building import build_causal_model, packed_modules
from frameworks.pytorch.packed_files import read_files
from frameworks.text.gguf.folder import GgufFolders
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, Reference, conversation, sequence, texts_of
from tests.support.engine_hosts import CPU
from tests.support.models.vision.catalogue import MAKERS
from tests.support.packed_folders import Pack, awq, compressed, compressed_scheme, float8, gptq, save_packed

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
CASES: dict[str, tuple[Pack, dict[str, Any]]] = {
    "smolvlm": (gptq(4), GPTQ),
    "qwen2_5_vl": (awq, AWQ),
    "gemma3": (compressed(8, group=None, is_packed=False), compressed_scheme("int-quantized", 8)),
    "mistral3": (float8(None), compressed_scheme("float-quantized", 8)),
}


def packed_and_meant(folder: Path, name: str) -> tuple[Path, Path]:
    """Return a folder with packed weights, and one with the numbers that they mean."""
    pack, scheme = CASES[name]
    packed, meant = folder / "packed", folder / "meant"
    packed.mkdir()
    MAKERS[name](packed)
    shutil.copytree(packed, meant)
    tensors = save_packed(packed, pack, scheme)
    save_file({key: each.contiguous() for key, each in tensors.items()}, meant / "model.safetensors", {"format": "pt"})
    return packed, meant


@pytest.mark.parametrize("name", CASES)
def test_images_give_logits_of_dequantized_weights(tmp_path: Path, name: str) -> None:
    packed, meant = packed_and_meant(tmp_path, name)
    folder, files, found = read_files(packed, GgufFolders(tmp_path / "cache"))
    assert found is not None
    model = build_causal_model(folder, found.source(folder, files.files, True), "f32", CPU)
    reference = Reference(meant)
    inputs = reference.inputs(conversation(IMAGES[:2]))
    logits = []
    with torch.inference_mode():
        for each in (reference.model, model):
            options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
            output = each.generate(**inputs, **options, output_logits=True, return_dict_in_generate=True)
            logits.append(torch.cat(output.logits))
    assert packed_modules(model) or name == "mistral3"  # a CPU widens float8
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_served_model_reads_images(tmp_path: Path, name: str) -> None:
    packed, _ = packed_and_meant(tmp_path, name)
    model = load_generating(packed, kv_cache_bytes=1 << 24)
    assert model.spec.generation.unpaged_because is None
    assert model.spec.generation.vision is not None
    assert model.image_prompts is not None
    assert model.image_prompts.form.sees_ahead == (name == "gemma3")
    assert len(texts_of(model, [sequence(model, 0, conversation(IMAGES[:2]))])[0]) == 8
    assert len(texts_of(model, [sequence(model, 0, conversation([]))])[0]) == 8
    model.close()


def test_texts_alone_load_no_vision(tmp_path: Path) -> None:
    packed, _ = packed_and_meant(tmp_path, "smolvlm")
    both = load_generating(packed, kv_cache_bytes=1 << 24)
    alone = load_generating(packed, kv_cache_bytes=1 << 24, vision=False)
    assert alone.image_prompts is None
    assert alone.spec.memory_bytes < both.spec.memory_bytes
    texts = [texts_of(each, [sequence(each, 0, conversation([]))]) for each in (both, alone)]
    assert texts[0] == texts[1]
    both.close()
    alone.close()
