"""Write the Llamas of the bench as GGUF files of float32, for llama.cpp."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.language_models import CONTEXT_TOKENS, LlamaShape

_OF_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_EPSILON = 1e-6
_ROPE_BASE = 10_000.0


def write_gguf(folder: Path, shape: LlamaShape) -> Path:
    """Write the model of `save_llama` beside its folder, with its tokenizer; return the file."""
    import gguf
    from safetensors.numpy import load_file

    path = folder.with_suffix(".gguf")
    writer = gguf.GGUFWriter(path, "llama")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_layer_norm_rms_eps(float(config.get("rms_norm_eps", _EPSILON)))
    writer.add_rope_freq_base(float((config.get("rope_parameters") or {}).get("rope_theta", _ROPE_BASE)))
    writer.add_rope_dimension_count(shape.hidden_size // shape.num_heads)
    writer.add_vocab_size(int(config["vocab_size"]))
    _add_tokenizer(writer, folder)
    for name, array in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_name_of(name), _in_order(name, array, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(each) if isinstance(each, list) else each for each in model["merges"]])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)


def _name_of(name: str) -> str:
    module = name.removesuffix(".weight")
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.weight"
    number, _, of_layer = module.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{_OF_LAYER[of_layer]}.weight"


def _in_order(name: str, array: "np.ndarray[Any, Any]", shape: LlamaShape) -> "np.ndarray[Any, Any]":
    """Interleave the halves of the heads of queries and keys, as llama.cpp rotates pairs of neighbours."""
    heads = {"q_proj": shape.num_heads, "k_proj": shape.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return np.asarray(array, dtype=np.float32)
    rows, inputs = array.shape
    halves = array.reshape(heads, 2, rows // heads // 2, inputs)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, inputs), dtype=np.float32)
