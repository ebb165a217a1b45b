"""Tiny Hugging Face folders of vision models, random weights from a fixed seed, saved by transformers itself."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.models.text_files import VOCABULARY_SIZE, write_json, write_tokenizer

SIDE = 32
LABELS = ("ant", "bee", "cat")
MAX_TOKENS = 12

_TRANSFORMER: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": SIDE,
    "patch_size": 8, "initializer_range": 0.3,
}  # fmt: skip
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", _TRANSFORMER),
    "dinov2": ("Dinov2", _TRANSFORMER | {"mlp_ratio": 2}),
    "deit": ("DeiT", _TRANSFORMER),
    "resnet": ("ResNet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
    "convnext": ("ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "initializer_range": 0.3}),
    "swin": ("Swin", {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": SIDE}),
    "mobilenet_v1": ("MobileNetV1", {"depth_multiplier": 0.25, "min_depth": 4}),
    "mobilenet_v2": ("MobileNetV2", {"depth_multiplier": 0.25, "min_depth": 4}),
}
FAMILIES = tuple(_CONFIGS)
_PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"size": {"height": SIDE, "width": SIDE}},
    "ConvNext": {"size": {"shortest_edge": SIDE}, "crop_pct": 0.875},
    "Bit": {"size": {"shortest_edge": 36}, "crop_size": {"height": SIDE, "width": SIDE}},
    "CLIP": {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}},
    "Siglip": {"size": {"height": SIDE, "width": SIDE}},
}
_PROCESSOR_OF = {"resnet": "ConvNext", "convnext": "ConvNext", "dinov2": "Bit", "clip": "CLIP", "siglip": "Siglip"}


def processor_config(family: str) -> dict[str, Any]:
    """Return the content of preprocessor_config.json."""
    name = _PROCESSOR_OF.get(family, "ViT")
    return {"image_processor_type": f"{name}ImageProcessor", **_PROCESSORS[name]}


def save_image_classifier(folder: Path, family: str, labels: tuple[str, ...] = LABELS, **config: Any) -> Any:
    """Save a ForImageClassification model; return it in eval mode."""
    prefix, sizes = _CONFIGS[family]
    config = sizes | {"id2label": dict(enumerate(labels)), "label2id": {v: i for i, v in enumerate(labels)}} | config
    made = getattr(transformers, f"{prefix}Config")(**config)
    return _saved(getattr(transformers, f"{prefix}ForImageClassification")(made), folder, family)


def save_image_embedder(folder: Path, family: str, **options: Any) -> Any:
    """Save a model without a head; return it in eval mode. `options`: of its class."""
    prefix, sizes = _CONFIGS[family]
    made = getattr(transformers, f"{prefix}Config")(**sizes)
    return _saved(getattr(transformers, f"{prefix}Model")(made, **options), folder, family)


def save_two_towers(folder: Path, family: str, architecture: str = "Model") -> Any:
    """Save a CLIP or SigLIP model with its tokenizer; return it in eval mode."""
    prefix = {"clip": "CLIP", "siglip": "Siglip"}[family]
    text = {
        "vocab_size": VOCABULARY_SIZE, "max_position_embeddings": MAX_TOKENS, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 40, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0,
        "projection_size": 24,
    }  # fmt: skip
    vision = {key: value for key, value in _TRANSFORMER.items() if key != "initializer_range"}
    if architecture == "Model":
        config = getattr(transformers, f"{prefix}Config")(text_config=text, vision_config=vision, projection_dim=16)
        write_tokenizer(folder)
    else:
        config = getattr(transformers, f"{prefix}VisionConfig")(**vision, projection_dim=16)
    return _saved(getattr(transformers, prefix + architecture)(config), folder, family)


def _saved(model: Any, folder: Path, family: str) -> Any:
    torch.manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Weights of usual size would make the outputs of all images equal.
            if weight.dim() > 1 and "position" not in name:
                weight.normal_(std=1.2 / weight[0].numel() ** 0.5)
        for name, statistic in model.named_buffers():
            if name.endswith("running_var"):
                statistic.uniform_(0.1, 0.3)
    model.eval().save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", processor_config(family))
    return model
