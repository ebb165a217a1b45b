"""The configuration of a language model in a GGUF file, as `config.json` and `generation_config.json` state it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.text.gguf.header import GgufFile, GgufTensor
from frameworks.text.gguf.special_tokens import special_ids, stop_ids

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
# Text decoders of models that see, which have the tensors of another.
_OF_VISION = {"qwen2vl": "qwen2", "qwen3vl": "qwen3"}
_DEFAULT_ROPE_BASE = 10_000.0
# Of Gemma 3, as llama.cpp has them: one layer of so many sees the whole text; the largest model scales by another size.
_PERIOD, _LAYERS_OF_LARGEST = 6, 62
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a model, as its tensors confirm them."""

    vocabulary: int
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_heads: int
    head: int


def needs_vision(file: GgufFile) -> bool:
    """Return whether the model is the text decoder of a model that sees, and none by itself."""
    return file.text("general.architecture") in _OF_VISION


def read_config(file: GgufFile, has_vision: bool = False) -> dict[str, Any]:
    """Return the content of `config.json`. `has_vision`: of the text decoder of a model that sees.

    Raises InvalidModel for an architecture that is not served, for features of one that are not served, and where a
    tensor is missing, unknown, or of another shape than the metadata say.
    """
    architecture = file.text("general.architecture")
    if needs_vision(file) and not has_vision:
        raise InvalidModel(
            f"{file.path}: general.architecture: {architecture} reads images; name a folder with this file and its "
            "mmproj file in path"
        )
    family = _OF_VISION.get(architecture or "", architecture)
    if architecture is None or family not in _ARCHITECTURES:
        raise file.wrong("general.architecture", f"one of {', '.join((*_ARCHITECTURES, *_OF_VISION))}", architecture)
    sizes = _read_sizes(file, architecture)
    _check_tensors(file, architecture, family, sizes)
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.feed_forward,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.key_heads,
        "head_dim": sizes.head,
        "hidden_act": "silu",
        "max_position_embeddings": file.integer(f"{architecture}.context_length"),
        "rms_norm_eps": file.number(f"{architecture}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(file, architecture),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "use_sliding_window": False,
    }
    if family != "qwen2":  # whose query, key and value have a bias, and nothing else has
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if family == "gemma3":
        config |= _gemma3(file, sizes, config["rope_parameters"])
    return config | special_ids(file)


def _gemma3(file: GgufFile, sizes: _Sizes, rope: dict[str, Any]) -> dict[str, Any]:
    """Return what Gemma 3 has of its own. `rope`: of the layers that see the whole text."""
    window = file.integer("gemma3.attention.sliding_window", 0)
    slides = _slides(file, sizes.layers) if window else [False] * sizes.layers
    sliding_base = file.number("gemma3.rope.freq_base_swa", _DEFAULT_ROPE_BASE)
    softcap = file.number("gemma3.final_logit_softcapping", 0.0)
    return {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": sizes.hidden // sizes.heads if sizes.layers == _LAYERS_OF_LARGEST else sizes.head,
        "sliding_window": window or None,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": sliding_base},
        },
        "final_logit_softcapping": softcap or None,
    }


def _slides(file: GgufFile, layers: int) -> list[bool]:
    """Return whether each layer of Gemma 3 has a sliding window: stated for each, or for all but each sixth."""
    key = "gemma3.attention.sliding_window_pattern"
    if not isinstance(file.metadata.get(key), np.ndarray):
        period = file.integer(key, _PERIOD)
        return [bool((layer + 1) % period) if period else True for layer in range(layers)]
    found = file.numbers(key) or []
    if len(found) != layers:
        raise file.wrong(key, f"a value for each of {layers} layers", f"{len(found)}")
    return [bool(each) for each in found]


def read_generation_config(file: GgufFile) -> dict[str, Any]:
    """Return the content of `generation_config.json`: the tokens that end a text, and the sampling."""
    content: dict[str, Any] = {name: file.metadata[key] for key, name in _SAMPLING.items() if key in file.metadata}
    return content | {"eos_token_id": stop_ids(file)}


