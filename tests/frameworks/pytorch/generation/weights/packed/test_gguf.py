"""GGUF files: logits and texts equal those of transformers' own loading of the same file."""

import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.generation.decoders.llama import LlamaDecoder
from frameworks.pytorch.generation.weights.packed import building, modules, weight
from frameworks.pytorch.generation.weights.packed.gguf_weights import model_weights
from frameworks.text.gguf.folder import read_gguf
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import alone, decoder_of, greedy_texts, load_generating, request
from tests.frameworks.pytorch.generation.weights.packed.logits import logits_of, own_logits
from tests.support.gguf_files import reference_model, save_gguf, write_gguf
from tests.support.models.causal_folders import END_ID, VOCABULARY_SIZE, causal_model

QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
PLAIN = ("F32", "F16", "BF16")
IDS = [3, 250, 77, 12, 99, 256, 41, 42, 7]
# Root mean square relative to the spread of the logits. The layers of quantized weights round rows, and some round
# weights again; a misread weight is off by about 1. The numbers that are read have no tolerance.
PLAIN_TOLERANCE, QUANTISED_TOLERANCE = 1e-4, 0.1
# Rows of super-blocks are multiples of 256. transformers' loading does not read the size of Qwen3's heads.
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 256, "intermediate_size": 256},
    "qwen2": {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64},
    "qwen3": {"hidden_size": 256, "intermediate_size": 256, "head_dim": 128, "tie_word_embeddings": True},
}
SIZES["llama"]["head_dim"] = 64


def error_of(model: Any, reference: Any) -> float:
    expected = logits_of(reference, IDS)
    return float((own_logits(model, IDS) - expected).square().mean().sqrt() / expected.std())


def median_error_of(model: Any, reference: Any) -> float:
    """Return the median of the tokens: random weights have near ties in attention, which rounded rows may turn."""
    expected = logits_of(reference, IDS)
    return float((own_logits(model, IDS) - expected).square().mean(1).sqrt().median() / expected.std())


def load(folder: Path, cache: Path, **entry: Any) -> Any:
    return load_generating(folder, cache_dir=cache, **entry)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *(("llama", kind) for kind in (*PLAIN, "Q8_0", "Q4_0", "Q4_K", "Q6_K", "mixed")),
        *((family, kind) for family in ("qwen2", "qwen3") for kind in ("F16", "Q8_0", "mixed")),
    ],
)
def test_logits_are_those_of_transformers(made_once: FolderMaker, tmp_path: Path, kind: str, family: str) -> None:
    file = made_once(save_gguf, kind=kind, model_type=family, **SIZES[family]) / "model.gguf"
    model = load(file, tmp_path)
    assert isinstance(decoder_of(model), LlamaDecoder)
    is_plain = kind in PLAIN
    widths = {"Q8_0": "int8", "Q4_0": "int4", "Q4_K": "int4", "Q6_K": "int8", "mixed": "int4"}
    assert model.spec.dtype == widths.get(kind, "float32")
    reference = reference_model(file)
    if is_plain:
        assert error_of(model, reference) < PLAIN_TOLERANCE
    else:
        assert median_error_of(model, reference) < QUANTISED_TOLERANCE


