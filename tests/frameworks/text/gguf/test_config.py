"""Configurations made of GGUF metadata; files whose tensors and metadata disagree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import AutoConfig

from frameworks.core.errors import InvalidModel
from frameworks.text.gguf.config import read_config, read_generation_config
from frameworks.text.gguf.folder import read_gguf
from frameworks.text.gguf.header import read_header
from tests.frameworks.conftest import FolderMaker
from tests.support.gguf_files import save_gguf, write_gguf

# transformers' own reading of a file states these too.
_COMMON = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "eos_token_id",
)  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_config_is_that_of_transformers(made_once: FolderMaker, family: str) -> None:
    folder = made_once(save_gguf, model_type=family, tie_word_embeddings=family == "qwen2")
    ours = read_config(read_header(folder / "model.gguf"))
    theirs = AutoConfig.from_pretrained(str(folder), gguf_file="model.gguf")
    assert {name: ours[name] for name in _COMMON} == {name: getattr(theirs, name) for name in _COMMON}
    original = AutoConfig.from_pretrained(folder / "original")
    assert ours["architectures"] == original.architectures
    assert (ours["model_type"], ours["head_dim"]) == (family, 16)
    assert ours["rope_parameters"]["rope_theta"] == theirs.rope_parameters["rope_theta"]


def test_sampling_of_file_is_default(made_once: FolderMaker, tmp_path: Path) -> None:
    def more(writer: gguf.GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 20)

    file = write_gguf(made_once(save_gguf) / "original", tmp_path / "m.gguf", more=more)
    assert read_generation_config(read_header(file)) == {"temperature": 0.5, "top_k": 20, "eos_token_id": [256]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, "tensor blk.2.attn_norm.weight: expected .*, got none"),
        ({"num_hidden_layers": 1}, "tensor blk.1.* expected none of this name in a model of llama"),
        ({"num_hidden_layers": 1 << 31}, "llama.block_count: expected at most 21 as tensors, got 2147483648"),
        ({"intermediate_size": 97}, r"ffn_gate.weight: expected the shape \[97, 64\] by the metadata, got \[96, 64\]"),
        ({"num_attention_heads": 1 << 30}, r"attn_q.weight: expected the shape \[17179869184, 64\]"),
        ({"hidden_size": 1 << 30}, r"token_embd.weight: expected the shape \[300, 1073741824\]"),
        ({"model_type": "gemma2"}, "general.architecture: expected one of llama, qwen2, qwen3, gemma3, .* got gemma2"),
    ],
)
def test_sizes_that_tensors_deny_are_refused(
    made_once: FolderMaker, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = write_gguf(made_once(save_gguf) / "original", tmp_path / "m.gguf", **changes)
    with pytest.raises(InvalidModel, match=message):
        read_gguf(file)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda writer: writer.add_expert_count(8), "llama.expert_count: expected 0"),
        (
            lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
            "scaling.type: expected none, lin",
        ),
        (lambda writer: writer.add_uint16("split.count", 2), "split.count: expected one file"),
        (lambda writer: writer.add_tensor("blk.0.attn_sinks", np.ones(4, np.float32)), "attn_sinks: expected none"),
        (lambda writer: writer.add_float32("llama.attention.sliding", np.nan), None),
    ],
)
def test_features_not_served_are_refused(
    made_once: FolderMaker, tmp_path: Path, more: Callable[[gguf.GGUFWriter], None], message: str | None
) -> None:
    file = write_gguf(made_once(save_gguf) / "original", tmp_path / "m.gguf", more=more)
    if message is None:
        assert read_gguf(file).text.tensors
        return
    with pytest.raises(InvalidModel, match=message):
        read_gguf(file)