def _read_sizes(file: GgufFile, architecture: str) -> _Sizes:
    hidden, heads = (file.integer(f"{architecture}.{key}") for key in ("embedding_length", "attention.head_count"))
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise InvalidModel(f"{file.path}: token_embd.weight: expected a matrix, got none; convert the model again")
    if not heads or not hidden:
        raise file.wrong(f"{architecture}.attention.head_count", "at least 1", heads)
    head = file.integer(f"{architecture}.attention.key_length", hidden // heads)
    value_head = file.integer(f"{architecture}.attention.value_length", head)
    rotated = file.integer(f"{architecture}.rope.dimension_count", head)
    if value_head != head or rotated != head:
        raise file.wrong(f"{architecture}.rope.dimension_count", f"the size of all heads, {head}", rotated)
    if file.integer(f"{architecture}.expert_count", 0):
        raise file.wrong(f"{architecture}.expert_count", "0: models with experts are not served", "more")
    return _Sizes(
        table.shape[0],
        hidden,
        file.integer(f"{architecture}.feed_forward_length"),
        file.integer(f"{architecture}.block_count"),
        heads,
        file.integer(f"{architecture}.attention.head_count_kv", heads),
        head,
    )


def _rope(file: GgufFile, architecture: str) -> dict[str, Any]:
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": file.number(f"{architecture}.rope.freq_base", _DEFAULT_ROPE_BASE),
    }
    sections = file.numbers(f"{architecture}.rope.dimension_sections")
    if sections is not None:
        rope["mrope_section"] = [int(each) for each in sections[:3]]
        rope |= {"mrope_interleaved": True} if architecture == "qwen3vl" else {}
    key = f"{architecture}.rope.scaling"
    kind = file.text(f"{key}.type", "none")
    old_factor = file.number(f"{architecture}.rope.scale_linear", 1.0)
    factor = file.number(f"{key}.factor", old_factor)
    if kind == "none" and factor == 1:
        return rope
    if kind not in ("none", "linear", "yarn"):
        raise file.wrong(f"{key}.type", "none, linear or yarn", kind)
    rope |= {"rope_type": "yarn" if kind == "yarn" else "linear", "factor": factor}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = file.integer(f"{key}.original_context_length")
    return rope


def _check_tensors(file: GgufFile, architecture: str, family: str, sizes: _Sizes) -> None:
    """Compare the tensors with those that the metadata promise, so that a wrong size costs no memory."""
    if sizes.layers > len(file.tensors):
        raise file.wrong(f"{architecture}.block_count", f"at most {len(file.tensors)} as tensors", sizes.layers)
    required, optional = _expected(family, sizes)
    known = required | optional
    for name, shape in known.items():
        found = file.tensors.get(name)
        if found is None and name in required:
            raise InvalidModel(f"{file.path}: tensor {name}: expected {list(shape)}, got none; is it a whole model?")
        if found is not None and found.shape != shape:
            raise InvalidModel(
                f"{file.path}: tensor {name}: expected the shape {list(shape)} by the metadata, got "
                f"{list(found.shape)}; convert the model again"
            )
    for name, tensor in file.tensors.items():
        if name not in known:
            raise InvalidModel(
                f"{file.path}: tensor {name[:100]}: expected none of this name in a model of {architecture}, got "
                f"{list(tensor.shape)}; this kind of model is not served"
            )
        if len(tensor.shape) == 1 and not tensor.block_type.is_plain:
            raise InvalidModel(f"{file.path}: tensor {name}: expected F32 or F16, got {tensor.block_type.name}")


def _expected(family: str, sizes: _Sizes) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of the tensors that the model has, and of those that it may have."""
    hidden, query, key = sizes.hidden, sizes.heads * sizes.head, sizes.key_heads * sizes.head
    required: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (sizes.vocabulary, hidden),
        "output_norm.weight": (hidden,),
    }
    optional: dict[str, tuple[int, ...]] = {
        "output.weight": (sizes.vocabulary, hidden),
        "rope_freqs.weight": (sizes.head // 2,),
    }
    biases = {"attn_q.bias": (query,), "attn_k.bias": (key,), "attn_v.bias": (key,)}
    parts: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
        "attn_q.weight": (query, hidden),
        "attn_k.weight": (key, hidden),
        "attn_v.weight": (key, hidden),
        "attn_output.weight": (hidden, query),
        "ffn_gate.weight": (sizes.feed_forward, hidden),
        "ffn_up.weight": (sizes.feed_forward, hidden),
        "ffn_down.weight": (hidden, sizes.feed_forward),
    }
    may: dict[str, tuple[int, ...]] = {}
    if family == "qwen2":
        parts |= biases
    elif family != "gemma3":
        may |= biases | {"attn_output.bias": (hidden,)}
    if family == "gemma3":
        parts |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    if family in ("qwen3", "gemma3"):
        parts |= {"attn_q_norm.weight": (sizes.head,), "attn_k_norm.weight": (sizes.head,)}
    for layer in range(sizes.layers):
        required |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
        optional |= {f"blk.{layer}.{name}": shape for name, shape in may.items()}
    return required, optional


def tensor_of_parameter(file: GgufFile, name: str) -> GgufTensor | None:
    """Return the tensor of a parameter of transformers, like `model.layers.0.mlp.up_proj.weight`."""
    prefix, _, rest = name.partition("model.layers.")
    if rest and not prefix:
        layer, _, part = rest.partition(".")
        module, _, kind = part.rpartition(".")
        is_gemma = file.text("general.architecture") == "gemma3"
        own = (_MODULES | _GEMMA_MODULES if is_gemma else _MODULES).get(module)
        return None if own is None else file.tensors.get(f"blk.{layer}.{own}.{kind}")
    own = _PARAMETERS.get(name)
    return None if own is None else file.tensors.get(own)


_PARAMETERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_MODULES = {
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
_GEMMA_MODULES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
