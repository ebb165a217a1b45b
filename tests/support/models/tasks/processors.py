"""Make the image processors and feature extractors of a family, for small pictures and short sounds."""

import inspect
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from tests.support.models.tasks.configs import SIDE

_BY_NAME = {"d_fine": "RTDetr", "dab-detr": "ConditionalDetr", "rt_detr_v2": "RTDetr"}
"""Families whose published folders name the processor, which the mapping does not."""
_EXTRACTOR_BY_NAME = {"wav2vec2-bert": "SeamlessM4TFeatureExtractor"}
"""The same for sounds, where the mapping names one that the model cannot read."""
_LONGEST = SIDE + 32


class NeedsTorchvisionError(Exception):
    """The only image processor of a family is written for torchvision."""


def save_image_processor(folder: Path, model_type: str, changes: dict[str, Any]) -> Any:
    """Write preprocessor_config.json; `changes` over the small sizes. NeedsTorchvisionError where it has no other."""
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type) or {}
    name = names.get("pil") or (f"{_BY_NAME[model_type]}ImageProcessorPil" if model_type in _BY_NAME else None)
    if name is None:
        raise NeedsTorchvisionError(f"its image processor {names.get('torchvision')} needs torchvision")
    made_class = getattr(transformers, name)
    sizes = {
        key: _small_size(value)
        for key, value in made_class().to_dict().items()
        if key in ("size", "crop_size", "pad_size", "mask_size", "mask_pad_size") and value
    }
    made = made_class(**sizes | changes)
    made.save_pretrained(folder)
    if model_type in ("sam", "sam_hq"):
        getattr(transformers, PROCESSOR_MAPPING_NAMES[model_type])(image_processor=made).save_pretrained(folder)
    return made


def _small_size(size: Any) -> Any:
    if isinstance(size, dict):
        return {key: _LONGEST if key == "longest_edge" and len(size) > 1 else SIDE for key in size}
    return SIDE


def save_feature_extractor(folder: Path, model_type: str, changes: dict[str, Any]) -> Any:
    """Write preprocessor_config.json of a model that reads sounds."""
    name = _EXTRACTOR_BY_NAME.get(model_type) or FEATURE_EXTRACTOR_MAPPING_NAMES[model_type]
    made_class = getattr(transformers, name)
    known = inspect.signature(made_class).parameters
    made = made_class(**{key: value for key, value in changes.items() if key in known})
    made.save_pretrained(folder)
    return made
