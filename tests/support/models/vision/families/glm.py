"""Make tiny GLM models that read images: patches of any grid, positions of three axes."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save, template
from tests.support.models.vision.tokenizers_b import make_tokenizer
from tests.support.models.vision.videos_b import make_processor

_NAMES = {
    "image_start": "<|begin_of_image|>",
    "image_end": "<|end_of_image|>",
    "video_start": "<|begin_of_video|>",
    "video_end": "<|end_of_video|>",
    "image": "<|image|>",
    "video": "<|video|>",
}
_IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
_VISION: dict[str, Any] = {
    "depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 32, "patch_size": 8, "out_hidden_size": 64,
    "intermediate_size": 48,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2],
    },
}  # fmt: skip
_EXPERTS = {
    "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
}  # fmt: skip


def make_glm4v(folder: Path) -> None:
    """Write a GLM-4V model."""
    _make(folder, "Glm4v")


def make_glm46v(folder: Path) -> None:
    """Write a GLM-4.6V model."""
    _make(folder, "Glm46V")


def make_glm4v_moe(folder: Path) -> None:
    """Write a GLM-4.5V model: a dense layer, then one of experts beside a shared one."""
    _make(folder, "Glm4vMoe", "Glm4v", "Glm4v", **_EXPERTS)


def make_glm_ocr(folder: Path) -> None:
    """Write a GLM-OCR model: four norms a layer."""
    _make(folder, "GlmOcr", "Glm46V", "Glm46V")


def make_glmga(folder: Path) -> None:
    """Write a GLM-GA model: the network of GLM-4.6V behind its own image processor."""
    _make(folder, "Glmga", "Glm46V", "Glmga")


def _make(folder: Path, name: str, processor: str = "", images: str = "", **text: Any) -> None:
    """Write a model. `processor`, `images`: the prefixes of these classes, where not that of the model."""
    tokenizer = make_tokenizer("[gMASK]", "<sop>", *_NAMES.values())
    ids = {f"{key}_token_id": tokenizer.convert_tokens_to_ids(token) for key, token in _NAMES.items()}
    config = getattr(transformers, f"{name}Config")(
        vision_config={**_VISION, **({"projection_intermediate_size": 48} if name == "Glm5Next" else {})},
        text_config={"vocab_size": len(tokenizer), **_TEXT, **text},
        **ids,
    )
    made = getattr(transformers, f"{images or name}ImageProcessorPil")(
        size={"shortest_edge": 2 * 16 * 16, "longest_edge": 2 * 80 * 80}, patch_size=8, merge_size=2
    )
    whole = make_processor(f"{processor or name}Processor", made, tokenizer, videos=f"{images or name}VideoProcessor")
    save(folder, config, whole, template(_IMAGE, "[gMASK]<sop>"))


def make_glm5_next(folder: Path) -> None:
    """Write a GLM-5 model: linear attention, attention to indexed groups of keys, mixed streams, experts."""
    text: dict[str, Any] = {
        "rope_parameters": None, "num_key_value_heads": 4, "num_hidden_layers": 4, "kv_lora_rank": 32,
        "q_lora_rank": 32, "v_head_dim": 16,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 0, "index_topk": 16, "index_kpool": 4, "index_head_dim": 16,
        "index_n_heads": 2, "linear_head_dim": 16, "linear_num_heads": 4, "hc_mult": 2, "hc_sinkhorn_iters": 4,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
        **{key: value for key, value in _EXPERTS.items() if key != "first_k_dense_replace"},
    }  # fmt: skip
    _make(folder, "Glm5Next", **text)
