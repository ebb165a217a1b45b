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


_GEMMA_NAMES = _NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
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
    content = json.loads((folder / "config.json").read_text())
    original = content.get("text_config", content)
    config = original | changes
    writer = gguf.GGUFWriter(file, _ARCHITECTURES.get(config["model_type"], config["model_type"]))
    _write_sizes(writer, config)
    _write_tokenizer(writer, folder, config)
    for whole_name, array in load_file(folder / "model.safetensors").items():
        name = _name_in_text(whole_name)
        if name is None or (name == "lm_head.weight" and content.get("tie_word_embeddings")):
            continue
        is_gemma = config["model_type"] == "gemma3_text"
        values = array + 1 if is_gemma and name.endswith("norm.weight") else _reordered(name, array, original)
        _write_tensor(writer, _gguf_name(name, _GEMMA_NAMES if is_gemma else _NAMES), values, kind)
    if more is not None:
        more(writer)
    return _written(writer, file)


def write_mmproj(
    folder: Path, file: Path, kind: Kind = Kind.F16, more: Callable[[gguf.GGUFWriter], None] | None = None
) -> Path:
    """Convert the vision part of a Hugging Face folder. `kind`: of its matrices. `more`: as of write_gguf."""
    content = json.loads((folder / "config.json").read_text())
    images = json.loads((folder / "processor_config.json").read_text())["image_processor"]
    vision = _vision_sizes(content)
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    own_size = vision.get("projection_dim") if content["model_type"] == "llava" else None
    writer.add_vision_projection_dim(own_size or content["text_config"]["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_image_mean(images["image_mean"])
    writer.add_vision_image_std(images["image_std"])
    _MMPROJ_KEYS[content["model_type"]](writer, content, images)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    for name, array in load_file(folder / "model.safetensors").items():
        if _name_in_text(name) is None:
            for part, values in _parts(_published(name), array, content):
                own = (
                    part if part.startswith(("v.", "mm.")) else names.get_name(part, try_suffixes=(".weight", ".bias"))
                )
                assert own is not None, name
                is_patch = "patch_embd" in own or "position_embd" in own
                _write_tensor(writer, own, values, Kind.F32 if is_patch or values.shape[-1] % 32 else kind)
    if more is not None:
        more(writer)
    return _written(writer, file)


def _write_idefics3(writer: gguf.GGUFWriter, content: Mapping[str, Any], images: Mapping[str, Any]) -> None:
    writer.add_clip_projector_type(gguf.VisionProjectorType.IDEFICS3)
    writer.add_vision_attention_layernorm_eps(content["vision_config"].get("layer_norm_eps", 1e-5))
    writer.add_vision_projector_scale_factor(content["scale_factor"])
    writer.add_vision_use_gelu(True)
    writer.add_uint32("clip.vision.preproc_image_size", images["size"]["longest_edge"])


def _write_qwen2_vl(writer: gguf.GGUFWriter, content: Mapping[str, Any], images: Mapping[str, Any]) -> None:
    vision = content["vision_config"]
    if content["model_type"] == "qwen2_vl":
        writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN2VL)
    else:
        writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN25VL)
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)
        # Of the tiny model: llama.cpp has the 112 of all others.
        writer.add_uint32("clip.vision.window_size", vision["window_size"])
    writer.add_vision_attention_layernorm_eps(content.get("rms_norm_eps", 1e-6))
    _write_pixels(writer, images)


def _write_gemma3(writer: gguf.GGUFWriter, content: Mapping[str, Any], images: Mapping[str, Any]) -> None:
    vision = content["vision_config"]
    writer.add_clip_projector_type(gguf.VisionProjectorType.GEMMA3)
    writer.add_vision_attention_layernorm_eps(vision.get("layer_norm_eps", 1e-6))
    writer.add_vision_use_gelu(True)
    side = vision["image_size"] // vision["patch_size"]
    writer.add_vision_projector_scale_factor(side // int(content["mm_tokens_per_image"] ** 0.5))


def _write_qwen3_vl(writer: gguf.GGUFWriter, content: Mapping[str, Any], images: Mapping[str, Any]) -> None:
    vision = content["vision_config"]
    writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL)
    writer.add_vision_use_gelu(True)
    writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
    writer.add_vision_attention_layernorm_eps(content["text_config"]["rms_norm_eps"])
    deep = vision["deepstack_visual_indexes"]
    writer.add_vision_is_deepstack_layers([layer in deep for layer in range(vision["depth"])])
    _write_pixels(writer, images)


def _write_pixels(writer: gguf.GGUFWriter, images: Mapping[str, Any]) -> None:
    writer.add_uint32("clip.vision.image_min_pixels", images["size"]["shortest_edge"])
    writer.add_uint32("clip.vision.image_max_pixels", images["size"]["longest_edge"])


