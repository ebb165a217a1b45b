"""Load vision models from a folder: classifiers, embeddings, and CLIP and SigLIP with their towers of texts."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from frameworks.errors import InvalidModel
from frameworks.files import read_json
from frameworks.images.processor import ImageProcessor
from frameworks.images.spec import ImageSpec
from frameworks.pytorch.encoder_loading import EncoderLoading, ModelFiles
from frameworks.pytorch.image_encoder import PIXELS, ImageModel, Rows, TextTower, pooled
from frameworks.pytorch.image_folders import ImageFolder
from frameworks.pytorch.loader import DTYPE_NAMES, load_vision_model
from frameworks.pytorch.quantize import held_bytes
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import ModelSpec, TensorType, TextSpec, ValueSpec

_LOGITS, _EMBEDDINGS = "logits", "embeddings"
_SIGLIP = "siglip"


def load_image_models(files: ModelFiles, images: ImageFolder, loading: EncoderLoading) -> list[ImageModel]:
    """Load as many instances as the entry says, on one set of weights. Raises InvalidModel, OutOfMemory."""
    if files.entry.dtype not in (None, "f32", "f16", "bf16"):
        raise InvalidModel(
            f'{files.folder}: dtype: expected "f32", "f16" or "bf16" for a model of images, got "{files.entry.dtype}"; '
            "remove it"
        )
    preparation = images.preparation()
    assert preparation.output_size is not None
    processor = ImageProcessor(preparation, preparation.output_size)
    model, lacks_pooler = load_vision_model(
        files.folder,
        images.kind == "classify",
        images.architecture.endswith("VisionModelWithProjection"),
        loading.dtype,
        loading.device,
        loading.enable_memory_mapping,
    )
    _arrange_convolutions(model)
    rows = _rows_of(model, images.kind, lacks_pooler)
    texts = _text_tower(files, model) if images.kind == "two towers" else None
    spec = _spec(files, images, model, processor, loading, rows)
    if texts is not None:
        spec = _with_texts(spec, files, texts, _positions(model))
    # A run does not change the module: one is enough for any number of threads.
    return [
        ImageModel(model, spec, processor, rows, loading.intra_op_threads, texts, loading.pool)
        for _ in range(files.entry.instances)
    ]


def _rows_of(model: Any, kind: Literal["classify", "embed", "two towers"], lacks_pooler: bool) -> Rows:
    """Return the function from pixels to one row for each image."""
    if kind == "classify":
        return lambda pixels: model(pixel_values=pixels).logits
    if kind == "two towers":
        return lambda pixels: pooled(model.get_image_features(pixel_values=pixels))
    if lacks_pooler:
        return lambda pixels: model(pixel_values=pixels).last_hidden_state[:, 0]
    return lambda pixels: _embedding(model(pixel_values=pixels))


def _arrange_convolutions(model: torch.nn.Module) -> None:
    """Put the channels of convolutions last in memory. ResNet-50 then takes about two thirds of the time on a CPU.

    Models without batch normalisation are mostly linear layers, and gain nothing.
    """
    if any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _embedding(output: Any) -> torch.Tensor:
    projected = getattr(output, "image_embeds", None)
    return pooled(output if projected is None else projected)


def _spec(
    files: ModelFiles,
    images: ImageFolder,
    model: torch.nn.Module,
    processor: ImageProcessor,
    loading: EncoderLoading,
    rows: Rows,
) -> ModelSpec:
    classifies = images.kind == "classify"
    config: Any = model.config
    labels = tuple(str(config.id2label[number]) for number in range(config.num_labels)) if classifies else ()
    name = _LOGITS if classifies else _EMBEDDINGS
    height, width = processor.height, processor.width
    is_multi = getattr(config, "problem_type", None) == "multi_label_classification" or len(labels) == 1
    size = len(labels) if classifies else _embedding_size(model, images, processor, rows)
    return ModelSpec(
        framework="pytorch",
        task="classify" if classifies else "embed",
        inputs=(ValueSpec(PIXELS, TensorType("float32", (-1, 3, height, width))),),
        outputs=(ValueSpec(name, TensorType("float32", (-1, size))),),
        device=loading.device.id,
        dtype=DTYPE_NAMES[loading.dtype],
        memory_bytes=held_bytes(model),
        image=ImageSpec(
            PIXELS,
            height,
            width,
            labels,
            is_multi,
            files.config.normalize,
            None if classifies else size,
            output_name=name,
        ),
        batched_inputs=frozenset({PIXELS}),
    )


def _embedding_size(model: torch.nn.Module, images: ImageFolder, processor: ImageProcessor, rows: Rows) -> int:
    """Return the size of an embedding, by a run: the configs of the families name it differently."""
    weight = next(model.parameters())
    pixels = torch.zeros(processor.empty(1).shape, dtype=weight.dtype, device=weight.device)
    try:
        with torch.inference_mode():
            return int(rows(pixels).shape[1])
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise InvalidModel(f"{images.folder}: the model does not run on images: {error}") from error


def _positions(model: Any) -> int:
    return int(model.config.text_config.max_position_embeddings)


def _text_tower(files: ModelFiles, model: Any) -> TextTower | None:
    """Return the texts of a model; None where it has no tokenizer, so that only its images are served."""
    if not (files.folder / "tokenizer.json").is_file():
        return None
    most = min(files.config.max_tokens, _positions(model))
    tokenizer = TextTokenizer(files.folder, replace(files.config, max_tokens=most))
    pad_token_id = _pad_token_id(files.folder, tokenizer, model)
    is_siglip = model.config.model_type == _SIGLIP
    return TextTower(tokenizer, pad_token_id, _positions(model) if is_siglip else 0, reads_mask=not is_siglip)


def _pad_token_id(folder: Path, tokenizer: TextTokenizer, model: Any) -> int:
    """Return the padding of the tokenizer, else that of the model: SigLIP reads padding as it was trained with it."""
    named = read_json(folder / "tokenizer_config.json").get("pad_token")
    named = named.get("content") if isinstance(named, dict) else named
    own = tokenizer.id_of(named) if isinstance(named, str) else None
    if own is None:
        own = model.config.text_config.pad_token_id
    return own if isinstance(own, int) and own >= 0 else 0


def _with_texts(spec: ModelSpec, files: ModelFiles, texts: TextTower, positions: int) -> ModelSpec:
    """Return the spec of a model that reads texts too."""
    assert spec.image is not None
    text = TextSpec(
        max_tokens=min(files.config.max_tokens, positions),
        normalize=files.config.normalize,
        embedding_size=spec.image.embedding_size,
        pooling="pooler",
        prompts=files.config.prompts,
    )
    return replace(
        spec, inputs=(*spec.inputs, ValueSpec("text", TensorType("string", (-1,)), required=False)), text=text
    )
