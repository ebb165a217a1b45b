"""Make the folder of a tiny random model of one task and model type."""

import inspect
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

from tests.support.models.tasks import overrides
from tests.support.models.tasks.catalogue import architectures
from tests.support.models.tasks.configs import LABELS, tiny
from tests.support.models.tasks.processors import save_feature_extractor, save_image_processor
from tests.support.models.tasks.vocabularies import PYTHON_ONLY, kind_of, save_tokenizer, token_ids
from tests.support.models.tasks.weights import draw

READS_TEXT = (
    "token-classification", "fill-mask", "zero-shot-classification", "question-answering", "table-question-answering",
    "document-question-answering", "zero-shot-image-classification", "zero-shot-object-detection",
    "zero-shot-audio-classification",
)  # fmt: skip
_LABELS = {
    "token-classification": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
    "question-answering": ("start", "end"),
    "table-question-answering": ("start", "end"),
    "document-question-answering": ("start", "end"),
    "zero-shot-classification": ("contradiction", "neutral", "entailment"),
}


def make(task: str, model_type: str, folder: Path) -> Path:
    """Write config, weights, tokenizer and processors of a tiny model; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if "image" in task or task in _PICTURES or (task, model_type) == ("document-question-answering", "layoutlmv3"):
        save_image_processor(folder, model_type, overrides.processor(task, model_type))
    if "audio" in task:
        save_feature_extractor(folder, model_type, overrides.processor(task, model_type))
    model = build(task, model_type)
    model.save_pretrained(folder)
    if task in READS_TEXT:
        save_tokenizer(
            folder,
            model_type,
            token_types=_token_types(model),
            around=_stands_around(model.config),
            boxes=task == "document-question-answering",
        )
    return folder


_PICTURES = (
    "object-detection", "depth-estimation", "zero-shot-object-detection", "mask-generation", "keypoint-matching",
    "video-classification",
)  # fmt: skip


def build(task: str, model_type: str) -> Any:
    """Return the model in eval mode, its weights drawn from a seed."""
    ids = PYTHON_ONLY[model_type][1] if model_type in PYTHON_ONLY else token_ids(kind_of(model_type))
    config = tiny(model_type, overrides.config(task, model_type), _LABELS.get(task, LABELS), **ids)
    torch.manual_seed(5)
    model = getattr(transformers, architectures(task)[model_type])(config)
    draw(model)
    return model.eval()


def _token_types(model: Any) -> bool:
    config = model.config.get_text_config()
    return "token_type_ids" in inspect.signature(model.forward).parameters and getattr(config, "type_vocab_size", 2) > 1


def _stands_around(config: Any) -> bool:
    """Say whether special tokens stand around a text: not in families that only continue texts."""
    only_continues = config.model_type in CAUSAL and config.model_type not in MASKED
    return config.is_encoder_decoder or not only_continues