@pytest.mark.parametrize("kind", QUANTISED)
def test_weights_equal_llama_cpp(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As the package of llama.cpp dequantizes them, whole and in pieces."""
    file = made_once(save_gguf, kind=kind, **SIZES["llama"]) / "model.gguf"
    expected = reference_model(file).state_dict()
    source = model_weights(read_gguf(file))
    for elements in (1 << 18, 1000):
        monkeypatch.setattr(weight, "_PIECE_ELEMENTS", elements)
        for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"):
            packed = source.packed(name)
            assert packed is not None
            assert torch.equal(weight.read_groups(packed).dense(), expected[name])
            assert torch.equal(weight.dense(packed, torch.float32, torch.device("cpu")), expected[name])
    packed = source.packed("model.embed_tokens.weight")
    assert packed is not None
    ids = torch.tensor([7, 299, 0, 7])
    assert torch.equal(weight.dense_rows(packed, ids, torch.float32), expected["model.embed_tokens.weight"][ids])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_greedy_texts_of_f16_are_those_of_transformers(made_once: FolderMaker, tmp_path: Path, family: str) -> None:
    file = made_once(save_gguf, kind="F16", model_type=family, **SIZES[family]) / "model.gguf"
    model = load(file, tmp_path)
    [expected] = greedy_texts(reference_model(file), [IDS], 40)
    expected = expected[: expected.index(END_ID) + 1] if END_ID in expected else expected
    assert alone(model, request(1, IDS, 40)) == expected


def test_folder_with_one_file_is_served(made_once: FolderMaker, tmp_path: Path) -> None:
    file = made_once(save_gguf, kind="Q8_0") / "model.gguf"
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(file, folder / "some name.gguf")
    model = load(folder, tmp_path / "cache")
    assert model.spec.generation.vocabulary_size == VOCABULARY_SIZE
    assert END_ID in model.spec.generation.eos_token_ids
    shutil.copy(file, folder / "another.gguf")
    with pytest.raises(InvalidModel, match=r"expected one GGUF file, got 2: another.gguf, some name.gguf"):
        load(folder, tmp_path / "cache")


def test_large_table_is_read_from_file(made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made_once(save_gguf, kind="Q4_0", tie_word_embeddings=True) / "model.gguf"
    dense = load(file, tmp_path)
    monkeypatch.setattr(modules, "LARGEST_DENSE_TABLE", 0)
    mapped = load(file, tmp_path, enable_mapping=False)
    torch.testing.assert_close(own_logits(dense, IDS), own_logits(mapped, IDS), rtol=1e-5, atol=1e-5)
    assert mapped.spec.memory_bytes < dense.spec.memory_bytes


def test_weights_are_dequantized_for_accelerators(
    made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU no module keeps packed weights."""
    monkeypatch.setattr(building._Builder, "_packed", lambda *_: None)
    file = made_once(save_gguf, kind="mixed", model_type="qwen2", **SIZES["qwen2"]) / "model.gguf"
    assert error_of(load(file, tmp_path), reference_model(file)) < PLAIN_TOLERANCE


def test_plain_file_is_quantized_on_demand(made_once: FolderMaker, tmp_path: Path) -> None:
    file = made_once(save_gguf, kind="F16", **SIZES["llama"]) / "model.gguf"
    model = load(file, tmp_path, dtype="int8", min_cosine=0.5)
    assert model.spec.quantization is not None
    quantized = made_once(save_gguf, kind="Q8_0", **SIZES["llama"]) / "model.gguf"
    with pytest.raises(InvalidModel, match='dtype: expected "f32", "f16" or "bf16", got "int8"'):
        load(quantized, tmp_path, dtype="int8")


def test_rope_factors_divide_frequencies(made_once: FolderMaker, tmp_path: Path) -> None:
    """As the converter writes Llama 3.1's `rope_parameters`, in a tensor."""
    original = made_once(save_gguf) / "original"
    rope = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    reference = causal_model(rope_parameters=rope)
    plain = causal_model().model.rotary_emb.inv_freq
    factors = (plain / reference.model.rotary_emb.inv_freq).float().numpy()
    assert factors.max() > 1.5
    file = write_gguf(
        original, tmp_path / "m.gguf", Kind.F32, more=lambda writer: writer.add_tensor("rope_freqs.weight", factors)
    )
    assert error_of(load(file, tmp_path), reference) < PLAIN_TOLERANCE


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaled_rotation_is_that_of_transformers(made_once: FolderMaker, tmp_path: Path, kind: str) -> None:
    original = made_once(save_gguf) / "original"

    def more(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    file = write_gguf(original, tmp_path / "m.gguf", Kind.F32, more=more)
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    reference = AutoModelForCausalLM.from_pretrained(original, rope_parameters=rope, dtype=torch.float32)
    assert error_of(load(file, tmp_path), reference.eval()) < PLAIN_TOLERANCE


def test_made_folder_is_used_again(made_once: FolderMaker, tmp_path: Path) -> None:
    file = made_once(save_gguf) / "model.gguf"
    load(file, tmp_path)
    [folder] = (tmp_path / "gguf").iterdir()
    made = (folder / "tokenizer.json").stat().st_mtime_ns
    load(file, tmp_path)
    assert [folder] == list((tmp_path / "gguf").iterdir())
    assert (folder / "tokenizer.json").stat().st_mtime_ns == made


def test_cache_dir_that_is_not_writable_is_named(made_once: FolderMaker) -> None:
    with pytest.raises(InvalidModel, match=r"models.cache_dir = /dev/null/cache: the tokenizer of model.gguf cannot"):
        load(made_once(save_gguf) / "model.gguf", Path("/dev/null/cache"))
