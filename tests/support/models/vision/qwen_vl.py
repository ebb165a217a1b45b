"""Make tiny models of the Qwen-VL family: positions of three axes, towers of patches that are merged."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, Qwen2VLImageProcessorPil, VideoLlama3ImageProcessorPil, WhisperFeatureExtractor

from tests.support.models.vision.saving import Parts, write
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = chat_template("<|vision_start|><|image_pad|><|vision_end|>")


def token_ids(tokenizer: Any) -> dict[str, int]:
    """Return the ids that a config names."""
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in zip(names, TOKENS, strict=True)}


def text_config(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    """Return the sizes of a decoder."""
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    return sizes | changes


VIDEOS = {
    "patch_size": 8, "temporal_patch_size": 2, "merge_size": 2,
    "size": {"shortest_edge": 256, "longest_edge": 4096},
}  # fmt: skip


def images(patch: int = 8, **changes: Any) -> Any:
    """Return a processor of images with patches of this many pixels."""
    settings: dict[str, Any] = {
        "patch_size": patch, "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 4 * patch * patch, "longest_edge": 4096},
    }  # fmt: skip
    return Qwen2VLImageProcessorPil(**(settings | changes))


def tower(depth: int = 2, **changes: Any) -> dict[str, Any]:
    """Return the sizes of a tower with patches of 8 pixels."""
    sizes: dict[str, Any] = {
        "depth": depth, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8,
        "out_hidden_size": 64,
    }  # fmt: skip
    return sizes | changes


def interleaved(sections: list[int], **changes: Any) -> dict[str, Any]:
    """Return settings of positions whose three axes take turns."""
    settings = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections, "mrope_interleaved": True}
    return settings | changes


def _write(
    folder: Path, model_type: str, vision: dict[str, Any], processor: str = "Qwen3VLProcessor", **text: Any
) -> None:
    """Write a model of this type. `text`: changes of its decoder."""
    tokenizer = make_tokenizer(TOKENS)
    config = AutoConfig.for_model(
        model_type, text_config=text_config(tokenizer, **text), vision_config=vision, **token_ids(tokenizer)
    )
    videos = processor.replace("Processor", "VideoProcessor").replace("Qwen2_5_", "Qwen2")
    write(folder, config, Parts(processor, images(), tokenizer, TEMPLATE, videos=videos, video_settings=VIDEOS))


def make_qwen2_vl(folder: Path) -> None:
    """Write a model whose positions have three axes."""
    vision = {"depth": 3, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2, "patch_size": 8}
    _write(folder, "qwen2_vl", vision, "Qwen2VLProcessor")


def make_qwen2_5_vl(folder: Path) -> None:
    """Write a model whose tower has windows, and a layer with all patches."""
    vision = tower(3, window_size=32, fullatt_block_indexes=[1])
    _write(folder, "qwen2_5_vl", vision, "Qwen2_5_VLProcessor")


def make_qwen3_vl(folder: Path) -> None:
    """Write a model with layers of the decoder that add features of early layers of the tower."""
    vision = tower(3, num_position_embeddings=64, deepstack_visual_indexes=[0, 1])
    _write(folder, "qwen3_vl", vision, head_dim=16, rope_parameters=interleaved([4, 2, 2]))


EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def make_qwen3_vl_moe(folder: Path) -> None:
    """Write a model with experts in each layer but the last."""
    vision = tower(3, num_position_embeddings=64, deepstack_visual_indexes=[0, 1])
    text: dict[str, Any] = {"head_dim": 16, "rope_parameters": interleaved([4, 2, 2]), "tie_word_embeddings": False}
    _write(folder, "qwen3_vl_moe", vision, mlp_only_layers=[2], **text, **EXPERTS)


LINEAR: dict[str, Any] = {
    "head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "rope_parameters": interleaved([2, 1, 1], partial_rotary_factor=0.5),
}  # fmt: skip
"""Layers with a state of one size beside layers with full attention."""


def make_qwen3_5(folder: Path) -> None:
    """Write a model with layers of linear attention."""
    _write(folder, "qwen3_5", tower(num_position_embeddings=64), **LINEAR)


def make_qwen3_5_moe(folder: Path) -> None:
    """Write a model with layers of linear attention and experts."""
    text = LINEAR | EXPERTS | {"shared_expert_intermediate_size": 32}
    _write(folder, "qwen3_5_moe", tower(num_position_embeddings=64), **text)


def make_qwen4_exp(folder: Path) -> None:
    """Write a model with several residual streams, embeddings of pairs of tokens, and an index of blocks of tokens."""
    indexer = {"n_heads": 2, "kv_heads": 1, "head_dim": 16, "budget": 32, "compress_ratio": 4}
    text: dict[str, Any] = LINEAR | EXPERTS | {
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
        "shared_expert_intermediate_size": 32, "hc_count": 2, "hc_lowrank": 8, "ple_layer_ids": [1],
        "ple_embed_dim": 32, "ngram_size": 2, "heads_per_ngram": 2, "ngram_vocab_size_base": 100,
        "split_ngram_parts": 2, "make_ngram_vocab_size_divisible_by": 8,
        **{f"indexer_{name}": value for name, value in indexer.items()},
    }  # fmt: skip
    _write(folder, "qwen4_exp", tower(num_position_embeddings=64), **text)


def make_lfm3_vl(folder: Path) -> None:
    """Write a model with convolutions, windows and full attention, in the tower and the decoder."""
    tokenizer = make_tokenizer(TOKENS)
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "patch_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 1, "layer_types": ["conv", "full_attention", "conv"],
    }  # fmt: skip
    kinds = {"layer_types": ["conv", "sliding_attention", "full_attention"], "sliding_window": 12, "conv_L_cache": 3}
    text = text_config(tokenizer, head_dim=16, **kinds)
    del text["rope_parameters"]
    config = AutoConfig.for_model(
        "lfm3_vl", text_config=text | {"model_type": "lfm3", "tie_word_embeddings": False}, vision_config=vision,
        projector_hidden_size=64, tie_word_embeddings=False, **token_ids(tokenizer),
    )  # fmt: skip
    write(
        folder,
        config,
        Parts("Lfm3VlProcessor", images(), tokenizer, TEMPLATE, videos="Qwen3VLVideoProcessor", video_settings=VIDEOS),
    )


OMNI_NAMES = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
}  # fmt: skip
SOUNDS: dict[str, Any] = {
    "num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32,
    "output_dim": 64, "max_source_positions": 100, "n_window": 10,
}  # fmt: skip


def _write_omni(folder: Path, model_type: str, processor: str, vision: dict[str, Any], **changes: Any) -> None:
    """Write the part of a model that reads texts, images and sounds. `changes`: of its decoder and `audio`."""
    tokenizer = make_tokenizer(tuple(OMNI_NAMES.values()), names=OMNI_NAMES)
    sounds = SOUNDS | changes.pop("audio", {})
    suffix = "index" if model_type.startswith("qwen2") else "id"
    ids = {f"{kind}_token_{suffix}": number for number, kind in enumerate(("image", "video", "audio"), start=4)}
    config = AutoConfig.for_model(
        model_type, text_config=text_config(tokenizer, **changes), vision_config=vision, audio_config=sounds,
        vision_start_token_id=7, audio_start_token_id=9, user_token_id=len(tokenizer) - 1, **ids,
    )  # fmt: skip
    features = WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    members = {"feature_extractor": features}
    write(
        folder, config,
        Parts(processor, images(), tokenizer, TEMPLATE, videos="Qwen2VLVideoProcessor", video_settings=VIDEOS,
              members=members),
    )  # fmt: skip


def make_qwen2_5_omni_thinker(folder: Path) -> None:
    """Write a model with the tower of Qwen2.5-VL and one for sounds."""
    vision = tower(3, window_size=32, fullatt_block_indexes=[1])
    _write_omni(folder, "qwen2_5_omni_thinker", "Qwen2_5OmniProcessor", vision, tie_word_embeddings=False)


def make_qwen3_omni_moe_thinker(folder: Path) -> None:
    """Write a model with the tower of Qwen3-VL, one for sounds, and experts."""
    vision = tower(3, num_position_embeddings=64, deepstack_visual_indexes=[0, 1])
    sounds = {"n_window_infer": 20, "downsample_hidden_size": 16}
    text = {"rope_parameters": interleaved([4, 2, 2]), "head_dim": 16, "audio": sounds}
    _write_omni(folder, "qwen3_omni_moe_thinker", "Qwen3OmniMoeProcessor", vision, **text, **EXPERTS)


def make_video_llama_3(folder: Path) -> None:
    """Write a model with a tower for patches of any number, and positions of one axis in the decoder."""
    tokenizer = make_tokenizer(TOKENS)
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8,
    }  # fmt: skip
    text = text_config(tokenizer, model_type="qwen2", tie_word_embeddings=False)
    del text["rope_parameters"]
    config = AutoConfig.for_model(
        "video_llama_3", text_config=text, vision_config=vision, image_token_id=6, video_token_id=7
    )
    settings: dict[str, Any] = {"patch_size": 8, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 4096}}
    pictures = VideoLlama3ImageProcessorPil(**settings)
    template = chat_template("<|image_pad|>")
    parts = Parts("VideoLlama3Processor", pictures, tokenizer, template, videos="VideoLlama3VideoProcessor")
    write(folder, config, parts)


MAKERS = {
    "qwen2_vl": make_qwen2_vl,
    "qwen2_5_vl": make_qwen2_5_vl,
    "qwen3_vl": make_qwen3_vl,
    "qwen3_vl_moe": make_qwen3_vl_moe,
    "qwen3_5": make_qwen3_5,
    "qwen3_5_moe": make_qwen3_5_moe,
    "qwen4_exp": make_qwen4_exp,
    "lfm3_vl": make_lfm3_vl,
    "qwen2_5_omni_thinker": make_qwen2_5_omni_thinker,
    "qwen3_omni_moe_thinker": make_qwen3_omni_moe_thinker,
    "video_llama_3": make_video_llama_3,
}
