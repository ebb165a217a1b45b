"""Write the folder of a tiny model that reads images, and load its processor where torchvision is absent."""

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from torch import nn
from transformers import AutoModelForImageTextToText, AutoProcessor, AutoTokenizer, GenerationConfig
from transformers import processing_utils as processing
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import is_torchvision_available

from tests.support.models.vision.tokenizers import BOS, EOS, PAD


class VideosUnread(BaseImageProcessor):  # type: ignore[misc]  # untyped
    """Stands for a processor of videos, all of which need torchvision."""

    model_input_names = ("pixel_values",)
    temporal_patch_size = 2
    merge_size = 2
    fps = 1
    num_frames = 4

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> "VideosUnread":
        """Return one: it has no settings."""
        return cls()


@contextmanager
def without_torchvision() -> Iterator[None]:
    """Let transformers build processors whose part for videos is absent."""
    if is_torchvision_available():
        yield
        return
    pixtral = importlib.import_module("transformers.models.pixtral")
    smolvlm = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    videos = importlib.import_module("transformers.models.auto.video_processing_auto")
    bases = processing.MODALITY_TO_BASE_CLASS_MAPPING
    with (
        mock.patch.dict(bases, {"video_processor": "BaseImageProcessor"}),
        mock.patch.object(videos, "AutoVideoProcessor", VideosUnread),
        mock.patch.object(smolvlm, "num2words", smolvlm.num2words or str),
        mock.patch.object(pixtral, "PixtralProcessor", _pixtral_processor()),
        mock.patch.object(transformers, "PixtralProcessor", _pixtral_processor()),
    ):
        yield


@cache
def _pixtral_processor() -> Any:
    """Return the class, whose module reads one function from a module that needs torchvision."""
    name = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules[name] = importlib.import_module("transformers.models.pixtral.image_processing_pil_pixtral")
    try:
        return importlib.import_module("transformers.models.pixtral.processing_pixtral").PixtralProcessor
    finally:
        del sys.modules[name]


def load_processor(folder: Path) -> Any:
    """Return the processor of a folder; without torchvision, one that reads no videos."""
    with without_torchvision():
        return AutoProcessor.from_pretrained(folder)


@dataclass(frozen=True)
class Drawing:
    """How random weights are drawn, where those of other parameters would give all images one answer."""

    embedding: float = 0.5
    """Standard deviation of embeddings."""
    means: Sequence[tuple[str, float]] = ()
    """Parts of names of parameters, with the mean of their values: such as gates that begin at zero."""
    spreads: Sequence[tuple[str, float]] = ()
    """Parts of names of parameters, with the standard deviation of their values: such as learned queries."""


@dataclass(frozen=True)
class Parts:
    """Tokenizer and processor of a model, beside its weights."""

    processor: str
    """Name of its class in transformers."""
    images: Any
    """The processor of images."""
    tokenizer: Any
    template: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the processor."""
    videos: str | None = None
    """Name of the class of its processor of videos, where the processor has one."""
    video_settings: dict[str, Any] = field(default_factory=dict)
    members: dict[str, Any] = field(default_factory=dict)
    """Further parts of the processor, such as one that reads sounds."""


def save_processor(folder: Path, parts: Parts) -> None:
    """Write tokenizer, processor and chat template, after the model."""
    members: dict[str, Any] = {"image_processor": parts.images, "tokenizer": parts.tokenizer, **parts.members}
    if parts.videos:
        members["video_processor"] = VideosUnread()
    with (
        without_torchvision(),
        mock.patch.dict(processing.MODALITY_TO_BASE_CLASS_MAPPING, {"video_processor": "BaseImageProcessor"}),
    ):
        kind = getattr(transformers, parts.processor)
        kind(**members, **parts.settings).save_pretrained(folder)
    # Some processors take no template; it lies beside them.
    (folder / "chat_template.jinja").write_text(parts.template, encoding="utf-8")
    if parts.videos:
        path = folder / "processor_config.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["video_processor"] = {"video_processor_type": parts.videos, **parts.video_settings}
        path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if (folder / "config.json").is_file():
        # Some types have a class with rules of its own; tokenizer.json gets the same rules.
        AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def save_model(folder: Path, config: Any, tokenizer: Any, drawing: Drawing = Drawing()) -> None:
    """Write a model with random weights, the same at each call."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval().float()
    draw(model, drawing)
    _quieten(model, tokenizer)
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _ENDS.items()}
    model.generation_config = GenerationConfig(do_sample=False, **ids)
    model.save_pretrained(folder)


def write(folder: Path, config: Any, parts: Parts, drawing: Drawing = Drawing()) -> None:
    """Write a whole folder."""
    save_model(folder, config, parts.tokenizer, drawing)
    save_processor(folder, parts)


_ENDS = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}


def draw(model: Any, drawing: Drawing = Drawing()) -> None:
    """Draw weights so that a layer keeps the size of its input, and logits differ between inputs."""
    torch.manual_seed(0)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            mean = next((value for part, value in drawing.means if part in name), None)
            spread = next((value for part, value in drawing.spreads if part in name), None)
            if mean is not None:
                parameter.normal_(mean, 0.2 * abs(mean))
            elif spread is not None:
                parameter.normal_(std=spread)
            elif parameter.ndim < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif id(parameter) in embeddings:
                parameter.normal_(std=drawing.embedding)
            else:
                inputs = parameter.shape[-1] if parameter.ndim == 3 else parameter[0].numel()
                parameter.normal_(std=1.2 / max(inputs, 1) ** 0.5)


def _quieten(model: Any, tokenizer: Any) -> None:
    """Give special tokens the logit 0, so that a greedy text has none."""
    head = model.get_output_embeddings()
    special = torch.tensor(sorted(tokenizer.added_tokens_decoder))
    with torch.no_grad():
        head.weight[special[special < len(head.weight)]] = 0
        # Rows beyond the vocabulary of the tokenizer.
        head.weight[len(tokenizer) :] = 0
        if (added := getattr(head, "additional_fc", None)) is not None:  # Idefics has special tokens apart
            added.weight.zero_()
