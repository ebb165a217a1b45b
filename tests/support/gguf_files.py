"""Write GGUF files with the package of llama.cpp, by the rules of its converter."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file

from tests.support.gguf_blocks import random_blocks
from tests.support.models.causal_folders import save_causal_model

_K_TYPES = (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    folder: Path,
    file: Path,
    kind: Kind | Callable[[str], Kind] = Kind.F16,
    more: Callable[[gguf.GGUFWriter], None] | None = None,
    **changes: Any,
) -> Path:
    """Convert a Hugging Face folder. `kind`: of the matrices, by their names in the file; vectors are F32.

    Types with super-blocks get random blocks. `more`: writes more keys or tensors. `changes`: of config.json, for the
    metadata; the tensors stay.
    """
    original = json.loads((folder / "config.json").read_text())
    config = original | changes
    architecture = config["model_type"]
    writer = gguf.GGUFWriter(file, architecture)
    _write_sizes(writer, config)
    _write_tokenizer(writer, folder, config)
    for name, array in load_file(folder / "model.safetensors").items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        _write_tensor(writer, _gguf_name(name), _reordered(name, array, original), kind)
    if more is not None:
        more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def save_gguf(folder: Path, kind: str = "F16", model_type: str = "llama", **changes: Any) -> Path:
    """Write a tiny model with random weights as `model.gguf`, and its original into the subfolder `original`.

    `kind`: a type, or "mixed" for those of Q4_K_M. `changes`: of its config.
    """
    original = save_causal_model(folder / "original", model_type, **changes)
    return write_gguf(original, folder / "model.gguf", _mixed if kind == "mixed" else Kind[kind])


def _mixed(name: str) -> Kind:
    wide = name == "output.weight" or "attn_v" in name or "ffn_down" in name
    return Kind.Q6_K if wide else Kind.Q4_K


def _write_sizes(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    head = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    if config["model_type"] == "llama":
        writer.add_rope_dimension_count(head)
        writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: Mapping[str, Any]) -> None:
    """Write a byte-level BPE, whose words are split as GPT-2's."""
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    special = {token["content"]: token["id"] for token in content["added_tokens"]}
    by_id = {token_id: token for token, token_id in (vocabulary | special).items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(config["vocab_size"])]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    normal, control, unused = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED
    writer.add_token_types(
        [control if token in special else unused if i not in by_id else normal for i, token in enumerate(tokens)]
    )
    if merges:
        writer.add_token_merges(merges)
    ids = {name: config.get(f"{name}_token_id") for name in ("bos", "eos", "pad")}
    for name, token_id in ids.items():
        if token_id is not None:
            getattr(writer, f"add_{name}_token_id")(token_id)
    writer.add_add_bos_token(ids["bos"] is not None)
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text())


def _gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module.startswith("model.layers."):
        layer, _, part = module.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{_NAMES[part]}.{kind}"
    return f"{_NAMES[module]}.{kind}"


def _reordered(name: str, array: Any, config: Mapping[str, Any]) -> Any:
    """Return a matrix with the rows of each head as llama.cpp rotates them, neighbours together."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    part = name.split(".")[-2]
    if config["model_type"] != "llama" or part not in heads:
        return array
    count = config[heads[part]]
    # LlamaModel.permute of convert_hf_to_gguf.py.
    return array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _write_tensor(writer: gguf.GGUFWriter, name: str, array: Any, kind: Kind | Callable[[str], Kind]) -> None:
    values = np.ascontiguousarray(array, np.float32)
    chosen = kind(name) if callable(kind) else kind
    if values.ndim == 1:
        chosen = Kind.F32
    if chosen in _K_TYPES:
        data = random_blocks(values.shape, chosen, float(values.std()))
    else:
        data = gguf.quantize(values, chosen)
    writer.add_tensor(name, data, raw_dtype=chosen)


def reference_model(file: Path) -> Any:
    """Return the model of transformers' own loading of a file, in float32 (`gguf_file=`, without accelerate)."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    assert not unexpected
    return model.eval()