def _write_llava(writer: gguf.GGUFWriter, content: Mapping[str, Any], images: Mapping[str, Any]) -> None:
    """As the older convert_image_encoder_to_gguf.py."""
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_vision_attention_layernorm_eps(content["vision_config"]["layer_norm_eps"])
    writer.add_vision_use_gelu(content["vision_config"]["hidden_act"] == "gelu")


_MMPROJ_KEYS = {
    "llava": _write_llava,
    "qwen3_vl": _write_qwen3_vl,
    "gemma3": _write_gemma3,
    "idefics3": _write_idefics3, "smolvlm": _write_idefics3, "qwen2_vl": _write_qwen2_vl, "qwen2_5_vl": _write_qwen2_vl,
}  # fmt: skip
_ARCHITECTURES = {
    "qwen2_vl_text": "qwen2vl",
    "qwen2_5_vl_text": "qwen2vl",
    "gemma3_text": "gemma3",
    "qwen3_vl_text": "qwen3vl",
}


def _vision_sizes(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a tower by usual names."""
    vision = {"image_size": 560, **content["vision_config"]}
    if "num_position_embeddings" in vision:
        vision["image_size"] = int(vision["num_position_embeddings"] ** 0.5) * vision["patch_size"]
    if content["model_type"] == "llava":
        vision["num_hidden_layers"] -= 1
    names = {"num_heads": "num_attention_heads", "depth": "num_hidden_layers"}
    vision |= {usual: vision[name] for name, usual in names.items() if name in vision}
    if "embed_dim" in vision:
        vision |= {"intermediate_size": vision["hidden_size"], "hidden_size": vision["embed_dim"]}
    return vision


def _published(name: str) -> str:
    """Return the name of a parameter in the folders that were published, which the converter knows."""
    if "visual." in name:
        return name.removeprefix("model.")
    whole = name if "vision_tower.vision_model" in name else name.replace("vision_tower.", "vision_tower.vision_model.")
    return whole.replace("_weight", ".weight")


def _parts(name: str, array: Any, content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the tensors of a parameter, by their own names or those that the package knows."""
    if ".qkv." in name and content["model_type"] != "qwen3_vl":
        return [(name.replace("qkv", each), part) for each, part in zip("qkv", np.split(array, 3), strict=True)]
    if array.ndim == 5:
        return [("v.patch_embd.weight", array[:, :, 0]), ("v.patch_embd.weight.1", array[:, :, 1])]
    if content["model_type"] == "qwen3_vl":
        return [(_name_in_qwen3_vl(name, content["vision_config"]["deepstack_visual_indexes"]), array)]
    if content["model_type"] == "llava":
        # The last layer is not read; those that widen and narrow are exchanged.
        last = f".layers.{content['vision_config']['num_hidden_layers'] - 1}."
        if last in name or "post_layernorm" in name:
            return []
        for own, other in (("linear_1", "mm.0"), ("linear_2", "mm.2")):
            name = name.replace(f"multi_modal_projector.{own}", other)
        if ".mlp." in name:
            layer = name.partition(".layers.")[2].partition(".")[0]
            name = f"v.blk.{layer}.{'ffn_down' if 'fc1' in name else 'ffn_up'}.{name.rpartition('.')[2]}"
        return [(name, array)]
    return [(name, array + 1 if "soft_emb_norm" in name else array)]


def _name_in_qwen3_vl(name: str, deep: list[int]) -> str:
    module, _, kind = name.removeprefix("visual.").rpartition(".")
    parts = {"merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}
    if module.startswith("deepstack_merger_list."):
        index, _, part = module.removeprefix("deepstack_merger_list.").partition(".")
        return f"v.deepstack.{deep[int(index)]}.{part.removeprefix('linear_')}.{kind}"
    if module == "patch_embed.proj":
        return f"v.patch_embd.{kind}"
    return f"{parts[module]}.{kind}" if module in parts else name


def _name_in_text(name: str) -> str | None:
    """Return the name of a parameter in the model of texts within a model that sees; None for those of its vision."""
    if any(part in name for part in ("visual.", "vision_tower", "vision_model", "connector", "multi_modal_projector")):
        return None
    return name.replace("language_model.", "").replace("model.text_model.", "model.")


def _written(writer: gguf.GGUFWriter, file: Path) -> Path:
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
    rope = config["rope_parameters"]
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config["layer_types"]])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
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


def _gguf_name(name: str, names: Mapping[str, str] = _NAMES) -> str:
    module, _, kind = name.rpartition(".")
    if module.startswith("model.layers."):
        layer, _, part = module.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{names[part]}.{kind}"
    return f"{names[module]}.{kind}"


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
