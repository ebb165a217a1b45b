"""Tiny classifiers of images of every family of transformers, each with an image processor of its own beside it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

SIDE = 32
LABELS = ("ant", "bee", "cat")

_SQUARE: dict[str, Any] = {"size": {"height": SIDE, "width": SIDE}}
_CROPPED: dict[str, Any] = {"size": {"shortest_edge": 36}, "crop_size": {"height": SIDE, "width": SIDE}}
_LAYERS: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": SIDE,
    "patch_size": 8,
}  # fmt: skip
_VISION = {key: value for key, value in _LAYERS.items() if key != "image_size"} | {"num_patches": 16}
_STAGES: dict[str, Any] = {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "image_size": SIDE}
_CONVOLUTIONS: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
_TOWERS: dict[str, Any] = {"vision_config": _LAYERS, "text_config": _LAYERS | {"vocab_size": 8}}
_PYRAMID: dict[str, Any] = {
    "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "image_size": SIDE,
    "mlp_ratios": [2, 2, 2, 2],
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "beit": _LAYERS,
    "bit": _CONVOLUTIONS | {"num_groups": 4},
    "clip": _TOWERS,
    "convnext": _CONVOLUTIONS | {"num_stages": 2},
    "convnextv2": _CONVOLUTIONS | {"num_stages": 2},
    "cvt": {"embed_dim": [8, 8, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
    "data2vec-vision": _LAYERS,
    "deit": _LAYERS,
    "dinov2": _LAYERS | {"mlp_ratio": 2},
    "dinov2_with_registers": _LAYERS | {"mlp_ratio": 2},
    "donut-swin": _STAGES | {"window_size": 4},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "image_size": SIDE, "hidden_dim": 320},
    "focalnet": {
        "embed_dim": 8, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3], "image_size": SIDE,
        "hidden_sizes": [8, 16],
    },
    "hgnet_v2": {
        "depths": [1, 1], "hidden_sizes": [16, 16], "stem_channels": [3, 8, 8], "stage_in_channels": [8, 16],
        "stage_mid_channels": [8, 8], "stage_out_channels": [16, 16], "stage_num_blocks": [1, 1],
        "stage_downsample": [False, True], "stage_downsample_strides": [2, 2], "stage_light_block": [False, True],
        "stage_kernel_size": [3, 3], "stage_numb_of_layers": [2, 2],
    },
    "hiera": {
        "image_size": [SIDE, SIDE], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "patch_size": [7, 7],
        "patch_stride": [4, 4], "masked_unit_size": [4, 4], "num_query_pool": 1, "query_stride": [2, 2],
        "embed_dim_multiplier": 2.0,
    },
    "ijepa": _LAYERS,
    "imagegpt": {"vocab_size": 17, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "levit": {
        "image_size": SIDE, "hidden_sizes": [16, 16, 16], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
        "key_dim": [8, 8, 8],
    },
    "metaclip_2": _TOWERS,
    "mobilenet_v1": {"depth_multiplier": 0.25, "min_depth": 4},
    "mobilenet_v2": {"depth_multiplier": 0.25, "min_depth": 4},
    "mobilevit": {
        "image_size": SIDE, "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 16],
        "num_attention_heads": 2,
    },
    "mobilevitv2": {"image_size": 64, "width_multiplier": 0.25},
    "perceiver": {
        "num_latents": 4, "d_latents": 16, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 1,
        "num_self_attention_heads": 1, "num_cross_attention_heads": 1, "image_size": SIDE,
    },
    "poolformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "pp_lcnet": {"scale": 0.25},
    "pvt": _PYRAMID | {"sequence_reduction_ratios": [8, 4, 2, 1]},
    "pvt_v2": _PYRAMID | {"sr_ratios": [8, 4, 2, 1]},
    "regnet": _CONVOLUTIONS | {"groups_width": 4},
    "resnet": _CONVOLUTIONS,
    "segformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
    "siglip": _TOWERS,
    "siglip2": {
        "vision_config": _VISION,
        "text_config": _LAYERS | {"vocab_size": 8, "projection_size": 24},
    },
    "swiftformer": {"embed_dims": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "image_size": SIDE},
    "swin": _STAGES | {"window_size": 4},
    "swinv2": _STAGES | {"window_size": 4},
    "textnet": {
        "stem_out_channels": 8, "hidden_sizes": [8, 8, 8, 8, 8], "image_size": SIDE,
        "conv_layer_kernel_sizes": [[[3, 3]]] * 4, "conv_layer_strides": [[1]] + [[2]] * 3,
    },
    "vit": _LAYERS,
    "vit_msn": _LAYERS,
}  # fmt: skip
EMBEDDER_CONFIGS: dict[str, dict[str, Any]] = {
    "aimv2_vision_model": _LAYERS,
    "clip_vision_model": _LAYERS,
    "dinov3_convnext": {"hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1]},
    "dinov3_vit": _LAYERS | {"hidden_size": 32},
    "mlcd_vision_model": _LAYERS | {"hidden_size": 32, "num_key_value_groups": 1},
    "pixio": _LAYERS,
    "siglip2_vision_model": _VISION,
    "siglip_vision_model": _LAYERS,
}
"""Of families that embed images, and have no classifier."""
_PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "beit": ("Beit", _SQUARE | {"do_center_crop": False}),
    "bit": ("Bit", _CROPPED),
    "clip": ("CLIP", _CROPPED),
    "convnext": ("ConvNext", {"size": {"shortest_edge": SIDE}}),
    "data2vec-vision": ("Beit", _CROPPED | {"size": {"height": 36, "width": 36}, "do_center_crop": True}),
    "donut-swin": ("Donut", _SQUARE),
    "efficientnet": ("EfficientNet", _SQUARE),
    "imagegpt": (
        "ImageGPT",
        {
            "size": {"height": 8, "width": 8},
            "clusters": [[(3 * i % 16) / 8 - 1, i / 8 - 1, (7 * i % 16) / 8 - 1] for i in range(16)],
        },
    ),
    "levit": ("Levit", {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}),
    "mobilevit": ("MobileViT", _CROPPED),
    "perceiver": ("Perceiver", _SQUARE | {"crop_size": {"height": 36, "width": 36}}),
    "poolformer": ("PoolFormer", {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}),
    "pvt": ("Pvt", _SQUARE),
    "segformer": ("Segformer", _SQUARE),
    "mobilevitv2": ("MobileViT", {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}}),
    "siglip": ("Siglip", _SQUARE),
    "siglip2": ("Siglip2", {"patch_size": 8, "max_num_patches": 16}),
    "textnet": ("TextNet", _CROPPED | {"size": {"shortest_edge": 64}, "do_center_crop": True}),
    "vit": ("ViT", _SQUARE),
}
_PROCESSOR_OF = {
    "convnextv2": "convnext", "cvt": "convnext", "dinov2": "bit", "dinov2_with_registers": "bit", "focalnet": "bit",
    "hiera": "bit", "metaclip_2": "clip", "pvt_v2": "pvt", "regnet": "convnext",
    "resnet": "convnext", "siglip2_vision_model": "siglip2",
}  # fmt: skip


def classes_of(family: str) -> tuple[str, ...]:
    """Return the names of the classes that classify images."""
    named = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES[family]
    return (named,) if isinstance(named, str) else tuple(named)


def save_classifier(folder: Path, family: str, class_name: str = "") -> Any:
    """Save a classifier with its image processor; return it in eval mode."""
    labels = dict(enumerate(LABELS))
    options = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
    config = CONFIG_MAPPING[family](**CONFIGS[family], **options, num_labels=len(labels))
    config.id2label, config.label2id = options["id2label"], options["label2id"]
    torch.manual_seed(5)
    model = getattr(transformers, class_name or classes_of(family)[0])(config)
    processor = processor_of(family)
    inputs = processor(images=[*noise(8)], return_tensors="pt")
    adjust(model, inputs)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


def save_embedder(folder: Path, family: str) -> Any:
    """Save a model without a head, with its image processor; return it in eval mode."""
    torch.manual_seed(5)
    config = CONFIG_MAPPING[family](**(CONFIGS | EMBEDDER_CONFIGS)[family])
    model = transformers.AutoModel.from_config(config)
    processor = processor_of(family)
    adjust(model, processor(images=[*noise(8)], return_tensors="pt"))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


def processor_of(family: str) -> Any:
    """Return the image processor of a family: that of its own, or one that published folders of it have."""
    name, settings = _PROCESSORS[_PROCESSOR_OF.get(family, family if family in _PROCESSORS else "vit")]
    return getattr(transformers, f"{name}ImageProcessorPil")(**settings)


def noise(images: int) -> Iterator[Image.Image]:
    """Yield images of coarse random colours. Processors that crop keep whole pixels of all of them.

    Our processor resizes the cropped part alone. Its pixels are exactly those of transformers if the sides are
    multiples of the edge, 36 or 72 pixels, and the image is not tall; else they differ by one level.
    """
    random = np.random.default_rng(1)
    for number in range(images):
        size = [(144, 72), (72, 72), (216, 144), (216, 72)][number % 4]
        coarse = Image.fromarray(random.integers(0, 256, (6, 5, 3), np.uint8))
        yield coarse.resize(size, Image.Resampling.BICUBIC)


def adjust(model: torch.nn.Module, inputs: Any) -> None:
    """Give a model weights whose logits differ between images by about one. Sets it to eval mode."""
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm1d)]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and weight.numel() and "position" not in name and "bias_table" not in name:
                weight.normal_(std=1.2 / weight[0].numel() ** 0.5)
        model.eval()
        for norm in norms:
            norm.momentum = None
            torch.nn.init.ones_(norm.weight)
            norm.train()
        model(**inputs)
        model.eval()
        heads = [
            module
            for module in model.modules()
            if isinstance(module, torch.nn.Linear) and module.out_features == len(LABELS)
        ]
        for head in heads:
            found: list[torch.Tensor] = []
            hook = head.register_forward_hook(lambda _, __, output, found=found: found.append(output))
            model(**inputs)
            hook.remove()
            logits = found[0].reshape(-1, len(LABELS))
            head.weight /= logits.std(0).clamp(min=1e-3)[:, None]
            if head.bias is not None:
                head.bias.copy_((head.bias - logits.mean(0)) / logits.std(0).clamp(min=1e-3))
